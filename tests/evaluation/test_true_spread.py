"""Fairness beyond chance against scipy's beta-binomial distribution, and by simulation: bias and coverage."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.evaluation.client_differences import Draw
from fedtilt.evaluation.metrics import BEYOND_CHANCE, compute_metrics
from fedtilt.evaluation.scores import sampling_variances, scores_of, variance_beyond_chance
from fedtilt.evaluation.spread_models import BetaBinomial
from fedtilt.evaluation.true_spread import (
    TrueSpread,
    client_estimates,
    knows_variances,
    spread_of_differences,
    true_spread,
    true_spread_in_clients,
)
from fedtilt.evaluation.verdicts import compare
from fedtilt.report.weak_spots import Worst

SCENARIOS = {  # clients, range of their samples, mean and std of their true accuracies
    "images": (100, (92, 110), 0.987, 0.011),
    "districts": (60, (3, 30), 0.68, 0.09),
    "all alike": (60, (3, 30), 0.68, 0.0),
    "eight clients": (8, (20, 60), 0.85, 0.08),
    "nearly perfect": (30, (5, 40), 0.99, 0.01),
    "two kinds": (40, (10, 30), 0.6, 0.45),
}


def draw(name: str, rng: np.random.Generator) -> tuple[Tensor, Tensor, np.ndarray]:
    """Correct predictions and samples, (clients, 1), and true accuracies in percent."""
    clients, (low, high), mean, std = SCENARIOS[name]
    samples, accuracy = rng.integers(low, high, clients), np.full(clients, mean)
    if std:
        size = mean * (1 - mean) / std**2 - 1
        accuracy = rng.beta(mean * size, (1 - mean) * size, clients)
    correct = rng.binomial(samples, accuracy)
    return torch.tensor(correct)[:, None], torch.tensor(samples)[:, None], 100 * accuracy


def log_likelihood(correct: Tensor, total: Tensor, mean: float, std: float) -> float:
    size = mean * (1 - mean) / std**2 - 1
    if size <= 0:
        return -math.inf
    x, n = correct[:, 0].numpy(), total[:, 0].numpy()
    return float(stats.betabinom.logpmf(x, n, mean * size, (1 - mean) * size).sum())


@pytest.mark.parametrize("name", ["images", "districts", "eight clients"])
def test_estimate_and_interval_are_those_of_scipys_beta_binomial_distribution(name: str) -> None:
    correct, total, _ = draw(name, np.random.default_rng(3))
    found = true_spread(correct, total)

    def profile(std: float) -> float:
        half = math.sqrt(0.25 - std**2)
        bounds = 0.5 - half + 1e-9, 0.5 + half - 1e-9
        best = optimize.minimize_scalar(
            lambda mean: -log_likelihood(correct, total, mean, std), bounds=bounds, options={"xatol": 1e-9}
        )
        return -float(best.fun)

    best = optimize.minimize_scalar(lambda std: -profile(std), bounds=(1e-4, 0.4), options={"xatol": 1e-8})
    assert found.estimate == pytest.approx(100 * best.x, rel=1e-3)
    limit = -best.fun - stats.f.ppf(0.95, 1, len(total) - 1) / 2
    assert profile(found.high / 100) == pytest.approx(limit, abs=1e-3)
    if found.low > 0:
        assert profile(found.low / 100) == pytest.approx(limit, abs=1e-3)
        assert found.is_beyond_chance


def test_moments_are_the_observed_variance_minus_the_binomial_one() -> None:
    correct, total, _ = draw("districts", np.random.default_rng(0))
    values = [100 * x / n for x, n in zip(correct[:, 0].tolist(), total[:, 0].tolist(), strict=True)]
    chance = [p * (100 - p) / (n - 1) for p, n in zip(values, total[:, 0].tolist(), strict=True)]
    mean, count = sum(values) / len(values), len(values)
    variance = sum((p - mean) ** 2 for p in values) / count
    expected = variance - (1 - 1 / count) * sum(chance) / count
    found = true_spread(correct, total)
    assert found.observed == pytest.approx(math.sqrt(variance))
    assert found.chance == pytest.approx(math.sqrt(variance - expected))
    assert found.moments == pytest.approx(math.sqrt(max(0, expected)))
    metrics = compute_metrics(correct, total)
    assert metrics.beyond_chance == pytest.approx(found.moments)
    assert metrics.by_name()["client_fairness_beyond_chance"] == metrics.beyond_chance
    assert type(metrics).from_json(metrics.to_json()) == metrics


def test_a_client_with_one_sample_has_the_variance_of_the_others_and_one_without_counts_not() -> None:
    found = sampling_variances(torch.tensor([5, 1, 0, 8]), torch.tensor([10, 1, 0, 10]))
    ones = [2500 * 10 / 9, 1600 * 10 / 9]  # of a single sample of the first and of the last client
    torch.testing.assert_close(
        found, torch.tensor([ones[0] / 10, sum(ones) / 2, math.nan, ones[1] / 10]).double(), equal_nan=True
    )
    unknown = compute_metrics(torch.tensor([[1], [0]]), torch.tensor([[1], [1]]))
    assert unknown.beyond_chance is None
    assert "client_fairness_beyond_chance" not in unknown.by_name() | unknown.to_json()


def test_moments_are_unbiased() -> None:
    """Of 20,000 federations whose clients keep their accuracies, with two to six samples each."""
    rng = np.random.default_rng(0)
    accuracy, samples = np.array([0.5, 0.7, 0.9, 0.95]), np.array([2, 3, 4, 6])
    correct = torch.from_numpy(rng.binomial(samples, accuracy, (20_000, 4)))
    total = torch.from_numpy(samples).expand_as(correct)
    found = variance_beyond_chance(100 * correct / total, sampling_variances(correct, total))
    error = float(found.std()) / math.sqrt(len(found))
    assert float(found.mean()) == pytest.approx(1e4 * accuracy.var(), abs=3 * error)
    observed = (100 * correct / total).var(1, correction=0)
    assert float(observed.mean()) > 2 * 1e4 * accuracy.var()  # the paper's figure has as much chance as truth


def coverage(name: str, repetitions: int, of_clients: int) -> tuple[float, float]:
    """The share of intervals that contain the true spread, and those that contain a client's true accuracy."""
    rng, std = np.random.default_rng(1), 100 * SCENARIOS[name][3]
    spreads, clients = [], []
    for number in range(repetitions):
        correct, total, accuracy = draw(name, rng)
        found = true_spread(correct, total)
        spreads.append(found.low <= std <= found.high)
        if number < of_clients:
            estimates = client_estimates(correct, total)
            low, high = estimates.low.numpy() - 0.01, estimates.high.numpy() + 0.01  # points
            clients.append(((low <= accuracy) & (accuracy <= high)).mean())
    return float(np.mean(spreads)), float(np.mean(clients))


