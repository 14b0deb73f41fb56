"""What the sites found, put together: the same counts and the same summary as in the simulator."""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts, Metrics
from fedtilt.evaluation.results import Summary, summarise
from fedtilt.flower.messages import Verdict


def combine(
    verdicts: Mapping[int, Verdict], has_outliers: Tensor, personal: bool, classes: int
) -> tuple[Counts, Tensor, Summary]:
    """Counts (N, K), samples (N, K) and the summary; a site that said nothing has no samples and is left out.

    Where a site withholds its classes, the counts of all become totals (N, 1); the spread over classes is then the one
    that the sites worked out themselves.
    """
    if not verdicts:
        raise InputError("no site has judged the models, so there is no result")
    sites = len(has_outliers)
    withheld = any(len(v.total) != classes for v in verdicts.values())
    width = 1 if withheld else classes
    shared, own, total = (torch.zeros(sites, width, dtype=torch.int64) for _ in range(3))
    never_selected = torch.zeros(sites, dtype=torch.bool)
    for site, v in verdicts.items():
        parts = (v.shared, v.shared if v.personal is None else v.personal, v.total)
        shared[site], own[site], total[site] = (part.sum()[None] if withheld else part for part in parts)
        never_selected[site] = personal and v.personal is None
    counts = Counts(shared, own if personal else None, never_selected)
    summary = summarise(counts, total, has_outliers)
    if withheld:
        summary = _with_spreads(summary, verdicts, total, never_selected, has_outliers, personal)
    return counts, total, summary


def _with_spreads(
    summary: Summary,
    verdicts: Mapping[int, Verdict],
    total: Tensor,
    never_selected: Tensor,
    has_outliers: Tensor,
    personal: bool,
) -> Summary:
    """The summary with the sites' own spreads over classes, which totals cannot show."""
    spread = torch.zeros(2, len(total), dtype=torch.float64)  # of the shared and the judged models
    for site, v in verdicts.items():
        spread[:, site] = torch.tensor([v.spread[0], v.spread[1] if personal else v.spread[0]])
    held = total.sum(1) > 0

    def mended(metrics: Metrics | None, values: Tensor) -> Metrics | None:
        if metrics is None:
            return None
        pair = (values.mean().item(), values.std(correction=0).item())
        return dataclasses.replace(metrics, client_data_fairness=pair)

    shared = mended(summary.shared, spread[0, held])
    assert shared is not None
    return Summary(
        shared=shared,
        personal=mended(summary.personal, spread[1, held]),
        ever_selected=mended(summary.ever_selected, spread[1, held & ~never_selected]),
        clean=mended(summary.clean, spread[1, held & ~has_outliers]),
        never_selected=summary.never_selected,
    )
