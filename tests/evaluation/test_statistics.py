"""Paired differences, by hand, against scipy, and in a simulation of equal methods."""

import math

import numpy as np
import pytest
from scipy import stats

from fedtilt.evaluation.statistics import mean_difference, paired_difference


def test_a_difference_by_hand() -> None:
    # differences 1, 2, 3, 4, 5: mean 3, std √2.5, error √0.5; the 97.5 % quantile of t with 4 degrees is 2.7764451
    difference = paired_difference([11.0, 22.0, 33.0, 44.0, 55.0], [10.0, 20.0, 30.0, 40.0, 50.0])
    assert difference.mean == 3.0
    assert difference.low == pytest.approx(3 - 2.7764451 * math.sqrt(0.5), abs=1e-6)
    assert difference.high == pytest.approx(3 + 2.7764451 * math.sqrt(0.5), abs=1e-6)
    assert difference.effect_size == pytest.approx(3 / math.sqrt(2.5))
    # for 4 degrees, P(|t| > x) = 1 − s (3 − s²) / 2 with s = x / √(4 + x²); here x = √18
    s = math.sqrt(18 / 22)
    assert difference.p_value == pytest.approx(1 - s * (3 - s * s) / 2, rel=1e-9)
    assert difference.pairs == 5


@pytest.mark.parametrize("seeds", [2, 3, 5, 10, 100])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_against_scipy(seeds: int, confidence: float) -> None:
    rng = np.random.default_rng(seeds)
    ours, theirs = rng.normal(1.0, 2.0, seeds), rng.normal(0.0, 1.0, seeds)
    difference = paired_difference(ours.tolist(), theirs.tolist(), confidence)
    test = stats.ttest_rel(ours, theirs)
    interval = test.confidence_interval(confidence)
    assert difference.p_value == pytest.approx(test.pvalue, rel=1e-9)
    assert (difference.low, difference.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert (difference.sign() != 0) == (test.pvalue < 1 - confidence)
    back = paired_difference(theirs.tolist(), ours.tolist(), confidence)
    assert (back.mean, back.low, back.high, back.sign()) == pytest.approx(
        (-difference.mean, -difference.high, -difference.low, -difference.sign())
    )


def test_one_pair_has_no_interval() -> None:
    difference = mean_difference([5.0])
    assert (difference.low, difference.high, difference.p_value) == (-math.inf, math.inf, 1.0)
    assert math.isnan(difference.effect_size)
    assert difference.sign() == 0


def test_no_pair_and_unequal_numbers_are_errors() -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean_difference([])
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0, 2.0], [1.0])


def test_differences_without_variance() -> None:
    equal = paired_difference([90.0, 91.0], [90.0, 91.0])
    assert (equal.p_value, equal.sign(), equal.effect_size) == (1.0, 0, 0.0)
    below = paired_difference([89.0, 90.0, 91.0], [90.0, 91.0, 92.0])
    assert (below.p_value, below.sign(), below.effect_size) == (0.0, -1, -math.inf)
    rounding = paired_difference([0.1 + 0.2, 0.3], [0.3, 0.3])  # 0.1 + 0.2 is 5.6e-17 above 0.3
    assert (rounding.p_value, rounding.sign()) == (1.0, 0)


def test_a_margin_shifts_the_limit() -> None:
    difference = mean_difference([5.0, 6.0, 7.0])  # 6 ± 2.48
    assert [difference.sign(margin) for margin in (0.0, 3.0, 4.0)] == [1, 1, 0]
    assert mean_difference([-5.0, -6.0, -7.0]).sign(3.0) == -1


def test_equal_methods_differ_as_often_as_the_confidence_says() -> None:
    runs = np.random.default_rng(0).normal(size=(4000, 2, 5))  # two equal methods, five seeds
    at_95, beyond_error = 0, 0
    for ours, theirs in runs.tolist():
        difference = paired_difference(ours, theirs)
        at_95 += difference.sign() != 0
        beyond_error += abs(difference.effect_size) * math.sqrt(5) > 1  # more than one standard error
    assert at_95 / 4000 == pytest.approx(0.05, abs=0.01)
    assert beyond_error / 4000 == pytest.approx(0.374, abs=0.025)