def test_intervals_have_their_confidence() -> None:
    assert min(coverage("districts", 60, 15)) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_intervals_have_their_confidence_in_many_federations(name: str) -> None:
    assert min(coverage(name, 500, 200)) >= 0.93


def test_estimates_are_shrunk_and_only_a_client_beyond_chance_fails() -> None:
    correct, total = torch.tensor([[0], *[[85]] * 9]), torch.tensor([[3], *[[100]] * 9])
    found = client_estimates(correct, total)
    assert 0 < found.estimate[0] < 85 < found.high[0]
    assert found.worst(higher_is_better=True) is None
    found = client_estimates(torch.cat([correct, torch.tensor([[40]])]), torch.cat([total, torch.tensor([[100]])]))
    assert found.worst(higher_is_better=True) == 10
    assert 40 < found.estimate[10] < 50
    assert found.high[10] < found.mean


def test_if_all_predictions_are_right_a_client_with_few_samples_is_not_certain() -> None:
    total = torch.tensor([[3], [60], [100], [0]])
    found = client_estimates(total, total)
    assert found.low[0] < 90 < found.low[2] < found.high[2] <= 100
    assert math.isnan(found.estimate[3])
    spread = true_spread(total, total)
    assert (spread.observed, spread.moments, spread.estimate, spread.low) == (0, 0, 0, 0)


