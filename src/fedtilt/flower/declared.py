"""What a site declares of its test data beside the counts by class, if its operator agrees.

`declare-groups=true` in `--node-config`: sums of the evaluated model and samples by group, without groups of few
samples. `declare-metrics=true`: the site's own finished metrics. Both are off unless they are set.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord, Message
from torch import Tensor

from fedtilt.data.tables.schema import MIN_COUNT
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.evaluation.metrics import GroupCounts, GroupMetrics, compute_group_metrics
from fedtilt.evaluation.metrics_frame import metrics_frame
from fedtilt.evaluation.predictions import Predictions
from fedtilt.flower.model_arrays import RejectedReply, shorten

RECORD = "declared"
_MAX_COLUMNS, _MAX_GROUPS, _MAX_NAME, _MAX_TEXT = 20, 1000, 200, 2**20


class Declared(NamedTuple):
    """What one site declares."""

    groups: Mapping[str, Mapping[str, list[float]]] = {}  # column → group → samples, then sums (see `scores`)
    metrics: Mapping[str, float] = {}  # by name, see `decision_metrics`

    def to_json(self) -> dict[str, Any]:
        """As JSON values; what is not declared is left out."""
        return {key: value for key, value in self._asdict().items() if value}


def group_sums(names: Mapping[str, tuple[str, ...]], counts: Mapping[str, GroupCounts], site: int) -> dict[str, Any]:
    """The sums of a site by column and group; groups with fewer than five samples are left out."""
    found: dict[str, Any] = {}
    for column, (sums, total) in counts.items():
        found[column] = {
            group: [int(total[site, k]), *sums[site, k].reshape(-1).tolist()]
            for k, group in enumerate(names[column])
            if total[site, k] >= MIN_COUNT
        }
    return found


def own_metrics(predictions: Predictions) -> dict[str, float]:
    """The metrics of a site's own predictions that are defined."""
    frame = metrics_frame(predictions, by=None, resamples=0)
    values = {name: estimate.value for name, estimate in frame.overall_estimates.items()}
    return {name: value for name, value in values.items() if math.isfinite(value)}


def declared_record(declared: Declared) -> dict[str, ConfigRecord]:
    """The part of a reply to `evaluate`; empty if nothing is declared."""
    values = declared.to_json()
    return {RECORD: ConfigRecord({"json": json.dumps(values, allow_nan=False)})} if values else {}


def decode_declared(reply: Message, samples: int, sums: int) -> Declared:
    """What a reply declares; values that no test data can give are rejected.

    Args:
        reply: the reply to `evaluate`
        samples: the site's test samples
        sums: how many numbers are summed per group: 1 of classes, 2 of numbers as targets
    """
    record = reply.content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        return Declared()
    try:
        text = record["json"]
        if not isinstance(text, str) or len(text) > _MAX_TEXT:
            raise ValueError("it is too long")
        values = json.loads(text, parse_constant=_refuse)
        if not isinstance(values, dict) or set(values) - set(Declared._fields):
            raise ValueError("it has unknown keys")
        groups, metrics = values.get("groups", {}), values.get("metrics", {})
        _check_groups(groups, samples, sums)
        _check_metrics(metrics, of_numbers=sums > 1)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RejectedReply(f"declares what cannot be used: {shorten(str(error))}") from None
    return Declared(groups, metrics)


def _refuse(constant: str) -> None:
    raise ValueError(f"it has {constant}")


def _check_groups(groups: Any, samples: int, sums: int) -> None:
    if len(groups) > _MAX_COLUMNS:
        raise ValueError("it has too many columns")
    for column, by_group in groups.items():
        if len(by_group) > _MAX_GROUPS or any(len(name) > _MAX_NAME for name in (column, *by_group)):
            raise ValueError("it has too many groups, or too long names")
        for total, *values in by_group.values():
            if type(total) is not int or not MIN_COUNT <= total <= samples or len(values) != sums:
                raise ValueError("it has impossible samples of a group")
            is_possible = all(type(v) in (int, float) and math.isfinite(v) and v >= 0 for v in values)
            if not is_possible or (sums == 1 and (type(values[0]) is not int or values[0] > total)):
                raise ValueError("it has impossible sums of a group")
        if sum(total for total, *_ in by_group.values()) > samples:
            raise ValueError("its groups have more samples than the site")


def _check_metrics(metrics: Any, *, of_numbers: bool) -> None:
    for name, value in metrics.items():
        if name not in METRICS or METRICS[name].of_numbers != of_numbers:
            raise ValueError("it has an unknown metric")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError("it has a metric that is not a number")


def measure_declared(by_site: Mapping[int, Declared], sites: int, sums: int) -> dict[str, GroupMetrics]:
    """The metrics by column of groups, over the sites that declare it."""
    found = {}
    for column in dict.fromkeys(name for declared in by_site.values() for name in declared.groups):
        tables = {site: declared.groups.get(column, {}) for site, declared in by_site.items()}
        names = tuple(sorted({group for table in tables.values() for group in table}))
        if names:
            found[column] = compute_group_metrics(_counts(tables, names, sites, sums), names)
    return found


def _counts(
    tables: Mapping[int, Mapping[str, list[float]]], names: tuple[str, ...], sites: int, sums: int
) -> GroupCounts:  # fmt: skip
    total = torch.zeros(sites, len(names), dtype=torch.int64)
    shape = (sites, len(names)) if sums == 1 else (sites, len(names), sums)
    values: Tensor = torch.zeros(shape, dtype=torch.int64 if sums == 1 else torch.float64)
    for site, table in tables.items():
        for group, (samples, *found) in table.items():
            k = names.index(group)
            total[site, k] = int(samples)
            values[site, k] = torch.tensor(found[0] if sums == 1 else found, dtype=values.dtype)
    return GroupCounts(values, total)
