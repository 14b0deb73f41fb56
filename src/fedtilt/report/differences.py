"""Two runs side by side: which settings differ, and how much each method gains or loses."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fedtilt.evaluation.client_differences import Draw
from fedtilt.evaluation.results import SeedValues
from fedtilt.evaluation.verdicts import Verdict
from fedtilt.report.compare import Metric, check_splits, compare_several, comparison_table, draws_of, overview_metrics
from fedtilt.report.run_reader import Run, SeedRun
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
    text: str  # second − first, with its interval if both runs have the same test rows
    better: int  # 1 or −1 if the second is better or worse beyond chance, else 0


class RunDifferences(NamedTuple):
    """The second run against the first."""

    metrics: tuple[Metric, ...]
    rows: dict[str, list[MetricChange]]  # method that both have → a change per metric
    settings: list[tuple[str, str, str]]  # key, value in the first run, in the second
    other: str  # what else differs, in words
    pairs: int  # seeds with the same test rows in both; 0: the means of all seeds are shown, and not compared


def differences(first: Run, second: Run) -> RunDifferences:
    """The second run against the first; both have the same score."""
    check_splits([first, second])
    metrics = overview_metrics(first, second)
    numbers = [{seed_run.seed: n for n, seed_run in enumerate(run.compared)} for run in (first, second)]
    both = [(n, numbers[1][seed]) for seed, n in numbers[0].items() if seed in numbers[1]]
    common = [(n, m) for n, m in both if _same_rows(first.compared[n], second.compared[m])]
    tables = [comparison_table(run, "evaluated") for run in (first, second)]
    methods = [method for method in tables[0] if method in tables[1]]
    drawn = [draws_of(run) for run in (first, second)]
    paired = [_both(drawn[0][n], drawn[1][m], methods) for n, m in common]
    rows: dict[str, list[MetricChange]] = {method: [] for method in methods}
    for metric in metrics:
        pairs = [(f"1 {name}", f"0 {name}") for name in methods]
        found = compare_several(paired, metric, pairs, len(pairs)) if paired else [None] * len(pairs)
        for method, verdict in zip(methods, found, strict=True):
            a, b = (table[method][metric.key] for table in tables)
            if common:
                a, b = (SeedValues(tuple(v.values[pair[n]] for pair in common)) for n, v in enumerate((a, b)))
            rows[method].append(_change(a.mean, b.mean, metric, verdict))
    changed = list(_changed(first.fingerprint, second.fingerprint))
    # the digest of a partition also says which clients have outliers
    same_outliers = first.fingerprint.get("outliers") == second.fingerprint.get("outliers")
    digests = {("sizes" if key == "partition" and not same_outliers else key): what for key, what in _DIGESTS.items()}
    other = [what for key, what in digests.items() if first.fingerprint.get(key) != second.fingerprint.get(key)]
    return RunDifferences(metrics, rows, changed[:_MAX_SETTINGS], ", ".join(other), len(common))


def _same_rows(first: SeedRun, second: SeedRun) -> bool:
    known = first.test_rows and second.test_rows  # otherwise, numbers by client and class are all that is known
    same = torch.equal(first.total, second.total) and (not known or first.test_rows == second.test_rows)
    return same and first.client_names == second.client_names


def _both(first: Draw, second: Draw, methods: Sequence[str]) -> Draw:
    """The methods of both runs on the same test rows: (method, 0) of the first, (method, 1) of the second."""
    draws = (first, second)
    return Draw(
        sums={f"{number} {name}": draws[number].sums[name] for name in methods for number in (0, 1)},
        total=first.total, rows=lambda name: draws[int(name[0])].rows(name[2:]), new_data=first.new_data,
        chance=lambda name: draws[int(name[0])].chance_of(name[2:]),
    )  # fmt: skip


def _change(first: float, second: float, metric: Metric, verdict: Verdict | None) -> MetricChange:
    change = f"{second - first:+.{metric.digits}f}".replace("-", "−") if second != first else "0"
    if verdict is None:
        return MetricChange(first, second, f"{change} (other test rows: not compared)", 0)
    if math.isfinite(verdict.low) and second != first:
        ends = (verdict.low, verdict.high) if metric.higher_is_better else (-verdict.high, -verdict.low)
        low, high = (f"{end:+.{metric.digits}f}".replace("-", "−") for end in ends)
        change += f" ({low} to {high})"
    return MetricChange(first, second, change, verdict.sign())


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    flat = [flat_settings({key: run[key] for key in _SETTINGS if key in run}) for run in (first, second)]
    for key in dict.fromkeys([*flat[0], *flat[1]]):
        was, now = (str(values.get(key, "–")) for values in flat)
        if was != now:
            yield key, was, now
