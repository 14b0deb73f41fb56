"""Fairness beyond chance: the formulas by hand; `tests/promises/test_spread.py` has its coverage."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import fedtilt as ft
from fedtilt.errors import InputError
from fedtilt.evaluation.client_differences import Draw
from fedtilt.evaluation.metrics import BEYOND_CHANCE, GroupCounts, compute_metrics, counts_of_chance
from fedtilt.evaluation.scores import sampling_variances, scores_of, variance_beyond_chance
from fedtilt.evaluation.true_spread import (
    TrueSpread,
    client_estimates,
    knows_variances,
    true_spread,
    true_spread_in_clients,
)
from fedtilt.evaluation.verdicts import compare
from fedtilt.report.summary import Worst

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


def q(values: list[float], variances: list[float]) -> float:
    """The weighted squares of a few scores, in Python."""
    weights = [1 / variance for variance in variances]
    mean = sum(w * a for w, a in zip(weights, values, strict=True)) / sum(weights)
    return sum(w * (a - mean) ** 2 for w, a in zip(weights, values, strict=True))


def test_ends_are_where_the_weighted_squares_cross_the_quantiles_of_chi_squared() -> None:
    """Three clients: 9 of 10, 4 of 8 and 12 of 20 are right, 25 of 38 together."""
    found = true_spread(torch.tensor([[9], [4], [12]]), torch.tensor([[10], [8], [20]]))
    values, rows, of_row = [90.0, 50.0, 60.0], [10, 8, 20], 1e4 * 25 / 38 * 13 / 38

    def at(t: float) -> float:
        return q(values, [t + (of_row - t) / n for n in rows])

    assert at(0) > stats.chi2.ppf(0.025, 2)
    assert at(0) < stats.chi2.ppf(0.975, 2)
    assert found.low == 0
    assert not found.is_beyond_chance
    assert at(of_row) > stats.chi2.ppf(0.025, 2)
    assert found.high == pytest.approx(math.sqrt(of_row))  # of three clients, no spread is excluded
    found = true_spread(torch.tensor([[9], [4], [12]]), torch.tensor([[10], [8], [20]]), confidence=0.5)
    assert at(found.low**2) == pytest.approx(stats.chi2.ppf(0.75, 2))
    assert at(found.high**2) == pytest.approx(stats.chi2.ppf(0.25, 2))


def test_where_shares_are_fixed_chance_is_within_classes() -> None:
    """By class, 8 of 9 and 7 of 8 are right in the first and 2 of 9 and 1 of 8 in the second."""
    sums, total = torch.tensor([[8, 0], [4, 1], [3, 2]]), torch.tensor([[9, 1], [4, 6], [4, 10]])
    found = true_spread(sums, total, 0.5, fixed_shares=True)
    average = 18 / 34  # each class has two average rows more
    first, second = (15 + 2 * average) / 19, (3 + 2 * average) / 19
    of_rows = [first * (1 - first), second * (1 - second)]
    base = [1e4 * (a * of_rows[0] + b * of_rows[1]) / (a + b) ** 2 for a, b in total.tolist()]
    values = [80.0, 50.0, 500 / 14]
    for end, level in ((found.low, 0.75), (found.high, 0.25)):
        assert q(values, [end**2 + chance for chance in base]) == pytest.approx(stats.chi2.ppf(level, 2))
    cells = [
        (81 * (8 / 9) * (1 / 9) / 8 + second * (1 - second)) / 100,  # the single row has the variance of its class
        36 * (1 / 6) * (5 / 6) / 5 / 100,
        (16 * (3 / 4) * (1 / 4) / 3 + 100 * (2 / 10) * (8 / 10) / 9) / 196,
    ]
    expected = np.var(values) - 2 / 3 * 1e4 * np.mean(cells)
    assert found.estimate == pytest.approx(math.sqrt(expected))
    assert found.estimate > true_spread(sums, total).estimate  # by total, the difference of the classes is chance
    by_class = GroupCounts(sums, total)
    metrics = compute_metrics(sums.sum(1, keepdim=True), total.sum(1, keepdim=True), by_class)
    assert metrics.beyond_chance == pytest.approx(found.estimate)


def test_without_counts_by_class_fixed_shares_leave_chance_unknown() -> None:
    sums, total = torch.tensor([[8, 0], [4, 1]]), torch.tensor([[9, 1], [4, 6]])
    by_sex, by_class = GroupCounts(sums, total), GroupCounts(sums.flip(1), total.flip(1))
    assert counts_of_chance({"sex": by_sex, "class": by_class}, False) is by_sex
    assert counts_of_chance({"sex": by_sex, "class": by_class}, True) is by_class
    counts = counts_of_chance({"sex": by_sex}, True)
    found = true_spread(*counts, fixed_shares=True)
    assert math.isnan(found.estimate)
    assert math.isnan(found.low)
    assert found.reason == "shares are fixed, and counts not by class"
    assert compute_metrics(sums, total, counts).beyond_chance is None
    assert not knows_variances(*counts, fixed_shares=True)
    assert client_estimates(*counts, fixed_shares=True).worst(True) is None


@pytest.mark.parametrize(
    ("sums", "total", "reason"),
    [
        ([[5], [9]], [[5], [9]], "all rows have the same score"),
        ([[0], [0]], [[5], [9]], "all rows have the same score"),
        ([[3], [0]], [[5], [0]], "there is one client"),
        ([[1], [0], [1]], [[1], [1], [1]], "every client has one row"),
    ],
)
def test_degenerate_counts_have_no_interval_and_say_so(
    sums: list[list[int]], total: list[list[int]], reason: str
) -> None:
    found = true_spread(torch.tensor(sums), torch.tensor(total))
    assert found.reason == reason
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert not found.is_beyond_chance
    assert client_estimates(torch.tensor(sums), torch.tensor(total)).worst(True) is None


def test_of_classes_that_one_client_alone_has_chance_is_not_known() -> None:
    found = true_spread(torch.diag(torch.tensor([6, 7, 8])), 9 * torch.eye(3, dtype=torch.long), fixed_shares=True)
    assert found.reason == "most rows are of classes that one client alone has"


def test_the_estimate_is_the_observed_variance_minus_the_binomial_one() -> None:
    correct, total, _ = draw("districts", np.random.default_rng(0))
    values = [100 * x / n for x, n in zip(correct[:, 0].tolist(), total[:, 0].tolist(), strict=True)]
    chance = [p * (100 - p) / (n - 1) for p, n in zip(values, total[:, 0].tolist(), strict=True)]
    mean, count = sum(values) / len(values), len(values)
    variance = sum((p - mean) ** 2 for p in values) / count
    expected = variance - (1 - 1 / count) * sum(chance) / count
    found = true_spread(correct, total)
    assert found.observed == pytest.approx(math.sqrt(variance))
    assert found.chance == pytest.approx(math.sqrt(variance - expected))
    assert found.estimate == pytest.approx(math.sqrt(max(0, expected)))
    metrics = compute_metrics(correct, total)
    assert metrics.beyond_chance == pytest.approx(found.estimate)
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


def test_the_estimate_is_unbiased() -> None:
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


def test_estimates_are_shrunk_and_only_a_client_beyond_chance_fails() -> None:
    correct, total = torch.tensor([[0], *[[85]] * 9]), torch.tensor([[3], *[[100]] * 9])
    found = client_estimates(correct, total)
    assert 0 < found.estimate[0] < 85 < found.high[0]
    assert found.worst(higher_is_better=True) is None
    found = client_estimates(torch.cat([correct, torch.tensor([[40]])]), torch.cat([total, torch.tensor([[100]])]))
    assert found.worst(higher_is_better=True) == 10
    assert 40 < found.estimate[10] < 50
    assert found.high[10] < found.mean


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
    assert compute_metrics(sums, total).beyond_chance == pytest.approx(found.estimate)


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
        assert all(map(math.isnan, spread[1:5]))
        assert spread.reason == "the variance of a row is not known"
        assert (spread.clients, spread.is_beyond_chance) == (2, False)
    estimates = client_estimates(sums, total)
    assert all(column.isnan().all() for column in estimates[:4])
    for higher_is_better in (True, False):
        assert estimates.worst(higher_is_better) is None
    score = scores_of(sums)[0]
    assert Worst.of(score, GroupCounts(sums, total), ("a", "b", "c")) is None


def test_errors_of_one_sample_per_client_have_none() -> None:
    sums, total = torch.tensor([[[1.0, 1.0]], [[9.0, 81.0]], [[2.0, 4.0]]]).double(), torch.ones(3, 1).long()
    assert math.isnan(true_spread(sums, total).estimate)
    assert client_estimates(sums, total).worst(False) is None
    assert compute_metrics(sums, total).beyond_chance is None
    assert knows_variances(*errors(np.random.default_rng(0), 1.0)[:2])


def test_a_result_has_them() -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=6, partition="iid", max_train=40)
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
