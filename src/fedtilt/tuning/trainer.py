"""Trains the settings of a search, stage by stage: those with the same training settings together, seed by seed.

In a folder, search/stage-2/0-seed-1.safetensors has the scores of some settings after stage 2, and the folder of the
same name their models, until the next stage is over. search/test-seed-1.safetensors has the scores on test data at the
end. search/progress.json has what a search that goes on has to know: the settings that diverged, and what the budget
has decided.
"""

import copy
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedtilt.engine.client_states import FederationState
from fedtilt.engine.memory import models_kept
from fedtilt.errors import Diverged
from fedtilt.files import read_json, write_json
from fedtilt.models import trained_parameters
from fedtilt.simulation import Round
from fedtilt.storage.run_folder import Notice, RunFolder
from fedtilt.tuning.cluster_trials import Trial, settings_in_task, train_trials_on_cluster
from fedtilt.tuning.objectives import Scores
from fedtilt.tuning.subject import Recipe, Subject
from fedtilt.tuning.training import (
    SettingScores,
    Storage,
    groupings_of,
    read_scores,
    score_on_test,
    train_until,
    write_scores,
)

SeedScores = Mapping[int, Scores]  # seed → scores of one setting


class OutOfTime(Exception):
    """The budget is spent."""


class Stage(NamedTuple):
    """Settings that are compared after the same number of rounds."""

    number: int  # from 1
    rounds: int
    scores: dict[str, SeedScores]  # setting → those on validation data, if it was trained on all seeds


