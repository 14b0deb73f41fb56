"""What is left of a run, for use elsewhere: its models, and what it takes to use them."""

import json
import math
import os
import shlex
from pathlib import Path

import torch

from fedtilt.errors import InputError
from fedtilt.evaluation.results import number_of
from fedtilt.files import read_json
from fedtilt.runs.run import Notice
from fedtilt.runs.spec_run import check_run
from fedtilt.storage.provenance import seed_folder
from fedtilt.storage.run_folder import RunFolder


def exported(
    folder: str | os.PathLike[str],
    method: str,
    client: int | str | None = None,
    seed: int | None = None,
    *,
    notice: Notice = lambda _: None,
) -> dict[str, torch.Tensor]:
    """The state, as `load_state_dict` takes it, of a run's shared model or, with `client`, of a personal one."""
    store = _stored(folder, seed)
    state = store.latest(notice)
    if state is None:
        raise InputError(f"{folder} has no checkpoint yet; fedtilt resume {shlex.quote(str(folder))}")
    if method not in state.shared:
        raise InputError(f"{folder} has no method {method!r}; it has {', '.join(state.shared)}")
    vector: torch.Tensor | None = state.shared[method]
    if client is not None:
        vector = state.client_states.get((method, number_of(client, store.described()["clients"])))
        if vector is None:
            raise InputError(
                f"client {client} has no personal model of method {method!r}: it never took part, or the method has "
                "none; leave out --client for the shared model"
            )
    job = read_json(store.folder / "fingerprint.json")
    pieces = vector.split([math.prod(shape) for shape in job["model"].values()])  # type: ignore[union-attr]
    found = {name: piece.reshape(shape) for (name, shape), piece in zip(job["model"].items(), pieces, strict=True)}
    tied = {name: found[first].clone() for name, first in job.get("tied", {}).items()}
    return found | tied | store.extras()


def about(
    folder: str | os.PathLike[str], method: str, client: int | str | None = None, seed: int | None = None
) -> dict[str, str]:
    """What `exported` is and how to use it, for a file's metadata: text as it is, everything else as JSON."""
    known = _stored(folder, seed).described()
    clients = known.pop("clients", [])
    known |= {"method": method} | ({} if client is None else {"client": clients[number_of(client, clients)]})
    return {key: v if isinstance(v, str) else json.dumps(v) for key, v in known.items() if key != "has_outliers"}


def _stored(folder: str | os.PathLike[str], seed: int | None) -> RunFolder:
    """One seed of a run folder, the first where none is named."""
    folder = Path(folder)
    check_run(folder)
    seeds = read_json(folder / "run.json")["seeds"]
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise InputError(f"{folder} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    return RunFolder(seed_folder(folder, seed))