def restricted_log_likelihood(values: np.ndarray, variances: np.ndarray, std: float) -> float:
    """The density of the differences to the first value, which the mean does not change."""
    count = len(values)
    contrasts = np.hstack([-np.ones((count - 1, 1)), np.eye(count - 1)])
    covariance = contrasts @ np.diag(variances + std**2) @ contrasts.T
    return float(stats.multivariate_normal.logpdf(contrasts @ values, cov=covariance))


def test_means_with_known_variances_have_the_restricted_likelihood() -> None:
    rng = np.random.default_rng(2)
    values, variances = rng.normal(5, 3, 12), np.full(12, 1.5)
    samples = torch.full((12,), 20)
    found = spread_of_differences(torch.from_numpy(values), torch.from_numpy(variances), samples)
    best = optimize.minimize_scalar(
        lambda std: -restricted_log_likelihood(values, variances, std), bounds=(0, 20), options={"xatol": 1e-9}
    )
    assert found.estimate == pytest.approx(best.x, rel=1e-3)
    # with equal variances, the restricted estimate is that of the moments
    assert found.estimate**2 == pytest.approx(values.var(ddof=1) - 1.5, rel=1e-3)
    limit = -best.fun - stats.f.ppf(0.95, 1, 11) / 2
    for end in (found.low, found.high):
        assert restricted_log_likelihood(values, variances, end) == pytest.approx(limit, abs=1e-3)


def errors(rng: np.random.Generator, std: float, clients: int = 25) -> tuple[Tensor, Tensor, np.ndarray]:
    """Sums of absolute and squared errors, samples, and the true mean absolute errors."""
    samples, true = rng.integers(8, 40, clients), rng.normal(10, std, clients)
    drawn = [np.abs(rng.gamma(9, mean / 9, n)) for n, mean in zip(samples, true, strict=True)]
    sums = torch.tensor([[[float(e.sum()), float((e**2).sum())]] for e in drawn]).double()
    return sums, torch.tensor(samples)[:, None], true


def test_the_spread_of_mean_absolute_errors_covers_the_truth() -> None:
    rng, spreads, clients = np.random.default_rng(0), [], []
    for _ in range(100):
        sums, total, true = errors(rng, 1.0)
        found, estimates = true_spread(sums, total), client_estimates(sums, total)
        spreads.append(found.low <= 1.0 <= found.high)
        clients.append(((estimates.low.numpy() <= true) & (true <= estimates.high.numpy())).mean())
    assert min(np.mean(spreads), np.mean(clients)) >= 0.93
    assert compute_metrics(sums, total).beyond_chance == pytest.approx(found.moments)


def test_classes_in_clients_cover_the_truth() -> None:
    """Clients with two classes of nine samples, whose true accuracies are 10 points apart, or not at all."""
    rng = np.random.default_rng(0)
    for gap, least in ((0.2, 0.93), (0.0, 0.93)):
        base = np.full((40, 1), 0.75)
        accuracy, held = base + gap / 2 * np.array([[-1.0, 1.0]]), []
        for _ in range(200):
            total = torch.full((40, 2), 9)
            found = true_spread_in_clients(torch.from_numpy(rng.binomial(9, accuracy, (40, 2))), total)
            held.append(found.low <= 50 * gap <= found.high)
        assert np.mean(held) >= least
    assert found.chance > 8
    assert found.clients == 40
    assert math.isnan(true_spread_in_clients(total[:, :1], total[:, :1]).estimate)