class Trainer:
    """Trains settings, and remembers where each of them stopped.

    Args:
        subject: the method that is tuned
        recipes: name of a setting → what it means; settings may be added later
        storage: where checkpoints are written
        on_round: called after every round
        check_time: called while tasks of a cluster train; raises `OutOfTime` when the budget is spent
        notice: called with messages for the user
    """

    def __init__(
        self, subject: Subject, recipes: Mapping[str, Recipe], storage: Storage, on_round: Callable[[Round], None],
        check_time: Callable[[], None], notice: Notice,
    ) -> None:  # fmt: skip
        self._subject, self._recipes, self._storage = subject, recipes, storage
        self._on_round, self._check_time, self._notice = on_round, check_time, notice
        self._states: dict[tuple[int, str, int], FederationState] = {}  # (stage, setting, seed) → where it stopped
        self.folder = None if storage.folder is None else storage.folder / "search"
        record = read_json(self._record) if self._record and self._record.exists() else {}
        self.diverged: dict[str, int] = dict(record.get("diverged", {}))  # setting → number of the stage
        self.together: int | None = record.get("together")  # settings that train together; None: not known yet
        self.batches: int | None = record.get("batches")  # of the first stage; None: it is not over
        self.rounds: list[int] = list(record.get("rounds", []))  # of the stages after the first, so far
        self.ended: bool = record.get("ended", False)  # whether the search is over, and its models are deleted
        self._seconds_before = float(record.get("seconds", 0.0))  # of this search, in earlier processes
        self._started = time.monotonic()

    @property
    def _record(self) -> Path | None:
        return None if self.folder is None else self.folder / "progress.json"

    @property
    def seconds(self) -> float:
        """How long the search has taken, in earlier processes too."""
        return self._seconds_before + time.monotonic() - self._started

    def save(self) -> None:
        """Write what a search that goes on has to know."""
        if self._record is not None:
            keys = ("seconds", "diverged", "together", "batches", "rounds", "ended")
            write_json(self._record, {key: getattr(self, key) for key in keys})

    def model_bytes(self, name: str) -> int:
        """The memory for the models of one setting in a round."""
        recipe = self._recipes[name]
        prepared = self._subject.prepare(self._subject.seeds[0], [recipe.method], recipe.settings)
        clients = recipe.settings.clients_per_round(prepared.federation.clients)
        parameters = sum(p.numel() for p in trained_parameters(prepared.net).values())
        return 4 * parameters * models_kept([recipe.method], recipe.settings, clients=clients, workers=0)

    def train(self, stage: Stage, names: Sequence[str]) -> None:
        """Train settings to the end of a stage, and add their scores to it."""
        groups: list[list[str]] = []
        for name in names:
            same = [group for group in groups if self._recipes[group[0]].settings == self._recipes[name].settings]
            if same:
                same[0].append(name)
            else:
                groups.append([name])
        try:
            self._train_on_cluster(stage, groups)
        except OutOfTime:
            for group in groups:
                if all(self._is_finished(stage, group, seed) for seed in self._subject.seeds):
                    self._train_group(stage, group)
            raise
        for group in groups:
            self._train_group(stage, group)

    def _train_group(self, stage: Stage, group: Sequence[str]) -> None:
        """Train settings together on all seeds, and add the scores of those that do not diverge."""
        by_seed = {seed: self._train_seed(stage, group, seed) for seed in self._subject.seeds}
        for name in group:
            if all(name in scores for scores in by_seed.values()):
                stage.scores[name] = {seed: scores[name] for seed, scores in by_seed.items()}
        self.save()

    def _train_on_cluster(self, stage: Stage, groups: Sequence[Sequence[str]]) -> None:
        """On a cluster, train what is not finished in parallel; `train` then reads its scores."""
        settings = self._recipes[groups[0][0]].settings if groups else None
        if self.folder is None or settings is None or not settings.on_cluster:
            return
        trials = {
            f"{group[0]}, seed {seed}": (group, seed)
            for group in groups
            for seed in self._subject.seeds
            if not self._is_finished(stage, group, seed)
        }
        if len(trials) > 1:  # one alone has its clients trained in parallel
            self.folder.mkdir(parents=True, exist_ok=True)
            trainer = _TaskTrainer(copy.copy(self), stage)
            self.diverged |= train_trials_on_cluster(
                trainer, trials, self.folder.absolute(), settings, stage.rounds, self._check_time, self._notice
            )

    def _trial_folder(self, stage: Stage, group: Sequence[str], seed: int) -> Path:
        assert self.folder is not None
        part = list(self._recipes).index(group[0])  # names the group
        return self.folder / f"stage-{stage.number}" / f"{part}-seed-{seed}"

    def _is_finished(self, stage: Stage, group: Sequence[str], seed: int) -> bool:
        return self._trial_folder(stage, group, seed).with_suffix(".safetensors").exists()

    def _left(self, names: Sequence[str], stage: Stage) -> list[str]:
        """Those that have not diverged up to a stage."""
        return [name for name in names if self.diverged.get(name, math.inf) > stage.number]

    def _train_seed(self, stage: Stage, group: Sequence[str], seed: int) -> SettingScores:
        """Train settings together on one seed; what diverges is left out, and the others start this stage again."""
        folder = None
        if self.folder is not None:
            folder = self._trial_folder(stage, group, seed)
            if (done := folder.with_suffix(".safetensors")).exists():
                return self._finished(stage, folder, done, seed)
        if self.ended:
            raise OutOfTime
        while names := self._left(group, stage):
            settings = self._recipes[names[0]].settings
            prepared = self._subject.prepare(seed, [self._recipes[name].method for name in names], settings)
            before = {name: self._states.get((stage.number - 1, name, seed)) for name in names}
            starts = {name: state for name, state in before.items() if state is not None}
            try:
                state, scores = train_until(
                    prepared, stage.rounds, starts, self._storage._replace(folder=folder), self._on_round, self._notice
                )
            except Diverged as error:
                self.diverged |= dict.fromkeys(error.methods, stage.number)
                self._notice(f"{error}; going on without {'it' if len(error.methods) == 1 else 'them'}")
                self.save()  # before the folder: after a kill in between, a resume completes it
                if folder is not None and folder.exists():
                    shutil.rmtree(folder)
                continue
            if folder is not None:
                write_scores(folder.with_suffix(".safetensors"), scores)
            self._states |= {(stage.number, name, seed): state for name in names}
            return scores
        return {}

    def _finished(self, stage: Stage, folder: Path, done: Path, seed: int) -> SettingScores:
        """The scores of settings that were trained in an earlier process, whose models are used again."""
        scores = read_scores(done, groupings_of(self._subject.federation))
        if folder.exists() and (state := RunFolder(folder).latest()) is not None:
            self._states |= {(stage.number, name, seed): state for name in scores}
        return scores

    def test(self, stage: Stage, names: Sequence[str]) -> dict[str, SeedScores]:
        """The scores of settings on test data after a stage, whose models are not deleted yet."""
        by_seed = {seed: self._test_seed(stage, names, seed) for seed in self._subject.seeds}
        return {name: {seed: scores[name] for seed, scores in by_seed.items()} for name in names}

    def _test_seed(self, stage: Stage, names: Sequence[str], seed: int) -> SettingScores:
        path = None if self.folder is None else self.folder / f"test-seed-{seed}.safetensors"
        if path is not None and self.ended:
            return read_scores(path, groupings_of(self._subject.federation))
        scores: SettingScores = {}
        for name in names:
            recipe = self._recipes[name]
            prepared = self._subject.prepare(seed, [recipe.method], recipe.settings)
            scores |= score_on_test(prepared, self._states[stage.number, name, seed])
        if path is not None:
            write_scores(path, scores)
        return scores

    def delete_models(self, stage: Stage) -> None:
        """Delete the models of a stage, in memory and in files; its scores stay."""
        self._states = {key: state for key, state in self._states.items() if key[0] != stage.number}
        folder = None if self.folder is None else self.folder / f"stage-{stage.number}"
        for path in folder.iterdir() if folder is not None and folder.exists() else ():
            if path.is_dir():
                shutil.rmtree(path)


class _TaskTrainer:
    """A copy of a trainer for a task of a cluster, where every setting trains in one process."""

    def __init__(self, trainer: Trainer, stage: Stage) -> None:
        trainer._recipes = {
            name: recipe._replace(settings=settings_in_task(recipe.settings))
            for name, recipe in trainer._recipes.items()
        }
        # those of this process do not travel
        trainer._on_round, trainer._check_time, trainer._notice = _ignore, _ignore, _ignore
        trainer.folder = None if trainer.folder is None else trainer.folder.absolute()
        trainer.diverged = dict(trainer.diverged)
        self._trainer, self._stage = trainer, stage

    @property
    def diverged(self) -> dict[str, int]:
        """The settings that diverged → the number of the stage."""
        return self._trainer.diverged

    def train_trial(self, trial: Trial, on_round: Callable[[Round], None], notice: Notice) -> None:
        """Train it, and write its scores into the folder of the search."""
        self._trainer._on_round, self._trainer._notice = on_round, notice
        self._trainer._train_seed(self._stage, *trial)


def _ignore(*_: object) -> None:
    """No-op."""
