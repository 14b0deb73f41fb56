"""The results of several seeds as means and standard deviations, for results.json."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedtilt.evaluation.groups import GroupMetrics
from fedtilt.evaluation.method_result import MethodResult
from fedtilt.evaluation.metrics import Metrics
from fedtilt.evaluation.results import Result


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
    return {"seeds": list(results), "methods": methods}


def _groups_over_seeds(by_seed: Sequence[MethodResult]) -> dict[str, Any]:
    """By grouping: every metric, and the score of every group that has test samples in all seeds."""
    columns = {}
    for name in by_seed[0].groups:
        found = [r.groups[name] for r in by_seed]
        common = [group for group in found[0].values if all(group in g.values for g in found)]
        values = {group: _column([g.values[group] for g in found]) for group in common}
        columns[name] = _mean_and_std(found) | {found[0].score: values}
    return columns


def _mean_and_std(by_seed: Sequence[Metrics | GroupMetrics]) -> dict[str, Any]:
    """Mean and sample std over the seeds of every metric, and its values."""
    return {key: _column([metrics.by_name()[key] for metrics in by_seed]) for key in by_seed[0].by_name()}


def _column(values: Sequence[float]) -> dict[str, Any]:
    # not `statistics`: its exact sums would change the last bits of results.json
    mean = sum(values) / len(values)
    std = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else None
    return {"mean": mean, "std": std, "seeds": list(values)}
