"""The result of a search: the recommended setting, why, and all settings with their values on validation data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtilt.evaluation.results import SeedValues
from fedtilt.imports import import_extra
from fedtilt.methods import Method
from fedtilt.tuning.axes import Setting, format_setting, format_value
from fedtilt.tuning.decision import Decision, decide, pareto_front
from fedtilt.tuning.objectives import Objective
from fedtilt.tuning.search import Search


@dataclass(frozen=True, kw_only=True)
class TunedSetting:
    """One setting of a search."""

    setting: Setting
    rounds: int  # after which it was stopped, or compared
    validation: Mapping[str, float]  # objective → value after these rounds
    gain: float | None  # how much better than the current one, by the objective; None: not compared with it
    interval: tuple[float, float] | None  # of the gain, at 95 % for all settings; None: as above, or nothing is known


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What a search found; `print` shows the recommendation.

    `setting` is the recommended one. It is the current one where no other is better beyond chance.
    `ft.run(tuning.methods, federation, model, **tuning.train)` uses it.
    """

    method: str  # the name of the method
    by: Objective
    constraints: tuple[str, ...]
    setting: Setting
    reason: str
    is_possible: bool  # whether a setting keeps the constraints
    methods: tuple[Method, ...]  # all methods that were given, the tuned one with the recommended setting
    train: Mapping[str, Any]  # the training settings that were given, with the recommended setting
    settings: Mapping[str, TunedSetting]  # by name; the current one has the name of the method
    chosen: str
    pareto_front: tuple[str, ...]  # names, among the settings that were compared at the end
    objectives: tuple[Objective, ...]
    rounds: int  # of a full run
    compared_rounds: int  # after which settings were compared
    seeds: tuple[int, ...]
    test: Mapping[str, Mapping[str, tuple[float, ...]]]  # current and chosen → objective → value by seed
    diverged: tuple[str, ...]
    impossible: Mapping[str, str]  # name → why
    trained_rounds: int  # of single settings, per seed
    seconds: float
    out_of_time: bool

    @property
    def is_unchanged(self) -> bool:
        """Whether the recommendation is the setting that the method has."""
        return self.chosen == self.method

    @property
    def saving(self) -> float:
        """The share of the rounds that was saved, compared with training every setting to the end."""
        every = len(self.settings) * self.rounds
        return 1 - self.trained_rounds / every if every else 0.0

    def __str__(self) -> str:
        return f"{self.method}: {format_setting(self.setting)} ({self.reason})"

    def to_pandas(self) -> Any:
        """A table with one row per setting: its values, rounds, objectives, gain and the ends of its interval."""
        pandas = import_extra("pandas", "to_pandas()", "report")
        rows = [
            {**row.setting, "rounds": row.rounds, **row.validation, "gain": row.gain}
            | dict(zip(("low", "high"), row.interval or (None, None), strict=True))
            for row in self.settings.values()
        ]
        return pandas.DataFrame(rows, index=list(self.settings))

    def to_json(self) -> dict[str, Any]:
        """As JSON values; those of settings as text, since JSON has no infinities."""
        plain = ("method", "chosen", "reason", "is_possible", "rounds", "compared_rounds", "trained_rounds", "seconds",
                 "out_of_time")  # fmt: skip
        lists = ("constraints", "pareto_front", "diverged", "seeds")
        settings = {
            name: {
                "setting": {axis: format_value(value) for axis, value in row.setting.items()},
                "rounds": row.rounds,
                "validation": dict(row.validation),
                "gain": row.gain,
                "interval": row.interval and list(row.interval),
            }
            for name, row in self.settings.items()
        }
        return {
            **{name: getattr(self, name) for name in plain},
            **{name: list(getattr(self, name)) for name in lists},
            "by": self.by.name,
            "objectives": [
                {"name": o.name, "title": o.title, "unit": o.unit, "higher_is_better": o.higher_is_better}
                for o in self.objectives
            ],
            "settings": settings,
            "test": {
                name: {key: SeedValues(v).to_json() for key, v in values.items()} for name, values in self.test.items()
            },
            "impossible": dict(self.impossible),
        }


def result_of(search: Search) -> Tuning:
    """The result of a search whose stages are over."""
    plan, stage, tuned = search.plan, search.compared, search.tuned
    values = {name: search.values(by_seed) for name, by_seed in stage.scores.items()}
    if stage.scores:
        tried = len(search.settings) - 1
        decision = decide(stage.scores, values, tuned.name, plan.by, plan.main, plan.constraints, tried)
    else:
        decision = Decision(tuned.name, "keep yours: the budget ended before any setting was compared", {})
    chosen = decision.chosen or tuned.name
    methods, train = tuned.arguments(search.settings[chosen])
    on_test = search.test(list(dict.fromkeys([tuned.name, chosen])))
    return Tuning(
        method=tuned.name,
        by=plan.by,
        constraints=tuple(map(str, plan.constraints)),
        setting=search.settings[chosen],
        reason=decision.reason,
        is_possible=decision.chosen is not None,
        methods=methods,
        train=train,
        settings=_rows(search, decision),
        chosen=chosen,
        pareto_front=tuple(pareto_front(values, plan.front, plan.main, plan.constraints)),
        objectives=tuple(search.objectives),
        rounds=search.rounds,
        compared_rounds=stage.rounds,
        seeds=tuple(tuned.seeds),
        test={
            name: {o.name: tuple(o.value(table) for table in by_seed.values()) for o in search.objectives}
            for name, by_seed in on_test.items()
        },
        diverged=tuple(search.diverged),
        impossible=search.impossible,
        trained_rounds=search.trained_rounds,
        seconds=search.seconds,
        out_of_time=search.out_of_time,
    )


def _rows(search: Search, decision: Decision) -> dict[str, TunedSetting]:
    rows = {}
    for stage in search.stages:  # a later stage replaces an earlier one
        for name, by_seed in stage.scores.items():
            found = decision.differences.get(name) if stage is search.compared else None
            rows[name] = TunedSetting(
                setting=search.settings[name],
                rounds=stage.rounds,
                validation=search.values(by_seed),
                gain=None if found is None else found.difference,
                interval=None if found is None or math.isinf(found.low) else (found.low, found.high),
            )
    return {name: rows[name] for name in search.settings if name in rows}
