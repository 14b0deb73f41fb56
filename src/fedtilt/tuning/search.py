"""The search: settings in stages, many trained together, weak ones stopped early, until the end or the budget's."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedtilt.errors import InputError
from fedtilt.executors.devices import pick_device
from fedtilt.runs.callback import Callback, RunStart, SearchProgress, started
from fedtilt.simulation import Round
from fedtilt.storage.provenance import settings_of
from fedtilt.tuning.axes import Setting, format_setting, grid, texts_of
from fedtilt.tuning.decision import ranked
from fedtilt.tuning.halving import Rung, rungs
from fedtilt.tuning.objectives import values_of
from fedtilt.tuning.plan import Plan
from fedtilt.tuning.sampler import Sampler, distributions
from fedtilt.tuning.subject import Recipe, Subject, candidate_name
from fedtilt.tuning.trainer import OutOfTime, SeedScores, Stage, Trainer
from fedtilt.tuning.training import Storage

_TOGETHER = 16  # settings that are sampled at a time, and that train together with the user's own
_TOGETHER_ON_GPU = 64  # a GPU trains many models in nearly the time of few
_BYTES_TOGETHER = 4 * 2**30  # the most for the models of settings that train together
_FIRST_SHARE = 0.25  # of the budget, for the first stage
_ROUND_SHARE = 0.1  # of the budget, at most, for a round of settings that train together on a CPU
_SAFETY = 0.9  # of the budget, for training; the rest is for comparing settings


class Search:
    """A search, in memory or in a folder, where it goes on after a kill.

    Args:
        subject: the method that is tuned
        plan: what the search is about
        storage: where checkpoints are written
        callback: called after every round and every stage, and with messages for the user
    """

    def __init__(self, subject: Subject, plan: Plan, storage: Storage, callback: Callback) -> None:
        self.subject, self.plan, self.yours = subject, plan, subject.name
        objectives = [*plan.front, *(constraint.objective for constraint in plan.constraints)]
        self.objectives = list({objective.name: objective for objective in objectives}.values())
        self.settings: dict[str, Setting] = {}  # name → setting; the first is the user's
        self.impossible: dict[str, str] = {}  # name → why
        self.stages: list[Stage] = []
        self.out_of_time = False
        self._recipes: dict[str, Recipe] = {}
        self._callback, self._notice = callback, callback.on_notice
        self._folder = storage.folder
        self._add(subject.yours)
        self.rounds = self._recipes[self.yours].settings.rounds
        if plan.sampled:
            distributions(plan.axes)  # refuses ranges that cannot be sampled
        else:
            self._add_grid()
        count = plan.trials if plan.sampled else len(self.settings) - 1
        self._rungs = rungs(count, self.rounds, halving=plan.halving)
        self._trainer = Trainer(subject, self._recipes, storage, self._on_round, self._check_time, self._notice)
        self._started = self._last_round = time.monotonic()
        self._trained = 0  # rounds of single settings in this process

    # -- settings ------------------------------------------------------------------------------------------------------

    def _add(self, setting: Setting) -> str:
        """Make a setting a candidate, and return its name; an impossible one is an InputError."""
        name = candidate_name(self.subject, setting)
        if name not in self.settings:
            recipe = self.subject.recipe(setting)
            self._recipes[name] = recipe._replace(method=replace(recipe.method, name=name))
            self.settings[name] = dict(setting)
        return name

    def _add_grid(self) -> None:
        """Add every combination; impossible ones are left out, but a value that is possible in none is refused."""
        possible: set[tuple[str, Any]] = set()
        reasons: dict[tuple[str, Any], InputError] = {}
        for setting in grid(self.plan.axes):
            try:
                self._add(setting)
                possible |= set(setting.items())
            except InputError as error:
                self.impossible[candidate_name(self.subject, setting)] = str(error)
                reasons |= {pair: error for pair in setting.items() if pair not in reasons}
        for pair, reason in reasons.items():
            if pair not in possible:
                raise reason
        if len(self.settings) == 1:
            values = format_setting(self.settings[self.yours])
            raise InputError(
                f"over {values} is the setting that {self.yours} has; give other values to compare it with"
            )

    def _sample(self, sampler: Sampler, start: int, stop: int) -> list[str]:
        """The names of the sampled settings with these numbers; empty for those that are not possible."""
        names = []
        for setting in sampler.ask(start, stop):
            try:
                names.append(self._add(setting))
            except InputError as error:
                self.impossible[candidate_name(self.subject, setting)] = str(error)
                names.append("")
        return names

    # -- stages --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Search to the end, or until the budget is spent."""
        with started(self._callback, self._start()):
            self._run_stages()
        if self.impossible:
            name, reason = next(iter(self.impossible.items()))
            count = len(self.impossible)
            left_out = f"1 setting, {name!r}, is" if count == 1 else f"{count} settings, such as {name!r}, are"
            self._notice(f"{left_out} not possible and left out: {reason}")
        if not self.out_of_time and not self.stages[-1].scores:
            raise InputError(f"every setting of {self.yours} diverged; lower lr (train.lr in a spec) or the tilts")

    def test(self, names: Sequence[str]) -> dict[str, SeedScores]:
        """The scores of settings that were compared, on test data."""
        return self._trainer.test(self.compared, [name for name in names if name in self.compared.scores])

    def end(self) -> None:
        """Delete all models; a search that has ended gives its result again, and nothing else."""
        self._trainer.ended = True
        self._trainer.save()  # before the models are deleted
        for stage in self.stages:
            self._trainer.delete_models(stage)

    def _start(self) -> RunStart:
        recipe, federation, seed = self._recipes[self.yours], self.subject.federation, self.subject.seeds[0]
        settings = {
            **settings_of([recipe.method], recipe.settings),
            "data": federation.dataset.name,
            "clients": federation.clients,
            "outliers": federation.outliers.to_json(),
            "search": {"over": texts_of(self.plan.axes), "by": self.plan.by.name, "seeds": len(self.subject.seeds)},
        }
        return RunStart(seed=seed, round=0, rounds=self.rounds, settings=settings, folder=self._folder)

    def _run_stages(self) -> None:
        try:
            self._first_stage(self._rungs[0].rounds)
            self._report_scores()
            for rung in self._rungs[1:]:
                self._next_stage(rung)
                self._report_scores()
        except OutOfTime:
            self.out_of_time = True

    def _report_scores(self) -> None:
        stage = self.stages[-1]
        self._callback.on_scores(stage.rounds, {name: self.values(scores) for name, scores in stage.scores.items()})

    def _first_stage(self, until: int) -> None:
        self.stages.append(Stage(1, until, {}))
        done = 0
        for names in self._batches():
            if done == self._trainer.batches or self._first_share_is_spent():
                tried = len(self.stages[0].scores)
                self._notice(f"{tried} settings were tried; the rest of the budget is for training the best further")
                break
            self._train(names)
            done += 1
        self._trainer.batches = done
        self._trainer.save()

    def _first_share_is_spent(self) -> bool:
        is_over = self._trainer.batches is not None  # in an earlier process
        if is_over or self.plan.budget is None or len(self.stages[0].scores) < 2:  # the user's alone is no comparison
            return False
        return self.seconds > _FIRST_SHARE * self.plan.budget

    def _batches(self) -> Iterator[Sequence[str]]:
        """Settings in the order in which they are tried; Optuna learns the values of a batch before it samples more."""
        first, *others = self.settings  # of a sampled search, the user's alone
        if self.plan.budget is not None:
            yield [first]  # its time says how many others a round has time for
        if not self.plan.sampled:
            yield from self._batched([first, *others] if self.plan.budget is None else others)
            return
        objectives = self.plan.front
        file = None if self._trainer.folder is None else self._trainer.folder / "study.journal"
        sampler = Sampler(
            self.plan.axes, [o.higher_is_better for o in objectives], file, self.subject.seeds[0], _TOGETHER
        )
        at_once = _TOGETHER if self.plan.budget is None else min(_TOGETHER, self._together)
        for start in range(0, self.plan.trials, at_once):
            names = self._sample(sampler, start, min(start + at_once, self.plan.trials))
            with_first = [first, *names] if start == 0 else names
            yield [name for name in dict.fromkeys(with_first) if name and name not in self.stages[0].scores]
            for number, name in enumerate(names, start):
                values = self.values(self.stages[0].scores[name]) if name in self.stages[0].scores else None
                violations = {str(c): c.violation(values[c.objective.name]) for c in self.plan.constraints if values}
                sampler.tell(number, None if values is None else [values[o.name] for o in objectives], violations)

    def _next_stage(self, rung: Rung) -> None:
        """Train the user's setting and the best of the others further."""
        before = self.stages[-1]
        best = [name for name in self.order(before) if name != self.yours][: rung.settings]
        names = [name for name in (self.yours, *best) if name in before.scores]
        planned = self._trainer.rounds[before.number - 1 :]  # of this stage and later ones, by an earlier process
        until = planned[0] if planned else self._affordable(rung.rounds, before.rounds, len(names))
        if until <= before.rounds:
            raise OutOfTime
        if not planned:
            self._trainer.rounds.append(until)
            self._trainer.save()
        self.stages.append(Stage(before.number + 1, until, {}))
        self._train(names)
        for stage in self.stages[:-1]:
            if stage is not self.compared:
                self._trainer.delete_models(stage)

    def _train(self, names: Sequence[str]) -> None:
        """Train settings to the end of the last stage."""
        for batch in self._batched(names):
            self._trainer.train(self.stages[-1], batch)

    def _batched(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        together = self._together if len(names) > 1 else 1  # the first alone is trained before it is known
        for start in range(0, len(names), together):
            yield names[start : start + together]

    @property
    def _together(self) -> int:
        """How many settings train together: a search that goes on reads scores and models of the same batches."""
        if self._trainer.together is None:
            self._trainer.together = self._fitting_together()
            self._trainer.save()
        return self._trainer.together

    def _fitting_together(self) -> int:
        """How many settings fit into memory and, with a budget, into the time of a round."""
        settings = self._recipes[self.yours].settings
        on_gpu = pick_device(settings.device).type == "cuda" and not settings.on_cluster
        most = 1 + (_TOGETHER_ON_GPU if on_gpu and self.plan.budget is None else _TOGETHER)
        if self.plan.budget is not None and self._trained and not on_gpu:  # which trains many in the time of few
            most = min(most, int(_ROUND_SHARE * self.plan.budget / self._seconds_per_round))
        return max(1, min(most, _BYTES_TOGETHER // self._trainer.model_bytes(self.yours)))

    @property
    def _seconds_per_round(self) -> float:
        """How long a round of one setting takes in this process."""
        return (time.monotonic() - self._started) / self._trained

    def _affordable(self, until: int, start: int, settings: int) -> int:
        """The round that so many settings reach within the budget, at most `until`."""
        if self.plan.budget is None or not self._trained:
            return until
        round_seconds = self._seconds_per_round * settings * len(self.subject.seeds)
        rounds = (_SAFETY * self.plan.budget - self.seconds) / round_seconds
        return min(until, start + max(0, int(rounds)))

    # -- values and clock ----------------------------------------------------------------------------------------------

    def order(self, stage: Stage) -> list[str]:
        """The settings of a stage, the best on validation data first."""
        values = {name: self.values(scores) for name, scores in stage.scores.items()}
        return ranked(values, self.plan.by, self.plan.main, self.plan.constraints)

    def values(self, scores: SeedScores) -> dict[str, float]:
        """The objectives of a setting, mean over seeds."""
        return values_of(scores, self.objectives)

    @property
    def compared(self) -> Stage:
        """The last stage that has the user's setting and another one; if there is none, the first."""
        complete = [
            stage
            for stage in self.stages
            if (self.yours in stage.scores or self.yours in self.diverged) and set(stage.scores) - {self.yours}
        ]
        return complete[-1] if complete else self.stages[0]

    @property
    def diverged(self) -> Mapping[str, int]:
        """Settings that diverged, and in which stage."""
        return self._trainer.diverged

    @property
    def trained_rounds(self) -> int:
        """Rounds of single settings in all stages, per seed."""
        starts = [0, *(stage.rounds for stage in self.stages)]
        return sum(
            len(stage.scores) * (stage.rounds - start) for start, stage in zip(starts, self.stages, strict=False)
        )

    @property
    def seconds(self) -> float:
        """How long the search has taken, in earlier processes too."""
        return self._trainer.seconds

    def _on_round(self, r: Round) -> None:
        now, together = time.monotonic(), len(r.state.server)
        last, self._last_round = now - self._last_round, now
        self._trained += together
        starts = [0, *(rung.rounds for rung in self._rungs)]
        planned = sum(
            (rung.settings + 1) * (rung.rounds - start) for start, rung in zip(starts, self._rungs, strict=False)
        )
        done = self._trained / (planned * len(self.subject.seeds))
        stage = self.stages[-1]
        self._callback.on_search(
            SearchProgress(stage.number, len(self._rungs), together, r.number, stage.rounds, min(1.0, done))
        )
        self._check_time(last)

    def _check_time(self, needed: float = 0.0) -> None:
        """Stop the search if so many seconds more are beyond the budget."""
        if self.plan.budget is not None and self.seconds + needed > _SAFETY * self.plan.budget:
            raise OutOfTime