def test_the_fairer_of_two_methods_is_found_beyond_chance_and_equal_ones_are_not() -> None:
    def fairer(ours: Tensor, theirs: Tensor) -> int:
        draw, key = Draw(sums={"ours": ours, "theirs": theirs}, total=total), BEYOND_CHANCE
        return compare([draw], key, [("ours", "theirs")], higher_is_better=False)[0].sign()

    rng, total = np.random.default_rng(0), torch.full((60, 1), 40)
    wide, narrow = rng.uniform(0.5, 0.99, 60)[:, None], np.full((60, 1), 0.75)
    wrong = 0
    for _ in range(200):
        a, b, c = (torch.from_numpy(rng.binomial(40, p, (60, 1))) for p in (wide, narrow, narrow))
        assert fairer(b, a) == 1
        wrong += fairer(b, c) != 0
    assert wrong <= 0.07 * 200


@pytest.mark.parametrize("columns", [3, 5])
def test_scores_whose_samples_have_no_known_variance_have_none(columns: int) -> None:
    """Of language and multilabel: the second sum is a share of tokens or labels, not a square."""
    sums = torch.tensor([[[9.0, 2.0, 40.0, 3.0, 7.0]], [[1.0, 9.0, 50.0, 5.0, 9.0]], [[5.0, 5.0, 9.0, 2.0, 4.0]]])
    sums, total = sums[..., :columns].double(), torch.tensor([[10], [10], [0]])
    assert not any("beyond_chance" in key for key in compute_metrics(sums, total).by_name())
    assert sampling_variances(sums, total).isnan().all()
    assert not knows_variances(sums, total)
    in_clients = true_spread_in_clients(sums.expand(3, 2, columns), total.expand(3, 2))
    for spread in (true_spread(sums, total), in_clients):
        assert all(map(math.isnan, spread[:7]))
        assert (spread.clients, spread.is_beyond_chance) == (2, False)
    estimates = client_estimates(sums, total)
    assert all(column.isnan().all() for column in estimates[:3])
    for higher_is_better in (True, False):
        assert estimates.worst(higher_is_better) is None
    score = scores_of(sums)[0]
    assert Worst.of(score, sums.sum(1), total.sum(1), ("a", "b", "c")) is None


def test_errors_of_one_sample_per_client_have_none() -> None:
    sums, total = torch.tensor([[[1.0, 1.0]], [[9.0, 81.0]], [[2.0, 4.0]]]).double(), torch.ones(3, 1).long()
    assert math.isnan(true_spread(sums, total).estimate)
    assert client_estimates(sums, total).worst(False) is None
    assert compute_metrics(sums, total).beyond_chance is None
    assert knows_variances(*errors(np.random.default_rng(0), 1.0)[:2])


def test_a_result_has_them() -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=6, max_train=40)
    result = ft.run([ft.fedavg()], federation, ft.models.logistic, rounds=2, participation=0.5, workers=0)
    found = result["fedavg"]
    assert isinstance(found.true_spread(), TrueSpread)
    assert found.true_spread().observed == pytest.approx(found.client_fairness)
    assert found.true_spread("group").clients == 10
    assert found.true_spread("group in client").observed >= found.client_data_fairness[0]  # root mean square
    with pytest.raises(InputError, match="over = 'x' is not possible; choose 'client'"):
        found.true_spread("x")
    frame, estimates = result.to_pandas(by="client"), found.client_estimates()
    assert list(frame.columns) == [
        "method", "client", "client_name", "correct", "samples", "accuracy", "estimate", "low", "high"
    ]  # fmt: skip
    assert frame["accuracy"].tolist() == (100 * found.sums.sum(1).double() / found.total.sum(1)).tolist()
    assert frame["low"].tolist() == estimates.low.tolist()
    assert frame["samples"].sum() == int(found.total.sum())


def test_the_likelihood_of_many_samples_is_that_of_its_single_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    total, correct = np.array([150_000, 90_000, 21_000, 400]), np.array([120_000, 71_000, 16_500, 390])
    mean, ratio = np.array([0.79, 0.8, 0.3, 0.999]), np.array([0.0, 1e-9, 1e-3, 3.0])
    found = BetaBinomial(correct, total)._log_likelihood(mean, ratio)
    monkeypatch.setattr("fedtilt.evaluation.spread_models._LARGE", 10**9)
    expected = BetaBinomial(correct, total)._log_likelihood(mean, ratio)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-4)
