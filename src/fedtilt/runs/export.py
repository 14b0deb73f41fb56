"""Export trained models: their state, and the metadata to use them."""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedtilt.data.names import client_number
from fedtilt.errors import InputError
from fedtilt.files import read_json
from fedtilt.parts import Tensors, named_pieces
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
    if method not in state.server:
        raise InputError(f"{folder} has no method {method!r}; it has {', '.join(state.server)}")
    kept: Tensors = {}
    if client is not None:
        kept = state.client_states.get((method, client_number(client, run_folder.description()["clients"])))
        if not kept:
            raise InputError(
                f"client {client} has no model of its own of method {method!r}: it was never selected, or the method "
                "has no personal models; leave out --client for the shared model"
            )
    return _named_state(
        read_json(run_folder.folder / "fingerprint.json"), run_folder.constants(), state.server[method], kept
    )


def _named_state(
    fingerprint: Mapping[str, Any], constants: Tensors, server: Tensors, kept: Tensors
) -> dict[str, torch.Tensor]:
    """A model's tensors by name: what the server keeps, over it what the client keeps, and the constants of the run."""
    trained, local = fingerprint["model"], fingerprint["local"]
    pieces = dict(constants) | named_pieces(server["parameters"], {n: s for n, s in trained.items() if n not in local})
    if "local" in kept:
        pieces |= named_pieces(kept["local"], {name: shape for name, shape in trained.items() if name in local})
    if "personal" in kept:
        pieces |= named_pieces(kept["personal"], trained)
    buffers = kept.get("personal_buffers", kept.get("buffers", server.get("buffers")))
    if buffers is not None:
        named = named_pieces(buffers, fingerprint["buffers"])
        pieces |= {name: buffer.to(constants[name].dtype) for name, buffer in named.items() if name in constants}
    return pieces | {name: pieces[first].clone() for name, first in fingerprint["tied"].items()}


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
