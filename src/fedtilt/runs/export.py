"""Export trained models: their state, and the metadata to use them."""

import json
import math
import os
import shlex
from pathlib import Path

import torch

from fedtilt.data.names import client_number
from fedtilt.errors import InputError
from fedtilt.files import read_json
from fedtilt.runs.run import Notice
from fedtilt.runs.spec_run import check_run_folder
from fedtilt.storage.provenance import seed_folder
from fedtilt.storage.run_folder import RunFolder


def state_dict(
    folder: str | os.PathLike[str],
    method: str,
    client: int | str | None = None,
    seed: int | None = None,
    *,
    notice: Notice = lambda _: None,
) -> dict[str, torch.Tensor]:
    """The state of a trained model, as `load_state_dict` takes it.

    Args:
        folder: the run folder
        method: the name of the method
        client: number or name of a client, for its personal model; None: the shared model
        seed: which seed of the run; None: the first
        notice: called with a message if a damaged checkpoint is skipped
    """
    run_folder = _open(folder, seed)
    state = run_folder.latest(notice)
    if state is None:
        raise InputError(f"{folder} has no checkpoint yet; fedtilt resume {shlex.quote(str(folder))}")
    if method not in state.shared:
        raise InputError(f"{folder} has no method {method!r}; it has {', '.join(state.shared)}")
    vector: torch.Tensor | None = state.shared[method]
    if client is not None:
        vector = state.client_states.get((method, client_number(client, run_folder.description()["clients"])))
        if vector is None:
            raise InputError(
                f"client {client} has no personal model of method {method!r}: it was never selected, or the method has "
                "none; leave out --client for the shared model"
            )
    fingerprint = read_json(run_folder.folder / "fingerprint.json")
    shapes = fingerprint["model"]
    pieces = vector.split([math.prod(shape) for shape in shapes.values()])  # type: ignore[union-attr]
    parameters = {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
    tied = {name: parameters[first].clone() for name, first in fingerprint.get("tied", {}).items()}
    return parameters | tied | run_folder.buffers()


def metadata(
    folder: str | os.PathLike[str], method: str, client: int | str | None = None, seed: int | None = None
) -> dict[str, str]:
    """How to build and use the model of `state_dict`, for a safetensors file: texts unchanged, other values as JSON."""
    values = _open(folder, seed).description()
    clients = values.pop("clients", [])
    values |= {"method": method} | ({} if client is None else {"client": clients[client_number(client, clients)]})
    return {key: v if isinstance(v, str) else json.dumps(v) for key, v in values.items() if key != "has_outliers"}


def _open(folder: str | os.PathLike[str], seed: int | None) -> RunFolder:
    """One seed of a run; None: the first."""
    folder = Path(folder)
    check_run_folder(folder)
    seeds = read_json(folder / "run.json")["seeds"]
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise InputError(f"{folder} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    return RunFolder(seed_folder(folder, seed))
