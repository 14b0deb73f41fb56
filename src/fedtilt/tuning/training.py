"""Train the settings of a search to the end of a stage, and score them: those with the same training settings together.

In a folder, search/stage-2/0-seed-1.safetensors has the scores of some settings after stage 2, and the folder of the
same name their models, until the next stage is over. Settings that diverged have no scores.
search/test-seed-1.safetensors has the scores on test data at the end.
"""

import dataclasses
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtilt.cluster.connection import connected, tensors_as_arrays
from fedtilt.cluster.tasks import Report, TaskProgress, check_shared, describe_tasks, run_tasks
from fedtilt.data import Federation
from fedtilt.devices import pick_device
from fedtilt.engine.client_states import ClientStates, FederationState
from fedtilt.engine.prepare import PreparedRun
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import Diverged, InputError
from fedtilt.evaluation.evaluator import Evaluator
from fedtilt.evaluation.groups import group_names
from fedtilt.evaluation.metrics import GroupCounts
from fedtilt.executors.in_process import one_thread
from fedtilt.files import interpreting, read_tensors, write_tensors
from fedtilt.methods import Method
from fedtilt.runs.checkpointing import CHECKPOINT_SECONDS, MEMORY_LIMIT, train_rounds
from fedtilt.simulation import Round
from fedtilt.storage.fingerprint import fingerprint_of, read_fingerprint
from fedtilt.storage.run_folder import InMemoryRun, Notice, Recorder, RunFolder
from fedtilt.training.precision import fp32_deterministic
from fedtilt.tuning.objectives import ClientOutputs, ScoreTable, SeedScores
from fedtilt.tuning.tuned_method import Candidate, TunedMethod

_NOTICE_SECONDS = 30.0  # between two messages about the tasks of a cluster

SettingScores = dict[str, ScoreTable]  # setting → its scores on one seed


class OutOfTime(Exception):
    """The budget is spent."""


class Storage(NamedTuple):
    """Where training is stored, so that it can be resumed."""

    folder: Path | None  # None: nowhere
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    memory_limit: int = MEMORY_LIMIT  # bytes of client states in memory


class Stage(NamedTuple):
    """Settings that are compared after the same number of rounds."""

    number: int  # from 1
    rounds: int
    scores: dict[str, SeedScores]  # setting → those on validation data, if it was trained on all seeds


