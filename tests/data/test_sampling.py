"""Which rows are drawn: every row with the same chance, and classes in proportion without bias."""

import numpy as np
import pytest

from fedtilt.data.sampling import Split, proportional_counts, random_groups

DRAWS = 4000


@pytest.mark.parametrize(
    ("counts", "total"), [([29, 1], 8), ([27, 2, 1], 7), ([10, 10], 5), ([5, 3, 2, 1, 1], 3), ([7], 2), ([1, 1, 1], 2)]
)
def test_proportional_rows_are_rounded_without_bias(counts, total):
    """The expected number of every class is exactly its share, and each draw is within one of it."""
    counts, rng = np.array(counts), np.random.default_rng(0)
    exact = counts * total / counts.sum()
    draws = np.array([proportional_counts(counts, total, rng) for _ in range(DRAWS)])
    assert (draws.sum(1) == total).all()
    assert (np.abs(draws - exact) < 1).all()
    error = np.sqrt((exact % 1) * (1 - exact % 1) / DRAWS)
    assert (np.abs(draws.mean(0) - exact) <= 4 * error + 1e-9).all()


def test_a_rare_class_keeps_its_share_over_clients():
    """60 clients with 30 rows and 4 % of a class, of which the largest remainder left 1.7 %."""
    rng, drawn, of_all = np.random.default_rng(1), [], []
    for _ in range(100):
        for _ in range(60):
            labels = (rng.random(30) < 0.04).astype(np.int64)
            drawn.append(labels[Split(how="proportional", strata=labels).draw(30, 8, rng)].mean())
            of_all.append(labels.mean())
    assert np.mean(drawn) == pytest.approx(np.mean(of_all), abs=0.002)


@pytest.mark.parametrize("how", ["random", "proportional"])
def test_every_row_has_the_same_chance(how):
    labels, rng = np.array([0] * 7 + [1] * 2 + [2]), np.random.default_rng(0)
    split = Split(how=how, strata=labels)
    drawn = np.mean([split.draw(10, 3, rng) for _ in range(DRAWS)], axis=0)
    assert drawn == pytest.approx(np.full(10, 0.3), abs=4 * np.sqrt(0.21 / DRAWS))


def test_random_rows_say_nothing_of_a_class():
    """The number of a class among random rows is hypergeometric: its variance is not that of rounding."""
    labels, rng = np.array([0] * 20 + [1] * 20), np.random.default_rng(0)
    counts = [labels[Split().draw(40, 10, rng)].sum() for _ in range(DRAWS)]
    assert np.var(counts) == pytest.approx(10 * 0.5 * 0.5 * 30 / 39, rel=0.1)


@pytest.mark.parametrize("sizes", [[4] * 8, [1] * 10 + [10], [5, 1, 1, 1], [1, 1, 8, 2, 4], [20, 30]])
def test_groups_are_drawn_whatever_their_size(sizes):
    """Every row has the same chance: people with many rows are test data as often as others."""
    group, rng = np.repeat(np.arange(len(sizes)), sizes), np.random.default_rng(0)
    drawn = np.array([random_groups(group, round(0.25 * len(group)), rng) for _ in range(DRAWS)])
    for number in range(len(sizes)):
        rows = drawn[:, group == number]
        assert (rows.std(1) == 0).all()  # on one side
    share = max(1, round(0.25 * len(sizes))) / len(sizes)
    assert drawn.mean(0) == pytest.approx(np.full(len(group), share), abs=4 * np.sqrt(0.25 / DRAWS))
