"""Comparisons of predictions on the same samples: intervals, sign tests and Holm's correction."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from fedtilt.data.groups import CLASS
from fedtilt.evaluation.comparison import _sign_test, compare
from fedtilt.evaluation.groups import Grouping
from fedtilt.evaluation.predictions import CLIENT, Predictions


def predictions(correct: torch.Tensor, clients: torch.Tensor) -> Predictions:
    """Two classes, labels 0; where `correct` is false, class 1 is predicted."""
    outputs = torch.where(correct[:, None], torch.tensor([0.9, 0.1]), torch.tensor([0.1, 0.9]))
    names = tuple(f"c{n}" for n in range(int(clients.max()) + 1))
    by = {CLIENT: Grouping(CLIENT, names, clients), CLASS: Grouping(CLASS, ("a", "b"), torch.zeros_like(clients))}
    return Predictions(outputs=outputs, groupings=by)


def draw(clients: int, samples: int, seed: int) -> tuple[Predictions, Predictions, np.ndarray]:
    rng = np.random.default_rng(seed)
    owner = torch.arange(clients).repeat_interleave(samples)
    ours, theirs = (torch.from_numpy(rng.random(clients * samples) < p) for p in (0.8, 0.6))
    gains = 100.0 * (ours.double() - theirs.double()).reshape(clients, samples).numpy()
    return predictions(ours, owner), predictions(theirs, owner), gains


def test_over_many_clients_the_interval_is_students_t_and_over_few_that_of_their_samples() -> None:
    ours, theirs, gains = draw(12, 30, 0)
    found = compare([(ours, theirs)])
    expected = stats.ttest_1samp(gains.mean(1), 0.0).confidence_interval(0.95)
    assert found.difference.mean == pytest.approx(gains.mean())
    assert (found.difference.low, found.difference.high) == pytest.approx(tuple(expected))
    assert list(found.clients.values()) == pytest.approx(gains.mean(1).tolist())
    ours, theirs, gains = draw(3, 40, 1)
    error = math.sqrt((gains.var(1, ddof=1) / 40).sum()) / 3
    found = compare([(ours, theirs)])
    assert found.difference.high - found.difference.mean == pytest.approx(stats.norm.ppf(0.975) * error)


def test_the_difference_of_a_client_is_its_mean_over_seeds() -> None:
    (a, b, first), (c, d, second) = draw(9, 30, 2), draw(9, 30, 3)
    found = compare([(a, b), (c, d)])
    means = (first.mean(1) + second.mean(1)) / 2
    assert list(found.clients.values()) == pytest.approx(means.tolist())
    expected = stats.ttest_1samp(means, 0.0).confidence_interval(0.95)
    assert (found.difference.low, found.difference.high) == pytest.approx(tuple(expected))
    assert found.p_values == compare([(a, b)]).p_values


def test_clients_are_tested_by_mcnemar_and_named_after_holm() -> None:
    owner = torch.arange(3).repeat_interleave(20)
    ours = torch.tensor([False] * 12 + [True] * 8 + [True] * 20 + [False] * 3 + [True] * 17)
    theirs = torch.tensor([True] * 20 + [True] * 5 + [False] * 15 + [True] * 20)
    found = compare([(predictions(ours, owner), predictions(theirs, owner))])
    expected = [stats.binomtest(0, 12).pvalue, stats.binomtest(15, 15).pvalue, stats.binomtest(0, 3).pvalue]
    assert list(found.p_values.values()) == pytest.approx(expected)
    assert found.worse() == ["c0"]  # c1 is better; c2 is worse by three samples, which is chance
    assert found.worse(level=1e-4) == []


def test_numbers_compare_by_their_absolute_error() -> None:
    owner = torch.arange(6).repeat_interleave(5)
    target = torch.linspace(0, 1, 30)
    by = {CLIENT: Grouping(CLIENT, tuple("abcdef"), owner), "range": Grouping("range", ("x",), torch.zeros_like(owner))}
    near, far = (Predictions(outputs=target.double() + error, groupings=by, numbers=target) for error in (0.1, -0.4))
    assert compare([(near, far)]).difference.mean == pytest.approx(0.3, rel=1e-5)
    assert compare([(far, near)]).worse(0.5) == list("abcdef")


def test_the_spread_of_true_differences_is_that_of_the_first_seed() -> None:
    """Half of the clients gain 40 points, and half lose 40, each on 50 samples."""
    codes = torch.arange(8).repeat_interleave(50)
    labels = torch.zeros(400, dtype=torch.long)
    by = {CLIENT: Grouping(CLIENT, tuple("abcdefgh"), codes), "class": Grouping("class", ("x", "y"), labels)}
    first = (torch.arange(400) % 50 < 10) | (codes >= 4) & (torch.arange(400) % 50 < 30)
    second = (torch.arange(400) % 50 < 10) | (codes < 4) & (torch.arange(400) % 50 < 30)
    ours, theirs = (
        Predictions(outputs=torch.stack([right, ~right], 1).float(), groupings=by) for right in (first, second)
    )
    spread = compare([(ours, theirs), (theirs, theirs)]).spread
    assert spread is not None
    assert spread.observed == pytest.approx(40)
    assert spread.chance == pytest.approx(math.sqrt(7 / 8 * (1e4 * 0.4 * 0.6) / 49))
    assert spread.low > 0
    equal = compare([(ours, ours)]).spread
    assert equal is not None
    assert (equal.observed, equal.estimate, equal.reason) == (0, 0, "all rows have the same score")


def test_a_sign_test_of_a_large_client_takes_no_longer() -> None:
    for wins, losses in ((0, 0), (0, 1), (3, 9), (7, 7), (40, 61)):
        exact = min(
            1.0, 2 * sum(math.comb(wins + losses, k) for k in range(min(wins, losses) + 1)) / 2 ** (wins + losses)
        )
        assert _sign_test(wins, losses) == pytest.approx(exact, rel=1e-12)
    for wins, losses in ((150_000, 149_000), (1_000_000, 1_010_000)):
        assert _sign_test(wins, losses) == pytest.approx(stats.binomtest(wins, wins + losses).pvalue, rel=1e-9)
