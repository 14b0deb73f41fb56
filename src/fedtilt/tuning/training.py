"""Train the settings of a search stage by stage: those with the same training settings together, here or on a cluster.

In a folder, search/stage-2/0-seed-1.safetensors has the scores of some settings after stage 2, and the folder of the
same name their models, until the next stage is over. Settings that diverged have no scores.
search/test-seed-1.safetensors has the scores on test data at the end.
"""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from fedtilt.cluster.connection import connected, tensors_as_arrays
from fedtilt.cluster.tasks import Report, TaskProgress, check_shared, describe_tasks, run_tasks
from fedtilt.data import Federation
from fedtilt.devices import pick_device
from fedtilt.engine.client_states import FederationState
from fedtilt.errors import InputError
from fedtilt.simulation import Round
from fedtilt.storage.run_folder import Notice, RunFolder
from fedtilt.tuning.objectives import SeedScores
from fedtilt.tuning.trial import SettingScores, Storage, Trial, read_scores, score, train_trial, write_scores
from fedtilt.tuning.tuned_method import Candidate, TunedMethod

_NOTICE_SECONDS = 30.0  # between two messages about the tasks of a cluster


class OutOfTime(Exception):
    """The budget is spent."""


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

    def _trial(self, stage: Stage, names: Sequence[str], seed: int, part: str = "") -> Trial:
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

    def _finished(self, trial: Trial, group: Sequence[str]) -> tuple[FederationState | None, SettingScores]:
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
