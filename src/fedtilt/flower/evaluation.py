"""The replies to `evaluate`, and the metrics that the server computes from them, the same as in the simulator.

A site sends the correct predictions of the shared and, if there is one, the personal model, and its test samples: by
class or, if it withholds those (`declare-classes=false` in `--node-config`), in total and the spread over its classes;
of other targets, the sums of `metrics` by group of the target. If its operator agrees, it declares more:
`declare-groups=true`, sums of the evaluated model and samples by group, without groups of few samples;
`declare-metrics=true`, its own metrics; `declare-scores=true`, counts of its validation and test samples by bin of
their score, for prediction sets. With `train.stop`, it also sends its validation samples and the sums of the evaluated
model on them, in total.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fedtilt.data.groups import CLASS
from fedtilt.data.tables.schema import MIN_COUNT
from fedtilt.data.targets import Target
from fedtilt.errors import InputError
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.evaluation.metrics import (
    Counts,
    GroupCounts,
    GroupMetrics,
    Metrics,
    compute_group_metrics,
    counts_of_chance,
)
from fedtilt.evaluation.prediction_sets import bins_of
from fedtilt.evaluation.round_metrics import RoundMetrics, round_metrics
from fedtilt.evaluation.scores import TASK_SCORES, scores_of, spread_in_clients
from fedtilt.flower.message_fields import (
    METRICS_RECORD,
    RejectedReply,
    decode_json,
    encode_json,
    read_counts,
    read_int,
    read_spreads,
    read_sums,
    reply_metrics,
    shorten,
)

DECLARED_RECORD = "declared"
_MOST_VALIDATION = 100  # validation samples of a site for each of its test samples
_MAX_COLUMNS, _MAX_GROUPS, _MAX_NAME, _MAX_TEXT = 20, 1000, 200, 2**20


class Declared(NamedTuple):
    """What one site declares beside its counts by class."""

    groups: Mapping[str, Mapping[str, list[float]]] = {}  # column → group → samples, then sums (see `scores`)
    metrics: Mapping[str, float] = {}  # by name, see `decision_metrics`
    scores: Mapping[str, Mapping[str, int]] = {}  # "validation" and "test" → samples by bin, see `prediction_sets`

    def to_json(self) -> dict[str, Any]:
        """What is declared, as JSON values."""
        return {key: value for key, value in self._asdict().items() if value}


class EvaluationReply(NamedTuple):
    """Correct predictions, or other sums, and samples on a site's test data, by class or as one total."""

    shared: Tensor  # (K,) or (1,); sums that are no counts have one more dimension
    personal: Tensor | None  # None: the method has no personal model, or the site was never selected
    total: Tensor  # (K,) or (1,)
    class_spreads: Tensor  # (2, scores): std over the site's classes, of the shared and of the personal model
    declared: Declared = Declared()  # beside the counts, if the site agrees
    validation: GroupCounts | None = None  # of the evaluated model on validation data, (1, …) and (1,), with train.stop


def class_spreads(shared: Tensor, personal: Tensor | None, total: Tensor) -> Tensor:
    """The std of each score over a site's classes, of the shared and of the personal model, (2, scores)."""
    models = shared, shared if personal is None else personal
    spreads = torch.zeros(2, len(scores_of(shared)), dtype=torch.float64)
    for i, sums in enumerate(models):
        for k, score in enumerate(scores_of(sums)):
            if total.any():
                spreads[i, k] = spread_in_clients(sums[None], total[None], score)[0]
    return spreads


# -- a reply ---------------------------------------------------------------------------------------------------------


