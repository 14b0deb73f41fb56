"""Two runs side by side: which settings differ, and how much each method gains or loses."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fedtilt.evaluation.over_seeds import SeedValues
from fedtilt.evaluation.statistics import mean_difference, paired_difference
from fedtilt.report.compare import Metric, comparison_table, overview_metrics
from fedtilt.report.run_reader import Run
from fedtilt.report.tables import format_interval
from fedtilt.storage.provenance import flat_settings

_MAX_SETTINGS = 20  # that are listed
_DIGESTS = {  # key of a fingerprint whose value is a digest → what it is of
    "samples": "the samples",
    "partition": "the division of the samples among the clients",
    "start": "the initial model",
    "loss": "the loss",
}
_SETTINGS = ("data", "clients", "outliers", "train", "methods", "architecture")


class MetricChange(NamedTuple):
    """A metric of one method in both runs."""

    first: float
    second: float
    text: str  # second − first, with its interval if both runs have several seeds in common
    better: int  # 1 or −1 if the interval excludes 0, else 0


class RunDifferences(NamedTuple):
    """The second run against the first."""

    metrics: tuple[Metric, ...]
    rows: dict[str, list[MetricChange]]  # method that both have → a change per metric
    settings: list[tuple[str, str, str]]  # key, value in the first run, in the second
    other: str  # what else differs, in words
    pairs: int  # seeds that both runs have; 0: the means of all seeds are compared


def differences(first: Run, second: Run) -> RunDifferences:
    """The second run against the first; both have the same score."""
    metrics = overview_metrics(first, second)
    seeds = [[seed_run.seed for seed_run in run.compared] for run in (first, second)]
    common = [seed for seed in seeds[0] if seed in seeds[1]]
    tables = [comparison_table(run, "evaluated") for run in (first, second)]
    rows = {}
    for method in tables[0]:
        if method in tables[1]:
            both = [(tables[0][method][m.key], tables[1][method][m.key], m) for m in metrics]
            rows[method] = [_change(a, b, m, seeds, common) for a, b, m in both]
    changed = list(_changed(first.fingerprint, second.fingerprint))
    other = [text for key, text in _DIGESTS.items() if _differ(first.fingerprint, second.fingerprint, key)]
    return RunDifferences(metrics, rows, changed[:_MAX_SETTINGS], ", ".join(other), len(common))


def _differ(first: Mapping[str, Any], second: Mapping[str, Any], key: str) -> bool:
    if key == "partition" and first.get("outliers") != second.get("outliers"):
        key = "sizes"  # the digest of a partition also says which clients have outliers
    return first.get(key) != second.get(key)


def _change(a: SeedValues, b: SeedValues, metric: Metric, seeds: list[list[int]], common: list[int]) -> MetricChange:
    if common:
        ours, theirs = ([v.values[s.index(seed)] for seed in common] for v, s in ((b, seeds[1]), (a, seeds[0])))
        difference = paired_difference(ours, theirs)
    else:
        difference = mean_difference([b.mean - a.mean])
    sign = 1 if metric.higher_is_better else -1
    text = "0" if difference.low == difference.high == 0 else format_interval(difference)
    return MetricChange(a.mean, b.mean, text, sign * difference.sign())


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    flat = [flat_settings({key: run[key] for key in _SETTINGS if key in run}) for run in (first, second)]
    for key in dict.fromkeys([*flat[0], *flat[1]]):
        was, now = (str(values.get(key, "–")) for values in flat)
        if was != now:
            yield key, was, now
