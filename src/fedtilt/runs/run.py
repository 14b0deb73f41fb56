"""A run from start to end: simulate, store, resume."""

import copy
import dataclasses
import hashlib
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.evaluation.results import MethodResult, Result, Summary, evaluated_counts, summarised
from fedtilt.files import read_json
from fedtilt.locks import locked
from fedtilt.methods import Method
from fedtilt.models import ModelSource, flat
from fedtilt.rounds.client_states import FederationState
from fedtilt.rounds.settings import takes_train_settings, train_settings
from fedtilt.simulation import PreparedRun, Round, prepare, simulate_prepared
from fedtilt.storage.provenance import environment, record_environment, seed_folder, settings_of
from fedtilt.storage.run_folder import InMemoryRun, RunFolder

OnRound = Callable[[Round, Mapping[str, Summary] | None], None]
Notice = Callable[[str], None]


def silent(*_: object) -> None:
    """No-op."""


@takes_train_settings
def run(
    methods: Iterable[Method],
    federation: Federation,
    model: ModelSource,
    *,
    out: str | os.PathLike[str] | None = None,
    on_round: OnRound = silent,
    notice: Notice = silent,
    checkpoint_seconds: float = 10.0,
    memory_limit: int = 2 * 2**30,
    **settings: Any,
) -> Result:
    """Train every method to the end; the defaults are the paper's setting.

    With `out`, metrics, counts, checkpoints and models go into that folder; called again with the same arguments, an
    interrupted run continues from its last checkpoint to the same bits.

    Args:
        methods: the methods to compare, with unique names
        federation: the clients and their data
        model: an `nn.Module`, or a function of `input_shape` and `classes` that returns one
        out: the run folder; None: nothing is written
        on_round: called after every round with the `Round` and, where it was evaluated, the metrics by method
        notice: called with sentences a person should read
        checkpoint_seconds: at least so many seconds between checkpoints; 0: every round
        memory_limit: bytes of personal models in memory, beyond which they are kept in files
        **settings: the training settings:
    """
    chosen = train_settings(settings)
    if out is not None:
        check_free(Path(out), going_on=True)
    work = prepare(methods, federation, model, chosen)
    if out is None:
        return train_to_end(work, fingerprint_of(work), InMemoryRun(memory_limit), checkpoint_seconds, on_round, notice)
    folder = Path(out)
    with locked(folder):
        store = RunFolder(seed_folder(folder, chosen.seed), memory_limit)
        job = fingerprint_of(work)
        store.check_siblings(job)
        record_environment(folder, chosen.device, [chosen.seed])
        compare_environment(folder, chosen.device, notice)
        return train_to_end(work, job, store, checkpoint_seconds, on_round, notice)