def encode_evaluation_reply(reply: EvaluationReply, round: int, by_class: bool) -> RecordDict:
    """A site's reply to `evaluate`; without `by_class`, only totals and spreads."""

    def counts(values: Tensor) -> list[Any]:
        return list((values if by_class else values.sum(0, keepdim=True)).flatten().tolist())

    values: dict[str, int | list[Any]] = {"round": round, "by-class": int(by_class)}
    values |= {"shared": counts(reply.shared), "total": counts(reply.total)}
    values |= {"personal": counts(reply.personal)} if reply.personal is not None else {}
    if not by_class:
        shared_spread, personal_spread = reply.class_spreads.tolist()
        values |= {"shared-spread": shared_spread, "personal-spread": personal_spread}
    if reply.validation is not None:
        sums, total = reply.validation
        values |= {"validation": sums.flatten().tolist(), "validation-total": total.tolist()}
    content = RecordDict({METRICS_RECORD: MetricRecord(values)})  # type: ignore[arg-type]
    if declared := reply.declared.to_json():
        content[DECLARED_RECORD] = ConfigRecord({"json": encode_json(declared)})
    return content


def decode_evaluation_reply(
    reply: Message, round: int, classes: int, max_samples: int, target: Target | None = None, *,
    has_validation: bool = False,
) -> EvaluationReply:  # fmt: skip
    """Decode a reply to `evaluate`; `classes` may be groups of a target, and `has_validation` is that of the run."""
    metrics = reply_metrics(reply, round)
    by_class = read_int(metrics, "by-class", 0, 1) == 1
    size = classes if by_class else 1
    total = read_counts(metrics, "total", torch.full((size,), max_samples))

    def read(key: str, total: Tensor) -> Tensor:
        if target is None:
            return read_counts(metrics, key, total)
        shares = [score.share for score in TASK_SCORES[target.task] if score.share is not None]
        return read_sums(metrics, key, total, target.sums, shares)

    shared = read("shared", total)
    personal = read("personal", total) if "personal" in metrics else None
    validation = None
    if has_validation:
        samples = read_counts(metrics, "validation-total", torch.tensor([max_samples]))
        validation = GroupCounts(read("validation", samples), samples)
    if by_class:
        spreads = class_spreads(shared, personal, total)
    else:
        most = [
            50.0 if score.unit == "%" else math.inf for score in scores_of(shared)
        ]  # the std of numbers in [0, 100]
        found = [read_spreads(metrics, f"{model}-spread", most) for model in ("shared", "personal")]
        spreads = torch.tensor(found, dtype=torch.float64)
    declared = decode_declared(reply, int(total.sum()), target)
    return EvaluationReply(shared, personal, total, spreads, declared, validation)


def decode_declared(reply: Message, samples: int, target: Target | None) -> Declared:
    """What a reply declares; values that no test data with this number of samples can give are rejected."""
    record = reply.content.get(DECLARED_RECORD)
    if not isinstance(record, ConfigRecord):
        return Declared()
    try:
        values = decode_json(record["json"], _MAX_TEXT)
        if not isinstance(values, dict) or set(values) - set(Declared._fields):
            raise ValueError("it has unknown keys")
        declared = Declared(**values)
        _check_groups(declared.groups, samples, 1 if target is None else target.sums)
        _check_metrics(declared.metrics, "classification" if target is None else target.task)
        _check_scores(declared.scores, samples)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RejectedReply(f"declares what cannot be used: {shorten(str(error))}") from None
    return declared


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


def _check_metrics(metrics: Any, task: str) -> None:
    for name, value in metrics.items():
        if name not in METRICS or task not in METRICS[name].tasks:
            raise ValueError("it has an unknown metric")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError("it has a metric that is not a number")


def _check_scores(scores: Any, samples: int) -> None:
    if set(scores) not in (set(), {"validation", "test"}):
        raise ValueError("it has scores of unknown data")
    counts = {split: sum(by_bin.values()) for split, by_bin in scores.items()}
    if counts.get("test", samples) != samples or counts.get("validation", 0) > _MOST_VALIDATION * samples:
        raise ValueError("it has impossible numbers of scores")
    for by_bin in scores.values():
        bins_of(by_bin)


# -- all replies of a round ------------------------------------------------------------------------------------------


