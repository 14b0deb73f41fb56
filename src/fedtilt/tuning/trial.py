"""A trial: settings that train together on one seed to the end of a stage, and their scores."""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.data import Federation
from fedtilt.devices import pick_device
from fedtilt.engine.client_states import ClientStates, FederationState
from fedtilt.engine.prepare import PreparedRun
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import Diverged, InputError
from fedtilt.evaluation.evaluator import Evaluator, group_names
from fedtilt.evaluation.metrics import GroupCounts
from fedtilt.executors.in_process import one_thread
from fedtilt.files import interpreting, read_tensors, write_tensors
from fedtilt.methods import Method
from fedtilt.runs.checkpointing import CHECKPOINT_SECONDS, MEMORY_LIMIT, train_rounds
from fedtilt.simulation import Round
from fedtilt.storage.fingerprint import fingerprint_of, read_fingerprint
from fedtilt.storage.run_folder import InMemoryRun, Notice, Recorder, RunFolder
from fedtilt.training.precision import fp32_deterministic
from fedtilt.tuning.objectives import ClientOutputs, ScoreTable
from fedtilt.tuning.tuned_method import TunedMethod

SettingScores = dict[str, ScoreTable]  # setting → its scores on one seed


class Storage(NamedTuple):
    """Where training is stored, so that it can be resumed."""

    folder: Path | None  # None: nowhere
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    memory_limit: int = MEMORY_LIMIT  # bytes of client states in memory


class Trial(NamedTuple):
    """Methods with the same training settings, which train together on one seed to the end of a stage."""

    methods: Sequence[Method]  # one per setting
    settings: TrainSettings
    seed: int
    until: int  # the round
    starts: Mapping[str, FederationState]  # for every method, the state that it continues from; empty: from the start
    storage: Storage
    outputs: bool = False  # whether scores include probabilities

    @property
    def scores_file(self) -> Path:
        """Where the scores are written."""
        assert self.storage.folder is not None
        return self.storage.folder.with_suffix(".safetensors")

    @property
    def is_finished(self) -> bool:
        """Whether its scores are written."""
        return self.storage.folder is not None and self.scores_file.exists()

    def as_task(self) -> "Trial":
        """The trial in a process of its own, on its own device."""
        assert self.storage.folder is not None
        timeout = TrainSettings.cluster_timeout  # the default: another has no effect without a cluster
        device = pick_device(self.settings.device).type
        settings = dataclasses.replace(
            self.settings, cluster=None, cluster_timeout=timeout, workers=None, device=device
        )
        return self._replace(settings=settings, storage=self.storage._replace(folder=self.storage.folder.absolute()))


def train_trial(
    tuned: TunedMethod, trial: Trial, on_round: Callable[[Round], None], notice: Notice
) -> tuple[FederationState | None, SettingScores]:
    """Train a trial from its own checkpoint, and write its scores; methods that diverge have none.

    If `on_round`, which is called after every round, raises, the training can be resumed.
    """
    folder, methods = trial.storage.folder, list(trial.methods)
    if folder is not None and (path := folder / "fingerprint.json").exists():
        recorded = read_fingerprint(path)["methods"]
        methods = [m for m in methods if m.name in recorded]  # the others diverged before a kill
    state, scores = None, SettingScores()
    while methods and state is None:
        try:
            prepared = tuned.prepare(trial.seed, methods, trial.settings)
            state = _train(prepared, trial, on_round, notice)
            scores = score(prepared, state, "validation", outputs=trial.outputs)
        except Diverged as error:  # the others start this stage again
            notice(f"{error}; continuing without {'it' if len(error.methods) == 1 else 'them'}")
            methods = [m for m in methods if m.name not in error.methods]
            if folder is not None and folder.exists():
                _delete(folder)
    if folder is not None:
        write_scores(trial.scores_file, scores)
    return state, scores


def _train(prepared: PreparedRun, trial: Trial, on_round: Callable[[Round], None], notice: Notice) -> FederationState:
    """Train to the last round of a trial, and return the state."""
    # no evaluation on the way; the number of rounds stays, since schedules depend on it
    prepared = prepared._replace(settings=dataclasses.replace(prepared.settings, eval_every=prepared.settings.rounds))
    folder, limit = trial.storage.folder, trial.storage.memory_limit
    recorder: Recorder = InMemoryRun(limit) if folder is None else RunFolder(folder, limit)
    state = recorder.begin(fingerprint_of(prepared), notice)
    if state is None and trial.starts:
        state = _copied({m.name: trial.starts[m.name] for m in prepared.methods}, recorder.client_states)
    if state is not None and state.round >= trial.until:  # stopped before it was scored
        return state
    last = train_rounds(
        prepared, recorder, state, until=trial.until, on_round=lambda r, _: on_round(r), notice=notice,
        checkpoint_seconds=trial.storage.checkpoint_seconds,
    )  # fmt: skip
    assert last is not None
    return last.state


