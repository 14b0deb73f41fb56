"""Holm's correction by hand, and in a simulation of equal methods."""

import numpy as np
import pytest

from fedtilt.evaluation.statistics import mean_difference
from fedtilt.evaluation.verdicts import holm


def test_holm_by_hand() -> None:
    assert holm([0.005, 0.04, 0.011, 0.9]) == pytest.approx([0.02, 0.08, 0.033, 0.9])
    assert holm([0.02, 0.021, 0.3]) == pytest.approx([0.06, 0.06, 0.3])  # monotone: 2 · 0.021 is less than 0.06
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.04]) == [0.04]
    assert holm([]) == []


def test_holm_is_between_no_correction_and_bonferroni() -> None:
    p_values = np.random.default_rng(0).uniform(size=50).tolist()
    adjusted = holm(p_values)
    assert all(p <= a <= min(1.0, 50 * p) for p, a in zip(p_values, adjusted, strict=True))
    assert sorted(range(50), key=lambda i: (adjusted[i], p_values[i])) == sorted(range(50), key=lambda i: p_values[i])


def test_holm_keeps_the_rate_of_any_false_positive() -> None:
    runs = np.random.default_rng(1).normal(size=(600, 20, 5))  # 20 comparisons of equal methods
    p_values = [[mean_difference(row).p_value for row in run] for run in runs.tolist()]
    assert np.mean([min(run) < 0.05 for run in p_values]) > 0.5
    assert np.mean([min(holm(run)) < 0.05 for run in p_values]) == pytest.approx(0.05, abs=0.025)
