"""Combines the sites' evaluation replies into the same counts and the same summary as in the simulator."""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts, Metrics
from fedtilt.evaluation.round_metrics import RoundMetrics, round_metrics
from fedtilt.flower.declared import measure_declared
from fedtilt.flower.messages import EvaluationReply


def combine_replies(
    replies: Mapping[int, EvaluationReply], has_outliers: Tensor, personal: bool, classes: int
) -> tuple[Counts, Tensor, RoundMetrics]:
    """Sums (N, K, …), samples (N, K) and the summary; a site without a reply has no samples and is left out.

    If any site withholds its counts by class, all counts become totals (N, 1), and the spread over classes is the one
    that the sites computed.

    Args:
        replies: by site number
        has_outliers: (N,) bool
        personal: whether the method has personal models
        classes: K
    """
    if not replies:
        raise InputError("no site has evaluated the models, so there is no result")
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
    summary = round_metrics(counts, total, has_outliers)
    if totals_only:
        summary = _with_class_spreads(summary, replies, total, never_selected, has_outliers, personal)
    declared = {site: reply.declared for site, reply in replies.items()}
    groups = measure_declared(declared, sites, 1 if like.dim() == 1 else 2)
    return counts, total, summary._replace(groups=groups)


def _with_class_spreads(
    summary: RoundMetrics,
    replies: Mapping[int, EvaluationReply],
    total: Tensor,
    never_selected: Tensor,
    has_outliers: Tensor,
    personal: bool,
) -> RoundMetrics:
    """The summary with client data fairness from the sites' spreads, which totals cannot show."""
    scores = next(iter(replies.values())).class_spreads.shape[1]
    spread = torch.zeros(2, len(total), scores, dtype=torch.float64)  # of the shared and of the evaluated models
    for site, reply in replies.items():
        of_shared, of_personal = reply.class_spreads
        spread[:, site] = torch.stack([of_shared, of_personal if personal else of_shared])
    has_samples = total.sum(1) > 0

    def with_spread(metrics: Metrics | None, spreads: Tensor, score: int = 0) -> Metrics | None:
        if metrics is None:
            return None
        mean_and_std = (spreads[:, score].mean().item(), spreads[:, score].std(correction=0).item())
        other = with_spread(metrics.other, spreads, score + 1)
        return dataclasses.replace(metrics, client_data_fairness=mean_and_std, other=other)

    shared = with_spread(summary.shared, spread[0, has_samples])
    assert shared is not None
    return RoundMetrics(
        shared=shared,
        personal=with_spread(summary.personal, spread[1, has_samples]),
        ever_selected=with_spread(summary.ever_selected, spread[1, has_samples & ~never_selected]),
        clean=with_spread(summary.clean, spread[1, has_samples & ~has_outliers]),
        never_selected=summary.never_selected,
    )