def _delete(folder: Path) -> None:
    """Delete a folder; after a kill it is complete, or gone."""
    hidden = folder.with_name(f".{folder.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    folder.rename(hidden)
    shutil.rmtree(hidden)


def _copied(starts: Mapping[str, FederationState], client_states: ClientStates) -> FederationState:
    """The states of several methods as one; copies, so that the training can start again without one of them."""
    server = {}
    for name, start in starts.items():
        server[name] = start.server[name]
        for owner in start.client_states.owners():
            if owner[0] == name:
                kept = start.client_states.get(owner).map(Tensor.clone)
                client_states.put(owner, start.client_states.round_of(owner), kept)
    return FederationState(next(iter(starts.values())).round, server, client_states)


# -- scores ------------------------------------------------------------------------------------------------------------


def score(prepared: PreparedRun, state: FederationState, split: str, *, outputs: bool = False) -> SettingScores:
    """The scores of methods on test or validation data, with `outputs` also their probabilities.

    On validation data, without the clients that have no personal model yet: after few rounds they would outnumber the
    others. With `outputs`, unless the others have samples of one class alone, of which there is no AUROC.
    """
    federation, device = prepared.federation, prepared.device
    with one_thread(device), fp32_deterministic(device):
        evaluator = Evaluator(federation, prepared.net.to(device), prepared.parts, device, split)
        found = evaluator.all_counts(prepared.methods, state)
        predicted = {m.name: evaluator.predictions(m, state) for m in prepared.methods} if outputs else {}
    total, columns, scores = evaluator.total, _groupings(federation), {}
    _, labels, clients = federation.evaluation(split)
    if outputs and len(labels.unique()) < 2:
        raise InputError(
            f"with seed {prepared.settings.seed}, all {split} samples are of one class, with no AUROC, AUPRC or F1; "
            f"raise {'clients.validation' if split == 'validation' else 'data.test_share'}, or choose another objective"
        )
    sizes = labels.bincount(minlength=federation.classes) if outputs else torch.zeros(0)
    rarer = torch.tensor(-1) if len(sizes) != 2 else (sizes[0] >= sizes[1]).long()
    for name, counts in found.items():
        of_samples = ClientOutputs(predicted[name], labels, clients, rarer) if outputs else None
        groups = counts.by_grouping(total, columns) if columns else {}
        scores[name] = ScoreTable(counts.evaluated, total, groups, of_samples)
        trained = ~counts.never_selected
        is_enough = len(labels[trained[clients]].unique()) > 1 if outputs else total[trained].any()
        if split == "validation" and counts.personal is not None and is_enough:
            scores[name] = scores[name].of_clients(trained.nonzero()[:, 0])
    return scores


def _groupings(federation: Federation) -> tuple[str, ...]:
    """The groupings that have scores of their own; empty if there is only one."""
    names = tuple(group_names(federation))
    return names if len(names) > 1 else ()


def write_scores(path: Path, scores: SettingScores) -> None:
    """Write the scores of settings that were trained together."""
    tensors: dict[str, Tensor] = {}
    for name, table in scores.items():
        tensors |= {f"{name}/sums": table.sums, f"{name}/total": table.total}
        for i, (sums, total) in enumerate(table.groups.values()):
            tensors |= {f"{name}/sums-{i}": sums, f"{name}/total-{i}": total}
        if table.outputs is not None:
            tensors |= {f"{name}/{key}": tensor for key, tensor in table.outputs._asdict().items()}
    write_tensors(path, {key: tensor.clone() for key, tensor in tensors.items()})  # totals are shared


def read_scores(path: Path, federation: Federation) -> SettingScores:
    """Read the scores of settings by name."""
    tensors, scores = read_tensors(path), SettingScores()
    with interpreting(path):
        for name in dict.fromkeys(key.rsplit("/", 1)[0] for key in tensors):
            groups = {
                column: GroupCounts(tensors[f"{name}/sums-{i}"], tensors[f"{name}/total-{i}"])
                for i, column in enumerate(_groupings(federation))
            }
            outputs = None
            if f"{name}/probabilities" in tensors:
                outputs = ClientOutputs(*(tensors[f"{name}/{key}"] for key in ClientOutputs._fields))
            scores[name] = ScoreTable(tensors[f"{name}/sums"], tensors[f"{name}/total"], groups, outputs)
    return scores
