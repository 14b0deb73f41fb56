"""The search: settings in stages, many trained together, weak ones stopped early, until the end or the budget's."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedtilt.devices import pick_device
from fedtilt.engine.prepare import models_kept
from fedtilt.errors import InputError
from fedtilt.files import read_json, write_json
from fedtilt.models import trained_parameters
from fedtilt.runs.callback import Callback, RunStart, SearchProgress, started
from fedtilt.simulation import Round
from fedtilt.storage.provenance import recorded_settings
from fedtilt.tuning.axes import Setting, format_setting, grid, texts_of
from fedtilt.tuning.decision import ranked
from fedtilt.tuning.objectives import SeedScores, values_of
from fedtilt.tuning.plan import Plan, Rung, cost, rungs
from fedtilt.tuning.sampler import Sampler, distributions
from fedtilt.tuning.training import OutOfTime, Stage, Trainer
from fedtilt.tuning.trial import Storage
from fedtilt.tuning.tuned_method import Candidate, TunedMethod

_TOGETHER = 16  # settings that are sampled at a time, and that train together with the current one
_TOGETHER_ON_GPU = 64  # a GPU trains many models in nearly the time of few
_BYTES_TOGETHER = 4 * 2**30  # the most for the models of settings that train together
_FIRST_SHARE = 0.25  # of the budget, for the first stage
_ROUND_SHARE = 0.1  # of the budget, at most, for a round of settings that train together on a CPU
_SAFETY = 0.9  # of the budget, for training; the rest is for comparing settings


@dataclass
class Progress:
    """What a search that is resumed has to know, as search/progress.json."""

    seconds: float = 0.0  # of training so far
    together: int | None = None  # settings that train together; None: not known yet
    batches: int | None = None  # of the first stage; None: it is not over
    rounds: list[int] = field(default_factory=list)  # of the stages after the first, so far
    ended: bool = False  # whether the search is over, and its models are deleted


class Search:
    """A search, in memory or in a folder, where it continues after a kill."""

    def __init__(self, tuned: TunedMethod, plan: Plan, storage: Storage, callback: Callback) -> None:
        self.tuned, self.plan = tuned, plan
        objectives = [*plan.front, *(constraint.objective for constraint in plan.constraints)]
        self.objectives = list({objective.name: objective for objective in objectives}.values())
        self.settings: dict[str, Setting] = {}  # name → setting; the first is the current one
        self.impossible: dict[str, str] = {}  # name → why
        self.stages: list[Stage] = []
        self.out_of_time = False
        self._candidates: dict[str, Candidate] = {}
        self._callback, self._notice = callback, callback.on_notice
        if not self._add(tuned.current):
            raise InputError(self.impossible[tuned.name])
        self.rounds = self._candidates[tuned.name].settings.rounds
        if plan.sampled:
            distributions(plan.axes)  # raises InputError for axes that cannot be sampled
        else:
            self._add_grid()
        count = plan.trials if plan.sampled else len(self.settings) - 1
        self._rungs = rungs(count, self.rounds, halving=plan.halving)
        self._run_folder, folder = storage.folder, None if storage.folder is None else storage.folder / "search"
        self._file = None if folder is None else folder / "progress.json"
        self._progress = Progress(**read_json(self._file)) if self._file and self._file.exists() else Progress()
        self._trainer = Trainer(
            tuned,
            self._candidates,
            storage._replace(folder=folder),
            self._on_round,
            self._check_time,
            self._notice,
            outputs=plan.needs_outputs,
        )
        self._trainer.ended = self._progress.ended
        self._seconds_before, self._started = self._progress.seconds, time.monotonic()
        self._last_round = self._started
        self._trained = 0  # rounds of single settings in this process

    # -- settings ------------------------------------------------------------------------------------------------------

    def _add(self, setting: Setting) -> str:
        """Make a setting a candidate, and return its name; empty if it is not possible, which is noted."""
        name = self.tuned.candidate_name(setting)
        if name not in self.settings:
            try:
                candidate = self.tuned.candidate(setting)
            except InputError as error:
                self.impossible[name] = str(error)
                return ""
            self._candidates[name] = candidate._replace(method=replace(candidate.method, name=name))
            self.settings[name] = dict(setting)
        return name

    def _add_grid(self) -> None:
        """Add every combination; impossible ones are skipped, but a value that no possible one has is an error."""
        possible: set[tuple[str, Any]] = set()
        reasons: dict[tuple[str, Any], str] = {}
        for setting in grid(self.plan.axes):
            if self._add(setting):
                possible |= set(setting.items())
            else:
                reason = self.impossible[self.tuned.candidate_name(setting)]
                reasons |= {pair: reason for pair in setting.items() if pair not in reasons}
        for pair, reason in reasons.items():
            if pair not in possible:
                raise InputError(reason)
        if len(self.settings) == 1:
            values = format_setting(self.tuned.current)
            raise InputError(
                f"over {values} is the setting that {self.tuned.name} has; give other values to compare it with"
            )

    # -- stages --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Search to the end, or until the budget is spent."""
        with started(self._callback, self._start()):
            try:
                for rung in self._rungs:
                    if self.stages:
                        self._next_stage(rung)
                    else:
                        self._first_stage(rung.rounds)
                    stage = self.stages[-1]
                    values = {name: self.values(scores) for name, scores in stage.scores.items()}
                    self._callback.on_scores(stage.rounds, values)
            except OutOfTime:
                self.out_of_time = True
        if self.impossible:
            name, reason = next(iter(self.impossible.items()))
            count = len(self.impossible)
            skipped = f"1 setting, {name!r}, is" if count == 1 else f"{count} settings, such as {name!r}, are"
            self._notice(f"{skipped} not possible and skipped: {reason}")
        if not self.out_of_time and not self.stages[-1].scores:
            raise InputError(f"every setting of {self.tuned.name} diverged; lower lr (train.lr in a spec) or the tilts")

    def _start(self) -> RunStart:
        candidate, seed = self._candidates[self.tuned.name], self.tuned.seeds[0]
        federation = self.tuned.federation(seed)
        settings = {
            **recorded_settings([candidate.method], candidate.settings),
            "data": federation.dataset.name,
            "clients": federation.clients,
            "outliers": federation.outliers.to_json(),
            "search": {"over": texts_of(self.plan.axes), "by": self.plan.by.name, "seeds": len(self.tuned.seeds)},
        }
        return RunStart(seed=seed, round=0, rounds=self.rounds, settings=settings, folder=self._run_folder)

    def _first_stage(self, until: int) -> None:
        self.stages.append(Stage(1, until, {}))
        done = 0
        for names in self._batches():
            if done == self._progress.batches or self._first_share_is_spent():
                tried = len(self.stages[0].scores)
                self._notice(f"{tried} settings were tried; the rest of the budget is for training the best further")
                break
            self._train(names)
            done += 1
        self._progress.batches = done
        self._save()

    def _first_share_is_spent(self) -> bool:
        is_over = self._progress.batches is not None  # in an earlier process
        if is_over or self.plan.budget is None or len(self.stages[0].scores) < 2:  # one alone is no comparison
            return False
        return self.seconds > _FIRST_SHARE * self.plan.budget

    def _batches(self) -> Iterator[Sequence[str]]:
        """Settings in the order in which they are tried; Optuna learns the values of a batch before it samples more."""
        first, *others = self.settings  # of a sampled search, the current one alone
        if self.plan.budget is not None:
            yield [first]  # its time says how many others a round has time for
        if not self.plan.sampled:
            yield from self._batched([first, *others] if self.plan.budget is None else others)
            return
        objectives, scores = self.plan.front, self.stages[0].scores
        directions = [objective.higher_is_better for objective in objectives]
        sampler = Sampler(self.plan.axes, directions, self.tuned.seeds[0], _TOGETHER)
        at_once = _TOGETHER if self.plan.budget is None else min(_TOGETHER, self._together)
        for start in range(0, self.plan.trials, at_once):
            names = [self._add(s) for s in sampler.ask(min(at_once, self.plan.trials - start))]
            with_first = [first, *names] if start == 0 else names
            yield [name for name in dict.fromkeys(with_first) if name and name not in scores]
            for number, name in enumerate(names, start):
                values = self.values(scores[name]) if name in scores else None
                violations = {str(c): c.violation(values[c.objective.name]) for c in self.plan.constraints if values}
                sampler.tell(number, None if values is None else [values[o.name] for o in objectives], violations)

    def _next_stage(self, rung: Rung) -> None:
        """Train the current setting and the best of the others further."""
        before = self.stages[-1]
        values = {name: self.values(scores) for name, scores in before.scores.items()}
        order = ranked(values, self.plan.by, self.plan.main, self.plan.constraints)
        best = [name for name in order if name != self.tuned.name][: rung.settings]
        names = [name for name in (self.tuned.name, *best) if name in before.scores]
        planned = self._progress.rounds[before.number - 1 :]  # of this stage and later ones, by an earlier process
        until = planned[0] if planned else self._affordable(rung.rounds, before.rounds, len(names))
        if until <= before.rounds:
            raise OutOfTime
        if not planned:
            self._progress.rounds.append(until)
            self._save()
        self.stages.append(Stage(before.number + 1, until, {}))
        self._train(names)
        for stage in self.stages[:-1]:
            if stage is not self.compared:
                self._trainer.delete_models(stage)

    def _train(self, names: Sequence[str]) -> None:
        """Train settings to the end of the last stage."""
        for batch in self._batched(names):
            self._trainer.train(self.stages[-1], batch)
            self._save()

    def _batched(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        together = self._together if len(names) > 1 else 1  # the first alone is trained before it is known
        for start in range(0, len(names), together):
            yield names[start : start + together]

    @property
    def _together(self) -> int:
        """How many settings train together: a search that is resumed reads scores and models of the same batches."""
        if self._progress.together is None:
            self._progress.together = self._fitting_together()
            self._save()
        return self._progress.together

    def _fitting_together(self) -> int:
        """How many settings fit into memory and, with a budget, into the time of a round."""
        method, settings = self._candidates[self.tuned.name]
        on_gpu = pick_device(settings.device).type == "cuda" and not settings.on_cluster
        most = 1 + (_TOGETHER_ON_GPU if on_gpu and self.plan.budget is None else _TOGETHER)
        if self.plan.budget is not None and self._trained and not on_gpu:  # which trains many in the time of few
            most = min(most, int(_ROUND_SHARE * self.plan.budget / self._seconds_per_round))
        prepared = self.tuned.prepare(self.tuned.seeds[0], [method], settings)
        clients = settings.clients_per_round(prepared.federation.clients)
        parameters = sum(p.numel() for p in trained_parameters(prepared.net).values())
        model_bytes = 4 * parameters * models_kept([method], settings, clients=clients, workers=0)
        return max(1, min(most, _BYTES_TOGETHER // model_bytes))

    @property
    def _seconds_per_round(self) -> float:
        """How long a round of one setting takes in this process."""
        return (time.monotonic() - self._started) / self._trained

    def _affordable(self, until: int, start: int, settings: int) -> int:
        """The round that this number of settings reaches within the budget, at most `until`."""
        if self.plan.budget is None or not self._trained:
            return until
        round_seconds = self._seconds_per_round * settings * len(self.tuned.seeds)
        rounds = (_SAFETY * self.plan.budget - self.seconds) / round_seconds
        return min(until, start + max(0, int(rounds)))

    # -- values and clock ----------------------------------------------------------------------------------------------

    def values(self, scores: SeedScores) -> dict[str, float]:
        """The objectives of a setting, mean over seeds."""
        return values_of(scores, self.objectives)

    @property
    def compared(self) -> Stage:
        """The last stage that has the current setting and another one; if there is none, the first."""
        current = self.tuned.name
        complete = [
            stage
            for stage in self.stages
            if (current in stage.scores or current in self.diverged) and set(stage.scores) - {current}
        ]
        return complete[-1] if complete else self.stages[0]

    @property
    def diverged(self) -> Sequence[str]:
        """Settings that diverged."""
        return self._trainer.diverged

    @property
    def trained_rounds(self) -> int:
        """Rounds of single settings in all stages, per seed."""
        return cost([(len(stage.scores), stage.rounds) for stage in self.stages])

    @property
    def seconds(self) -> float:
        """How long the search has taken, in earlier processes too."""
        return self._seconds_before + time.monotonic() - self._started

    def test(self, names: Sequence[str]) -> dict[str, SeedScores]:
        """The scores of settings that were compared, on test data."""
        return self._trainer.test(self.compared, [name for name in names if name in self.compared.scores])

    def end(self) -> None:
        """Delete all models; a search that has ended gives its result again, and nothing else."""
        self._progress.ended = True
        self._save()  # before the models are deleted
        for stage in self.stages:
            self._trainer.delete_models(stage)

    def _save(self) -> None:
        if self._file is not None:
            self._progress.seconds = self.seconds
            write_json(self._file, vars(self._progress))

    def _on_round(self, r: Round) -> None:
        now, together = time.monotonic(), len(r.state.server)
        last, self._last_round = now - self._last_round, now
        self._trained += together
        planned = cost([(rung.settings + 1, rung.rounds) for rung in self._rungs])
        done = self._trained / (planned * len(self.tuned.seeds))
        stage = self.stages[-1]
        self._callback.on_search(
            SearchProgress(stage.number, len(self._rungs), together, r.number, stage.rounds, min(1.0, done))
        )
        self._check_time(last)

    def _check_time(self, needed: float = 0.0) -> None:
        """Stop the search if this number of seconds more is beyond the budget."""
        if self.plan.budget is not None and self.seconds + needed > _SAFETY * self.plan.budget:
            raise OutOfTime
