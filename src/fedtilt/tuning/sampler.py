"""Sample settings with Optuna: a multi-objective study, stored as a journal, from which a killed search goes on."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtilt import seeds
from fedtilt.errors import InputError
from fedtilt.tuning.axes import Axis, Range, is_whole


class Sampler:
    """Proposes settings, and learns from their values.

    Args:
        axes: what is varied
        directions: for every objective, whether higher is better
        file: the journal; None: in memory
        seed: of the random numbers
        first: how many settings are drawn at random before any value is known
    """

    def __init__(
        self, axes: Mapping[str, Axis], directions: Sequence[bool], file: Path | None, seed: int, first: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._axes = axes
        self._distributions = distributions(axes)
        self._seed, self._first = seed, first
        storage = None
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            from optuna.storages.journal import JournalFileBackend

            storage = optuna.storages.JournalStorage(JournalFileBackend(str(file)))
        self._study = optuna.create_study(
            storage=storage,
            study_name="fedtilt",
            directions=["maximize" if higher else "minimize" for higher in directions],
            load_if_exists=True,
        )

    def ask(self, start: int, stop: int) -> list[dict[str, Any]]:
        """The settings with these numbers; those that were asked for before are the same again."""
        import optuna

        # a new sampler for every batch: its random numbers do not depend on what was asked for before a kill
        self._study.sampler = optuna.samplers.TPESampler(
            seed=seeds.key(self._seed, "tune sampler", round=start) % 2**32,
            multivariate=True,
            constant_liar=True,
            n_startup_trials=self._first,
        )
        for _ in range(len(self._study.get_trials(deepcopy=False)), stop):
            self._study.ask(self._distributions)
        return [self._setting(trial.params) for trial in self._study.get_trials(deepcopy=False)[start:stop]]

    def tell(self, number: int, values: Sequence[float] | None, violations: Mapping[str, float]) -> None:
        """Record a setting.

        Args:
            number: of the setting
            values: of its objectives; None: it diverged
            violations: by how much it misses each constraint
        """
        import optuna

        frozen = self._study.get_trials(deepcopy=False)[number]
        if frozen.state.is_finished():  # before a kill
            return
        trial = optuna.trial.Trial(self._study, frozen._trial_id)
        for name, violation in violations.items():
            if name not in frozen.constraints:
                trial.set_constraint(name, violation)
        if values is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, list(values))

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
    """What Optuna samples from."""
    if importlib.util.find_spec("optuna") is None:
        raise InputError(
            'a range, or a grid with more settings than trials, needs Optuna: pip install "fedtilt[tune]"; or give '
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