class Trainer:
    """Trains settings stage by stage, and knows where each of them stopped.

    Candidates may be added later. `check_time` is called while tasks of a cluster train, and raises `OutOfTime` when
    the budget is spent. With `outputs`, scores include probabilities.
    """

    def __init__(
        self, tuned: TunedMethod, candidates: Mapping[str, Candidate], storage: Storage,
        on_round: Callable[[Round], None], check_time: Callable[[], None], notice: Notice, *, outputs: bool = False,
    ) -> None:  # fmt: skip
        self._outputs = outputs
        self._tuned, self._candidates, self._storage = tuned, candidates, storage
        self._on_round, self._check_time, self._notice = on_round, check_time, notice
        self._states: dict[tuple[int, str, int], FederationState] = {}  # (stage, setting, seed) → where it stopped
        self.diverged: list[str] = []
        self.ended = False  # whether the search is over, and its models are deleted

    @property
    def _federation(self) -> Federation:
        """That of the first seed, which has the groups of all."""
        return self._tuned.federation(self._tuned.seeds[0])

    def train(self, stage: Stage, names: Sequence[str]) -> None:
        """Train settings to the end of a stage, and add the scores of those that do not diverge."""
        groups: list[list[str]] = []
        for name in names:
            settings = self._candidates[name].settings
            same = [group for group in groups if self._candidates[group[0]].settings == settings]
            if same:
                same[0].append(name)
            else:
                groups.append([name])
        try:
            self._train_on_cluster(stage, groups)
        except OutOfTime:
            for group in groups:
                if all(self._trial(stage, group, seed).is_finished for seed in self._tuned.seeds):
                    self._train_group(stage, group)
            raise
        for group in groups:
            self._train_group(stage, group)

    def _train_group(self, stage: Stage, group: Sequence[str]) -> None:
        """Train settings together on all seeds; one that diverges on a seed is not trained on the next."""
        left, by_seed = list(group), {}
        for seed in self._tuned.seeds:
            trial = self._trial(stage, left, seed, part=group[0])
            if trial.is_finished:
                state, scores = self._finished(trial, group)
            elif self.ended:
                raise OutOfTime
            else:
                state, scores = train_trial(self._tuned, trial, self._on_round, self._notice)
            if state is not None:
                self._states |= {(stage.number, name, seed): state for name in scores}
            by_seed[seed] = scores
            left = [name for name in left if name in scores]
        self.diverged += [name for name in group if name not in left]
        stage.scores.update({name: {seed: scores[name] for seed, scores in by_seed.items()} for name in left})

    def _trial(self, stage: Stage, names: Sequence[str], seed: int, part: str = "") -> "Trial":
        """What is trained; the first setting of its group, `part`, names its folder."""
        folder = None
        if self._storage.folder is not None:
            number = list(self._candidates).index(part or names[0])
            folder = self._storage.folder / f"stage-{stage.number}" / f"{number}-seed-{seed}"
        before = {name: self._states.get((stage.number - 1, name, seed)) for name in names}
        return Trial(
            methods=[self._candidates[name].method for name in names],
            settings=self._candidates[part or names[0]].settings,
            seed=seed,
            until=stage.rounds,
            starts={name: state for name, state in before.items() if state is not None},
            storage=self._storage._replace(folder=folder),
            outputs=self._outputs,
        )

    def _finished(self, trial: "Trial", group: Sequence[str]) -> tuple[FederationState | None, SettingScores]:
        """The state, if it is not deleted, and the scores of a trial that was trained before."""
        scores, folder = read_scores(trial.scores_file, self._federation), trial.storage.folder
        if not scores.keys() <= set(group):
            raise InputError(f"{trial.scores_file} has scores of other settings; start again in another folder")
        return RunFolder(folder).latest() if folder is not None and folder.exists() else None, scores

    def test(self, stage: Stage, names: Sequence[str]) -> dict[str, SeedScores]:
        """The scores of settings on test data after a stage, whose models are not deleted yet."""
        by_seed = {seed: self._test_seed(stage, names, seed) for seed in self._tuned.seeds}
        return {name: {seed: scores[name] for seed, scores in by_seed.items()} for name in names}

    def _test_seed(self, stage: Stage, names: Sequence[str], seed: int) -> SettingScores:
        path = None if self._storage.folder is None else self._storage.folder / f"test-seed-{seed}.safetensors"
        if path is not None and self.ended:
            return read_scores(path, self._federation)
        scores: SettingScores = {}
        for name in names:
            candidate = self._candidates[name]
            prepared = self._tuned.prepare(seed, [candidate.method], candidate.settings)
            scores |= score(prepared, self._states[stage.number, name, seed], "test", outputs=self._outputs)
        if path is not None:
            write_scores(path, scores)
        return scores

    def delete_models(self, stage: Stage) -> None:
        """Delete the models of a stage, in memory and in files; its scores stay."""
        self._states = {key: state for key, state in self._states.items() if key[0] != stage.number}
        folder = None if self._storage.folder is None else self._storage.folder / f"stage-{stage.number}"
        for path in folder.iterdir() if folder is not None and folder.exists() else ():
            if path.is_dir():
                shutil.rmtree(path)

    # -- trials as tasks of a Ray cluster ------------------------------------------------------------------------------

    def _train_on_cluster(self, stage: Stage, groups: Sequence[Sequence[str]]) -> None:
        """On a cluster, train what is not finished in parallel; `train` then reads its scores."""
        settings, folder = self._candidates[groups[0][0]].settings if groups else None, self._storage.folder
        if folder is None or settings is None or not settings.on_cluster:
            return
        all_trials = {
            f"{group[0]}, seed {seed}": self._trial(stage, group, seed)
            for group in groups
            for seed in self._tuned.seeds
        }
        trials = {name: trial for name, trial in all_trials.items() if not trial.is_finished}
        if len(trials) < 2:  # one alone has its clients trained in parallel
            return
        folder.mkdir(parents=True, exist_ok=True)
        shown = 0.0

        def on_progress(running: Mapping[str, TaskProgress], done: int, total: int) -> None:
            nonlocal shown
            self._check_time()
            if running and time.monotonic() - shown >= _NOTICE_SECONDS:
                shown = time.monotonic()
                self._notice(describe_tasks(running, done, total))

        with connected(settings.cluster or "local") as ray:
            check_shared(ray, folder.absolute())
            with tensors_as_arrays():
                tuned = ray.put(self._tuned)
                # references in a list, which Ray passes as it is, so that tasks do not wait for them
                tasks = {name: partial(_train_task, [tuned, ray.put(t.as_task())]) for name, t in trials.items()}
            gpu = pick_device(settings.device).type == "cuda"
            run_tasks(ray, tasks, gpu=gpu, notice=self._notice, on_progress=on_progress)


def _train_task(references: Sequence[Any], report: Report, notice: Notice) -> None:
    import ray

    tuned, trial = (ray.get(reference) for reference in references)
    train_trial(tuned, trial, lambda r: report(r.number, trial.until, ""), notice)


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
    others.
    """
    federation, device = prepared.federation, prepared.device
    with one_thread(device), fp32_deterministic(device):
        evaluator = Evaluator(federation, prepared.net.to(device), prepared.parts, device, split)
        found = evaluator.all_counts(prepared.methods, state)
        predicted = {m.name: evaluator.predictions(m, state) for m in prepared.methods} if outputs else {}
    total, columns, scores = evaluator.total, _groupings(federation), {}
    _, labels, clients = federation.evaluation(split)
    sizes = labels.bincount(minlength=federation.classes) if outputs else torch.zeros(0)
    rarer = torch.tensor(-1) if len(sizes) != 2 else (sizes[0] >= sizes[1]).long()
    for name, counts in found.items():
        of_samples = ClientOutputs(predicted[name], labels, clients, rarer) if outputs else None
        groups = counts.by_grouping(total, columns) if columns else {}
        scores[name] = ScoreTable(counts.evaluated, total, groups, of_samples)
        trained = ~counts.never_selected
        if split == "validation" and counts.personal is not None and total[trained].any():
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
