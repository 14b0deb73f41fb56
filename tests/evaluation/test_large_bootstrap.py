"""The bootstrap of many samples, whose cost is that of clients or blocks, against the one that draws samples."""

import numpy as np
import pytest

from fedtilt.evaluation import intervals
from fedtilt.evaluation.decision_metrics import METRICS, OVERALL_METRICS
from fedtilt.evaluation.intervals import Bootstrap, bootstrap
from fedtilt.evaluation.weighted_predictions import Array, PredictedClasses, PredictedNumbers, Weighted

RANKED = ("auroc", "auprc")


def draw(samples: int, clients: int, classes: int = 2, ties: bool = False) -> tuple[PredictedClasses, Array]:
    """Predictions of a rare class or of several ones, on clients for which models differ."""
    rng = np.random.default_rng(0)
    client = np.sort(rng.integers(0, clients, samples))
    labels = (rng.random(samples) < 0.1).astype(int) if classes == 2 else rng.integers(0, classes, samples)
    logits = rng.normal(size=(samples, classes))
    logits += (1.5 + rng.normal(0, 0.5, clients)[client])[:, None] * np.eye(classes)[labels]
    found = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if ties:
        found = found.round(3)
    return PredictedClasses(labels, found, rarer=1 if classes == 2 else None), client


def both(
    monkeypatch: pytest.MonkeyPatch, samples: PredictedClasses, client: Array, resamples: int
) -> tuple[Bootstrap, Bootstrap]:
    """By rows, and as of many samples."""
    found = []
    for large in (len(client), 1000):
        monkeypatch.setattr(intervals, "LARGE", large)
        found.append(bootstrap(samples, client, OVERALL_METRICS, resamples, 0))
    return found[0], found[1]


@pytest.mark.parametrize("classes", [2, 4])
def test_weights_of_units_give_the_metrics_of_their_samples(classes: int) -> None:
    samples, client = draw(30_000, 12, classes)
    weights = np.random.default_rng(1).poisson(1.0, (5, 12)).astype(float)
    for name in OVERALL_METRICS:
        rows = METRICS[name].values(Weighted(samples, weights[:, client]))
        units = METRICS[name].values(Weighted(samples, weights, client))
        np.testing.assert_allclose(units, rows, atol=3e-5 if name in RANKED else 1e-11, err_msg=name)


def test_few_distinct_scores_are_ranked_exactly() -> None:
    samples, client = draw(30_000, 12, ties=True)
    weights = np.random.default_rng(1).poisson(1.0, (5, 12)).astype(float)
    for name in RANKED:
        rows = METRICS[name].values(Weighted(samples, weights[:, client]))
        np.testing.assert_allclose(METRICS[name].values(Weighted(samples, weights, client)), rows, rtol=1e-11)


def test_many_samples_of_several_clients_have_the_resamples_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, client = draw(20_000, 8)
    rows, units = both(monkeypatch, samples, client, 40)
    assert units.kind == rows.kind == "bootstrap over clients"
    assert units.units == rows.units == 8
    for name in OVERALL_METRICS:
        np.testing.assert_allclose(units.values[name], rows.values[name], atol=3e-5 if name in RANKED else 1e-6)


def test_blocks_of_few_clients_have_the_intervals_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    samples, client = draw(5000, 2)
    rows, blocks = both(monkeypatch, samples, client, 300)
    assert rows.kind == "bootstrap over samples"
    assert blocks.kind == "bootstrap over blocks of samples"
    rare = int(samples.labels.sum())
    assert (rows.units, rows.rows, blocks.rows) == (rare, rare, rare)
    assert 400 < blocks.units <= 2 * intervals.BLOCKS  # blocks with the rare class
    for name in OVERALL_METRICS:
        by_rows, by_blocks = rows.values[name], blocks.values[name]
        assert by_blocks.std() == pytest.approx(float(by_rows.std()), rel=0.15), name  # of 300 resamples, each ± 4 %
        assert by_blocks.mean() == pytest.approx(float(by_rows.mean()), abs=float(by_rows.std()) / 4), name


def test_blocks_do_not_depend_on_the_order_of_samples() -> None:
    """A table that is sorted by its target has blocks of random rows all the same."""
    errors = np.sort(np.random.default_rng(0).normal(size=40_000))
    drawn = bootstrap(PredictedNumbers(np.zeros(40_000), errors), np.zeros(40_000), ["mean_error"], 500, 0)
    assert drawn.values["mean_error"].std() == pytest.approx(1 / 200, rel=0.15)
    assert abs(drawn.values["mean_error"].mean() - errors.mean()) < 0.001