def combine_replies(
    replies: Mapping[int, EvaluationReply],
    has_outliers: Tensor,
    personal: bool,
    classes: int,
    fixed_shares: bool = False,
) -> tuple[Counts, Tensor, RoundMetrics]:
    """Sums (N, K, …), samples (N, K) and the summary; a site without a reply has no samples and is not counted.

    If any site withholds its counts by class, all counts become totals (N, 1), and the spread over classes is the one
    that the sites computed.
    """
    if not replies:
        remedy = "start the sites, then the run again, which continues"
        raise InputError(f"no site has evaluated the models of this round; {remedy}")
    sites = len(has_outliers)
    totals_only = any(len(reply.total) != classes for reply in replies.values())
    columns = 1 if totals_only else classes
    like = next(iter(replies.values())).shared
    shared, of_personal = (like.new_zeros(sites, columns, *like.shape[1:]) for _ in range(2))
    total = torch.zeros(sites, columns, dtype=torch.int64)
    never_selected = torch.zeros(sites, dtype=torch.bool)
    for site, reply in replies.items():
        parts = (reply.shared, reply.shared if reply.personal is None else reply.personal, reply.total)
        shared[site], of_personal[site], total[site] = (
            part.sum(0, keepdim=True) if totals_only else part for part in parts
        )
        never_selected[site] = personal and reply.personal is None
    counts = Counts(shared, of_personal if personal else None, never_selected)
    if fixed_shares:
        group = "" if shared.is_floating_point() else CLASS
        of_both = [counts_of_chance({group: GroupCounts(s, total)}, True) for s in (shared, counts.evaluated)]
        counts = counts._replace(chance=(of_both[0], of_both[1]))
    summary = round_metrics(counts, total, has_outliers)
    if totals_only:
        summary = _with_class_spreads(summary, replies, total, never_selected, has_outliers, personal)
    declared = {site: reply.declared for site, reply in replies.items()}
    groups = measure_declared(declared, sites, 1 if like.dim() == 1 else like.shape[1])
    return counts, total, summary._replace(groups=groups)


def _with_class_spreads(
    summary: RoundMetrics, replies: Mapping[int, EvaluationReply], total: Tensor, never_selected: Tensor,
    has_outliers: Tensor, personal: bool,
) -> RoundMetrics:  # fmt: skip
    """The summary with client data fairness from the sites' spreads, which totals cannot show."""
    scores = next(iter(replies.values())).class_spreads.shape[1]
    spread = torch.zeros(2, len(total), scores, dtype=torch.float64)  # of the shared and of the evaluated models
    for site, reply in replies.items():
        of_shared, of_personal = reply.class_spreads
        spread[:, site] = torch.stack([of_shared, of_personal if personal else of_shared])
    has_samples = total.sum(1) > 0

    def with_spread(metrics: Metrics | None, spreads: Tensor) -> Any:
        if metrics is None:
            return None
        main, *others = (
            dataclasses.replace(found, client_data_fairness=(spread.mean().item(), spread.std(correction=0).item()))
            for found, spread in zip((metrics, *metrics.others), spreads.unbind(1), strict=True)
        )
        return dataclasses.replace(main, others=tuple(others))

    return RoundMetrics(
        shared=with_spread(summary.shared, spread[0, has_samples]),
        personal=with_spread(summary.personal, spread[1, has_samples]),
        ever_selected=with_spread(summary.ever_selected, spread[1, has_samples & ~never_selected]),
        clean=with_spread(summary.clean, spread[1, has_samples & ~has_outliers]),
        never_selected=summary.never_selected,
    )


def measure_declared(by_site: Mapping[int, Declared], sites: int, sums: int) -> dict[str, GroupMetrics]:
    """The metrics by column of groups, over the sites that declare it."""
    found = {}
    for column in dict.fromkeys(name for declared in by_site.values() for name in declared.groups):
        tables = {site: declared.groups.get(column, {}) for site, declared in by_site.items()}
        names = tuple(sorted({group for table in tables.values() for group in table}))
        total = torch.zeros(sites, len(names), dtype=torch.int64)
        values = torch.zeros(sites, len(names), sums, dtype=torch.int64 if sums == 1 else torch.float64)
        for site, table in tables.items():
            for group, (samples, *of_group) in table.items():
                k = names.index(group)
                total[site, k], values[site, k] = int(samples), torch.tensor(of_group, dtype=values.dtype)
        if names:
            found[column] = compute_group_metrics(GroupCounts(values[..., 0] if sums == 1 else values, total), names)
    return found