def check_free(folder: Path, *, going_on: bool) -> None:
    """Refuse a file, and a folder that holds anything but, where it may go on, a run."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose another folder")
    begun = (folder / "run.json").exists()
    if not folder.exists() or (begun and going_on):
        return
    # a run that is killed before it writes run.json leaves these
    held = [path for path in folder.iterdir() if path.name != ".lock" and path.suffix != ".part"]
    if held:
        resume = f"use fedtilt resume {shlex.quote(str(folder))}, or another folder"
        raise InputError(f"{folder} is not empty; {resume if begun else 'choose another folder'}")


def compare_environment(folder: Path, device: str, notice: Notice) -> None:
    """Say what is not as it was when the run began."""
    before, now = read_json(folder / "run.json")["environment"], environment(device)
    for key, was in before.items():
        if now.get(key) != was:
            notice(f"{key} was {was} and is {now.get(key)} now: the last bits may differ")


def train_to_end(
    work: PreparedRun,
    fingerprint: Mapping[str, Any],
    keeper: RunFolder | InMemoryRun,
    checkpoint_seconds: float,
    on_round: OnRound,
    notice: Notice,
) -> Result:
    """Train one seed from its last checkpoint, or from the start, to the last round."""
    federation = work.federation
    state = keeper.begin(fingerprint, notice)
    keeper.describe(
        clients=federation.client_names,
        classes=federation.class_names,
        has_outliers=federation.has_outliers.nonzero()[:, 0].tolist(),
        extras=_extras(work.net),
        model=_use(work),
    )
    saved, kept = time.monotonic(), 0
    for r in simulate_prepared(work, state=state, client_states=keeper.client_states):
        state, summaries = r.state, None
        if r.counts is not None:
            summaries = summarised(r.counts, r.total, federation.has_outliers)
            validation = summarised(r.validation, r.validation_total, federation.has_outliers)
            keeper.record(r.number, summaries, r.counts, r.total, validation)
        if time.monotonic() - saved >= checkpoint_seconds or r.number == work.settings.rounds:
            keeper.checkpoint(r.state)
            saved, kept = time.monotonic(), r.number
        try:
            on_round(r, summaries)
        except BaseException:  # whoever stops a run between two rounds can go on from there
            if kept < r.number:
                keeper.checkpoint(r.state)
            raise
    assert state is not None  # there is at least one round, trained now or before
    return _result(work, keeper, state)


def _result(work: PreparedRun, keeper: RunFolder | InMemoryRun, state: FederationState) -> Result:
    counts, total = keeper.counts(state.round)
    net = copy.deepcopy(work.net).cpu()
    return Result(
        {
            m.name: MethodResult(
                method=m,
                history=keeper.history[m.name],
                correct=evaluated_counts(counts[m.name]),
                total=total,
                validation=keeper.validation[m.name].evaluated if m.name in keeper.validation else None,
                client_names=work.federation.client_names,
                class_names=work.federation.class_names,
                _net=net,
                _shared=state.shared[m.name].cpu(),
                _client_states=state.client_states,
            )
            for m in work.methods
        }
    )


def fingerprint_of(work: PreparedRun) -> dict[str, Any]:
    """What is run, as JSON: everything that determines its results but the machine."""
    data, federation = work.federation.dataset, work.federation
    index = [*federation.train_index, *federation.test_index]
    return {
        **settings_of(work.methods, work.settings),
        "data": data.name,
        "samples": _digest([data.x_train, data.y_train, data.x_test, data.y_test]),
        "outliers": dataclasses.asdict(federation.outliers),
        "clients": federation.clients,
        "partition": _digest([*index, federation.has_outliers]),
        "sizes": _digest([torch.tensor([len(rows) for rows in index])]),  # the same rows, divided otherwise
        "model": {name: list(p.shape) for name, p in work.net.named_parameters()},
        "tied": _tied(work.net),
        "architecture": repr(work.net),
        "start": _digest([flat(work.net)]),
    }


def _tied(net: torch.nn.Module) -> dict[str, str]:
    """The other names of parameters that have several, and the first one of each."""
    first = {id(p): name for name, p in net.named_parameters()}
    every = net.named_parameters(remove_duplicate=False)
    return {name: first[id(p)] for name, p in every if first[id(p)] != name}


def _extras(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What a model's state holds besides its parameters; training leaves it alone."""
    trained = dict(net.named_parameters(remove_duplicate=False))
    held = {name: value for name, value in net.state_dict().items() if name not in trained}
    return {name: value.detach().clone() for name, value in held.items() if isinstance(value, torch.Tensor)}


def _use(work: PreparedRun) -> dict[str, Any]:
    """What it takes to use a model elsewhere: how it is made, and that it takes (x − mean) / deviation."""
    data = work.federation.dataset
    found: dict[str, Any] = {} if work.recipe is None else {"model": work.recipe}
    if data.image:
        return found | {"mean": [0.5], "deviation": [0.5]}  # pixels in [0, 1] become [-1, 1]
    return found | ({} if data.features is None else data.features.to_json())


def _digest(tensors: Sequence[torch.Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for values in tensors:
        digest.update(values.contiguous().numpy().data)
    return digest.hexdigest()
