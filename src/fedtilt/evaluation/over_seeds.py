"""Metrics over the seeds of a run: their values, mean and standard deviation."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedtilt.evaluation.method_results import MethodResult
from fedtilt.evaluation.metrics import GroupMetrics, Metrics
from fedtilt.evaluation.results import Result


class SeedValues(NamedTuple):
    """One metric of one method, one value per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        # not `statistics`: its exact sums would change the last bits of results.json
        return sum(self.values) / len(self.values)

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None for one seed.

        >>> SeedValues((1.0, 3.0)).std
        1.4142135623730951
        """
        if len(self.values) == 1:
            return None
        mean = self.mean
        return float((sum((v - mean) ** 2 for v in self.values) / (len(self.values) - 1)) ** 0.5)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"mean": self.mean, "std": self.std, "seeds": list(self.values)}


def over_seeds(results: Mapping[int, Result]) -> dict[str, Any]:
    """The comparison table as JSON values: every metric of every method, its mean and std over the seeds.

    If there is validation data, `validation` has the same metrics on it.
    """
    methods = {}
    for name in next(iter(results.values())):
        by_seed = [result[name] for result in results.values()]
        validation = [r.validation for r in by_seed if r.validation is not None]
        methods[name] = (
            _mean_and_std([r.metrics for r in by_seed])
            | ({"validation": _mean_and_std(validation)} if validation else {})
            | ({"groups": _groups_over_seeds(by_seed)} if by_seed[0].groups else {})
            | {"evaluated": "personal" if by_seed[0].method.has_personal else "shared"}
            | {"last": [r.summary.to_json() for r in by_seed]}
        )
    shown = [result.shown for result in results.values()]
    names = [name for name in shown[0] if name not in methods and all(name in of_seed for of_seed in shown)]
    baselines = {name: _mean_and_std([of_seed[name].metrics for of_seed in shown]) for name in names}
    return {"seeds": list(results), "methods": methods} | ({"baselines": baselines} if baselines else {})


def _groups_over_seeds(by_seed: Sequence[MethodResult]) -> dict[str, Any]:
    """By grouping: every metric, and the score of every group that has test samples in all seeds."""
    columns = {}
    for name in by_seed[0].groups:
        found = [r.groups[name] for r in by_seed]
        common = [group for group in found[0].values if all(group in g.values for g in found)]
        values = {group: SeedValues(tuple(g.values[group] for g in found)).to_json() for group in common}
        columns[name] = _mean_and_std(found) | {found[0].score: values}
    return columns


def _mean_and_std(by_seed: Sequence[Metrics | GroupMetrics]) -> dict[str, Any]:
    columns = {key: tuple(metrics.by_name()[key] for metrics in by_seed) for key in by_seed[0].by_name()}
    return {key: SeedValues(values).to_json() for key, values in columns.items()}
