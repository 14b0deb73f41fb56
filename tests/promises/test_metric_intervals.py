"""Intervals of metrics, and of gaps between groups, contain the metric of the population that the clients are of."""

import itertools
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch

import fedtilt as ft
from fedtilt.evaluation.decision_metrics import METRICS, POSITIVE_METRICS, Threshold
from fedtilt.evaluation.intervals import MIN_CLIENTS
from fedtilt.evaluation.metrics_frame import MetricsFrame, metrics_frame
from fedtilt.evaluation.predictions import predictions_of
from fedtilt.evaluation.weighted_predictions import Array, PredictedClasses, Weighted
from tests.promises.promise import Row, covered_row, false_row, measured

NAMES = ("accuracy", "balanced_accuracy", *POSITIVE_METRICS)
THRESHOLD = Threshold("yes", 0.2)


class Population(NamedTuple):
    """Clients with a rare class: its share, how well a score tells it and how high scores are differ by client."""

    share: float  # of the rare class
    unlike: float  # the standard deviation between clients
    groups: int = 1
    worse: float = 0.0  # how much lower the scores of the first group are

    def clients(self, count: int, rng: np.random.Generator) -> Array:
        """Log odds of the class, separation and offset of each client, (3, count)."""
        odds, separation, offset = self.unlike * rng.normal(size=(3, count))
        return np.stack([odds + np.log(self.share / (1 - self.share)), 2 * np.exp(0.4 * separation), 0.7 * offset])

    def draw(self, clients: Array, size: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        """Labels, predicted probabilities and groups of `size` samples of each client, (count · size,)."""
        odds, separation, offset = clients.repeat(size, axis=1)
        y = (rng.random(len(odds)) < 1 / (1 + np.exp(-odds))).astype(int)
        group = rng.integers(0, self.groups, len(odds))
        score = rng.normal(size=len(odds)) + separation * y
        logit = 2 * (score - 1) + np.log(self.share / (1 - self.share)) + offset - self.worse * (group == 0)
        return y, 1 / (1 + np.exp(-logit)), group

    def truth(self, clients: Array, size: int, rng: np.random.Generator) -> list[dict[str, float]]:
        """The metrics of very many samples, of each group."""
        y, p, group = self.draw(clients, size, rng)
        found = []
        for number in range(self.groups):
            rows = group == number
            outputs = np.stack([1 - p[rows], p[rows]], 1)
            samples = PredictedClasses(y[rows], outputs, 1, 1, (p[rows] >= THRESHOLD.value).astype(int))
            whole = Weighted(samples, np.ones((1, int(rows.sum()))))
            found.append({name: float(METRICS[name].values(whole)[0]) for name in NAMES})
        return found


def simulate(
    population: Population, count: int, size: int, draws: int, by: str | None, first: int, resamples: int
) -> tuple[list[dict[str, float]], list[MetricsFrame]]:
    """The truth, and what is printed for `size` random test samples of each of `count` clients, draw by draw.

    Few clients are the population themselves; more of them are drawn anew.
    """
    rng = np.random.default_rng([first, count, size, round(1000 * population.share), round(10 * population.unlike)])
    fixed = population.clients(count, rng)
    many = population.clients(6000, rng) if count >= MIN_CLIENTS else fixed
    truth = population.truth(many, 360_000 // many.shape[1], rng)
    frames = []
    for seed in range(draws):
        clients = population.clients(count, rng) if count >= MIN_CLIENTS else fixed
        y, p, group = population.draw(clients, 2 * size, rng)
        x = torch.tensor(np.stack([p, group], 1)).float()
        parts = [(x[rows], torch.tensor(y[rows])) for rows in np.arange(len(y)).reshape(count, -1)]
        federation = ft.Federation.from_clients(parts, class_names=["no", "yes"], test_share=0.5, seed=seed)
        inputs = federation.evaluation("test")[0]
        assert isinstance(inputs, torch.Tensor)
        found = predictions_of(federation, {"model": torch.stack([1 - inputs[:, 0], inputs[:, 0]], 1)})["model"]
        if by is not None:
            names = tuple(map(str, range(population.groups)))
            grouping = found.groupings["client"]._replace(name=by, names=names, codes=inputs[:, 1].long())
            found.groupings[by] = grouping  # type: ignore[index]
        settings = {"by": by, "positive": "yes", "resamples": resamples, "threshold": THRESHOLD}
        frames.append(metrics_frame(found, NAMES, **settings))  # type: ignore[arg-type]
    return truth, frames


def intervals(
    population: Population, count: int, size: int, draws: int, first: int = 0, resamples: int = 200
) -> list[Row]:
    """A row for every metric that has an interval in a tenth of the draws or more.

    Where fewer than half of the draws have one, all draws count: the few are those that have many rare samples by luck.
    """
    (truth,), frames = simulate(population, count, size, draws, None, first, resamples)
    rows = []
    for name in NAMES:
        found = [frame.overall_estimates[name].interval for frame in frames]
        held = [i.low - 1e-6 <= truth[name] <= i.high + 1e-6 for i in found if i.kind]
        printed = len(held) / draws
        if printed >= 0.1:
            cell = f"{count} × {size} samples, {100 * population.share:g} % rare, clients {_like(population)}"
            note = "" if printed == 1 else f"printed in {100 * printed:.0f} %"
            silent = [True] * (draws - len(held)) if printed < 0.5 else []
            rows.append(covered_row(f"interval of {METRICS[name].title}", cell, 0.95, held + silent, note))
    return rows


def gaps(population: Population, count: int, size: int, draws: int, first: int = 0, resamples: int = 200) -> list[Row]:
    """Whether the gap is covered, and whether one is found where there is none."""
    truth, frames = simulate(population, count, size, draws, "group", first, resamples)
    rows = []
    for name in ("accuracy", "recall", "selection_rate", "auprc"):
        values = [of_group[name] for of_group in truth]
        true = max(values) - min(values) if population.worse else 0.0
        found = [gap for gap in (frame.gap(name) for frame in frames) if not np.isnan(gap.difference_low)]
        if 2 * len(found) >= draws:
            cell = f"{METRICS[name].title}, {population.groups} groups, {count} × {size} samples"
            cell += f", {100 * population.share:g} % rare{', one worse' if population.worse else ''}"
            held = [gap.difference_low <= true <= gap.difference_high for gap in found]
            rows.append(covered_row("gap between groups", cell, 0.95, held))
            if not population.worse:
                false = [gap.difference_low > 0 for gap in found]
                rows.append(false_row("a gap where there is none", cell, 0.05, false))
    return rows


def _like(population: Population) -> str:
    return "unlike" if population.unlike else "alike"


SIZES = [(60, 32), (60, 8), (8, 32), (5, 200), (5, 32), (3, 200), (1, 200), (1, 32)]


def measure(draws: int, workers: int = 1) -> list[Row]:
    """Every cell."""
    cells = []
    for (count, size), share, unlike in itertools.product(SIZES, (0.02, 0.05, 0.3), (0.0, 0.7)):
        cells.append(partial(intervals, Population(share, unlike), count, size))
    for (count, size), groups, worse in itertools.product([(3, 100), (5, 60), (8, 32), (60, 16)], (2, 4), (0.0, 1.0)):
        cells.append(partial(gaps, Population(0.2, 0.5, groups, worse), count, size))
    return measured(cells, draws // 2 + 10, workers)


def test_intervals_of_a_rare_class_at_few_clients() -> None:
    rows = intervals(Population(0.05, 0.7), 8, 32, 60, resamples=100)
    assert {row.promise for row in rows} >= {"interval of AUPRC", "interval of AUROC", "interval of F1"}
    assert all(row.kept for row in rows), rows


def test_intervals_of_ten_rare_samples_of_one_client() -> None:
    rows = intervals(Population(0.05, 0.0), 1, 200, 60, resamples=100)
    assert len(rows) == len(NAMES) - 1  # the calibration error has none
    assert all(row.kept for row in rows), rows


def test_a_gap_between_equal_groups_is_not_found() -> None:
    rows = gaps(Population(0.3, 0.5, groups=4), 5, 60, 60, resamples=100)
    assert len(rows) == 8
    assert all(row.kept for row in rows), rows


@pytest.mark.slow
def test_every_cell() -> None:
    assert not [row for row in measure(100) if row.is_broken]
