"""Sample settings with Optuna's multi-objective TPE sampler."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

from fedtilt import seeds
from fedtilt.errors import InputError
from fedtilt.imports import install_command
from fedtilt.tuning.axes import Axis, Range, is_whole


class Sampler:
    """Proposes settings, and learns from their values; the first ones are drawn at random.

    The study is in memory: the same values give the same settings again, so a search that is resumed asks for all
    batches again. `directions` says of every objective whether higher is better.
    """

    def __init__(self, axes: Mapping[str, Axis], directions: Sequence[bool], seed: int, first: int) -> None:
        self._axes, self._distributions = axes, distributions(axes)
        self._seed, self._first = seed, first
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(directions=["maximize" if higher else "minimize" for higher in directions])
        self._trials: list[Any] = []

    def ask(self, count: int) -> list[dict[str, Any]]:
        """The next settings."""
        from optuna.samplers import TPESampler

        start = len(self._trials)
        self._study.sampler = TPESampler(
            seed=seeds.key(self._seed, "tune sampler", round=start) % 2**32,
            multivariate=True,
            constant_liar=True,
            n_startup_trials=self._first,
        )
        self._trials += [self._study.ask(self._distributions) for _ in range(count)]
        return [self._setting(trial.params) for trial in self._trials[start:]]

    def tell(self, number: int, values: Sequence[float] | None, violations: Mapping[str, float]) -> None:
        """Learn the values of a setting, by its number in the order of `ask`; None: it diverged."""
        from optuna.trial import TrialState

        for name, violation in violations.items():
            self._trials[number].set_constraint(name, violation)
        self._study.tell(self._trials[number], values, state=TrialState.FAIL if values is None else None)

    def _setting(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The values of a trial, numbers with few digits."""
        setting: dict[str, Any] = {}
        for name, axis in self._axes.items():
            value = params[name]
            if isinstance(axis, Range):
                setting[name] = int(value) if is_whole(name) else axis.rounded(float(value))
            else:
                setting[name] = axis[int(value)]
        return setting


def distributions(axes: Mapping[str, Axis]) -> dict[str, Any]:
    """Optuna's distributions of the axes; InputError if it is not installed, or cannot sample one of them."""
    if importlib.util.find_spec("optuna") is None:
        raise InputError(
            f"a range, or a grid with more settings than trials, needs Optuna: {install_command('tune')}; or give "
            "lists with fewer combinations"
        )
    return {name: _distribution(name, axis) for name, axis in axes.items()}


def _distribution(name: str, axis: Axis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(axis, Range):
        return CategoricalDistribution(list(range(len(axis))))  # numbers of the values: any value is allowed
    if is_whole(name):
        if not (axis.low.is_integer() and axis.high.is_integer()):
            raise InputError(f"over {name} = {axis} has no whole ends; {name} is a whole number")
        return IntDistribution(int(axis.low), int(axis.high), log=bool(axis.log))
    return FloatDistribution(axis.low, axis.high, log=bool(axis.log))
