"""Train settings together up to some round, from where each stopped, and score them on validation or test data."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedtilt.data import Federation
from fedtilt.engine.client_states import ClientStates, FederationState
from fedtilt.engine.prepare import PreparedRun
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.groups import group_names
from fedtilt.evaluation.metrics import Counts, GroupCounts
from fedtilt.executors.in_process import one_thread
from fedtilt.files import interpreting, read_tensors, write_tensors
from fedtilt.runs.checkpointing import train_rounds
from fedtilt.simulation import Round
from fedtilt.storage.fingerprint import fingerprint_of
from fedtilt.storage.run_folder import InMemoryRun, Notice, Recorder, RunFolder
from fedtilt.training.precision import fp32_deterministic
from fedtilt.tuning.objectives import Scores


class Storage(NamedTuple):
    """Where training is stored, so that it can be resumed."""

    folder: Path | None  # None: nowhere
    checkpoint_seconds: float = 10.0
    memory_limit: int = 2 * 2**30  # bytes of client states in memory


SettingScores = dict[str, Scores]  # setting → its scores


def train_until(
    prepared: PreparedRun,
    until: int,
    starts: Mapping[str, FederationState],
    storage: Storage,
    on_round: Callable[[Round], None],
    notice: Notice,
) -> tuple[FederationState, SettingScores]:
    """Train methods together to the end of a round, and score them there on validation data.

    Resumes from its own checkpoint.

    Args:
        prepared: the checked inputs, with one method per setting
        until: the round
        starts: for every method, the state that it continues from; empty: from the start
        storage: where checkpoints are written
        on_round: called after every round; what it raises stops the training, which can be resumed
        notice: called with messages for the user
    """
    # the only evaluation is after the last of these rounds; the number of rounds stays, since schedules depend on it
    prepared = prepared._replace(settings=dataclasses.replace(prepared.settings, eval_every=until))
    fingerprint = fingerprint_of(prepared)
    recorder = _recorder(storage)
    state = recorder.begin(fingerprint, notice)
    if isinstance(recorder, RunFolder) and state is not None and state.round >= until:  # stopped before it was scored
        recorder.checkpoints.delete_after(until - 1)
        recorder = _recorder(storage)
        state = recorder.begin(fingerprint, notice)
    if state is None and starts:
        state = _copied(starts, recorder.client_states)
    last = train_rounds(
        prepared, recorder, state, until=until, on_round=lambda r, _: on_round(r), notice=notice,
        checkpoint_seconds=storage.checkpoint_seconds, on_test=False,
    )  # fmt: skip
    assert last is not None
    return last.state, _scores(last, groupings_of(prepared.federation))


def _recorder(storage: Storage) -> Recorder:
    if storage.folder is None:
        return InMemoryRun(storage.memory_limit)
    return RunFolder(storage.folder, storage.memory_limit)


def _copied(starts: Mapping[str, FederationState], client_states: ClientStates) -> FederationState:
    """The states of several methods as one; copies, so that the training can start again without one of them."""
    server = {}
    for name, start in starts.items():
        server[name] = start.server[name]
        for owner in start.client_states.owners():
            if owner[0] == name:
                kept = {key: tensor.clone() for key, tensor in start.client_states.get(owner).items()}
                client_states.put(owner, start.client_states.round_of(owner), kept)
    return FederationState(next(iter(starts.values())).round, server, client_states)


def _scores(r: Round, columns: tuple[str, ...]) -> SettingScores:
    assert r.validation is not None
    assert r.validation_total is not None
    return {
        name: _of_participants(counts, _table(counts, r.validation_total, columns))
        for name, counts in r.validation.items()
    }


def score_on_test(prepared: PreparedRun, state: FederationState) -> SettingScores:
    """The scores of methods on test data."""
    with one_thread(prepared.device), fp32_deterministic(prepared.device):
        evaluator = Evaluator(prepared.federation, prepared.net.to(prepared.device), prepared.parts, prepared.device)
        counts = evaluator.all_counts(prepared.methods, state)
    columns = groupings_of(prepared.federation)
    return {name: _table(found, evaluator.total, columns) for name, found in counts.items()}


def groupings_of(federation: Federation) -> tuple[str, ...]:
    """The groupings that have scores of their own; empty if there is only one."""
    names = tuple(group_names(federation))
    return names if len(names) > 1 else ()


def _table(counts: Counts, total: Tensor, columns: tuple[str, ...]) -> Scores:
    return Scores(counts.evaluated, total, counts.by_grouping(total, columns) if columns else {})


def _of_participants(counts: Counts, scores: Scores) -> Scores:
    """Without the clients that have no personal model yet: after few rounds they would outnumber the others."""
    took_part = ~counts.never_selected
    if counts.personal is None or not scores.total[took_part].any():
        return scores
    return scores.of_clients(took_part.nonzero()[:, 0])


def write_scores(path: Path, scores: SettingScores) -> None:
    """Write the scores of settings that were trained together."""
    tensors: dict[str, Tensor] = {}
    for name, table in scores.items():
        tensors |= {f"{name}/sums": table.sums, f"{name}/total": table.total}
        for i, (sums, total) in enumerate(table.groups.values()):
            tensors |= {f"{name}/sums-{i}": sums, f"{name}/total-{i}": total}
    write_tensors(path, {key: tensor.clone() for key, tensor in tensors.items()})  # totals are shared


def read_scores(path: Path, columns: tuple[str, ...]) -> SettingScores:
    """Read scores; `columns` are the groupings."""
    tensors = read_tensors(path)
    with interpreting(path):
        return {name: _read(tensors, name, columns) for name in dict.fromkeys(key.rsplit("/", 1)[0] for key in tensors)}


def _read(tensors: Mapping[str, Tensor], name: str, columns: tuple[str, ...]) -> Scores:
    groups = {
        column: GroupCounts(tensors[f"{name}/sums-{i}"], tensors[f"{name}/total-{i}"])
        for i, column in enumerate(columns)
    }
    return Scores(tensors[f"{name}/sums"], tensors[f"{name}/total"], groups)
