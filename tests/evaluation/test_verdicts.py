"""Who is better: tests of rows and of clients, seeds that share rows, and several methods."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from fedtilt.evaluation.client_differences import Draw, Rows, differences
from fedtilt.evaluation.metrics import BEYOND_CHANCE, compute_metrics
from fedtilt.evaluation.verdicts import Verdict, best, compare, holm
from fedtilt.evaluation.weighted_predictions import PredictedClasses

LABELS = 2


def draw_of(right: dict[str, np.ndarray], clients: np.ndarray, *, with_rows: bool = True) -> Draw:
    """A draw of methods that are right in these rows, (rows,) bool; classes alternate."""
    shape, group = (int(clients.max()) + 1, LABELS), np.arange(len(clients)) % LABELS
    sums = {name: np.zeros(shape, dtype=int) for name in right}
    total = np.zeros(shape, dtype=int)
    np.add.at(total, (clients, group), 1)
    for name, found in right.items():
        np.add.at(sums[name], (clients[found], group[found]), 1)
    rows = {name: Rows(clients, 100.0 * found, None) for name, found in right.items()}
    tables = {name: torch.from_numpy(table) for name, table in sums.items()}
    return Draw(sums=tables, total=torch.from_numpy(total), rows=rows.get if with_rows else lambda name: None)


def random_draw(clients: int, rows: int, seed: int, shares: tuple[float, ...] = (0.8, 0.7), **options: bool) -> Draw:
    rng = np.random.default_rng(seed)
    owner = np.arange(clients).repeat(rows)
    return draw_of({f"m{n}": rng.random(len(owner)) < share for n, share in enumerate(shares)}, owner, **options)


def accuracy(draws: list[Draw], **options) -> Verdict:
    return compare(draws, "accuracy", [("m0", "m1")], higher_is_better=True, **options)[0]


def one_sided(wins: int, losses: int, equal: int, clients: int = 1, **options: bool) -> Draw:
    """Rows that only m0 has right, that only m1 has right, and that both have right, dealt out to clients in turn."""
    ours = np.array([True] * wins + [False] * losses + [True] * equal)
    theirs = np.array([False] * wins + [True] * losses + [True] * equal)
    return draw_of({"m0": ours, "m1": theirs}, np.arange(len(ours)) % clients, **options)


# -- one draw ----------------------------------------------------------------------------------------------------------


def test_of_one_client_it_is_mcnemars_exact_test() -> None:
    for wins, losses in ((5, 0), (9, 2), (20, 8), (3, 3)):
        found = accuracy([one_sided(wins, losses, 30)])
        assert found.p_value == pytest.approx(stats.binomtest(wins, wins + losses).pvalue)
        assert found.difference == pytest.approx(100 * (wins - losses) / (wins + losses + 30))
    assert accuracy([one_sided(0, 0, 30)])[:4] == (0, 0, 0, 1)


def test_signs_of_few_rows_at_clients_of_other_sizes_are_enumerated() -> None:
    clients = np.array([0] * 10 + [1] * 4)
    ours, theirs = np.ones(14, dtype=bool), np.ones(14, dtype=bool)
    theirs[[0, 1, 10]] = False  # a row of the first client counts 1 / 20, of the second 1 / 8
    ours[11] = False
    terms = 100 * np.array([1 / 20, 1 / 20, 1 / 8, -1 / 8])
    sums = [abs(sum(np.array(signs) * terms)) for signs in itertools.product((1, -1), repeat=4)]
    found = accuracy([draw_of({"m0": ours, "m1": theirs}, clients)])
    assert found.difference == pytest.approx(10)
    assert found.p_value == pytest.approx(np.mean(np.array(sums) >= sum(terms) - 1e-9))


def test_over_many_clients_it_is_students_t_unless_differences_are_few_or_equal() -> None:
    draw = random_draw(30, 40, 0)
    gains = 100 * (draw.sums["m0"] - draw.sums["m1"]).sum(1).numpy() / 40
    expected = stats.ttest_1samp(gains[gains != 0], 0.0)
    found = accuracy([draw])
    assert found.p_value == pytest.approx(max(stats.ttest_1samp(gains, 0.0).pvalue, expected.pvalue))
    near = random_draw(30, 40, 5, (0.7, 0.7))
    gains = 100 * (near.sums["m0"] - near.sums["m1"]).sum(1).numpy() / 40
    expected = stats.ttest_1samp(gains, 0.0)
    found = accuracy([near])
    assert found.p_value == pytest.approx(expected.pvalue, abs=0.01)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=0.02)
    equal = accuracy([one_sided(6, 0, 54, clients=6)])  # a row of each client
    assert equal.p_value == pytest.approx(2 / 2**6)
    assert equal.low == pytest.approx(
        equal.difference - stats.t.ppf(0.975, 5) * equal.difference / stats.t.ppf(1 - 1 / 2**6, 5)
    )
    three = accuracy([one_sided(3, 0, 297, clients=60)])
    assert three.p_value == pytest.approx(0.25)
    assert three.low < 0 < three.high


def test_p_is_never_0() -> None:
    for clients, with_rows in ((1, True), (1, False), (3, False), (6, True), (6, False), (200, False)):
        draw = one_sided(200, 0, 0, clients, with_rows=with_rows)
        found = accuracy([draw, draw])
        assert found.difference == 100
        assert (
            found.p_value == pytest.approx(4 / 2**6) if clients == 6 else 0 < found.p_value < 0.05
        )  # signs of six clients
        assert found.sign() == (found.low > 0)


def test_counts_alone_say_less_than_rows_about_few_clients() -> None:
    draw = random_draw(3, 60, 1)
    paired, alone = accuracy([draw]), accuracy([random_draw(3, 60, 1, with_rows=False)])
    assert alone.difference == pytest.approx(paired.difference)
    assert alone.high - alone.low > 0.8 * (paired.high - paired.low)
    assert accuracy([one_sided(3, 0, 0, with_rows=False)]).p_value == pytest.approx(2 / 2**3)


@pytest.mark.parametrize(
    ("key", "higher"),
    [("accuracy", True), ("client_fairness", False), ("client_data_fairness_mean", False), ("worst", True),
     ("client_data_fairness_std", False), ("best", True), (BEYOND_CHANCE, False)],
)  # fmt: skip
def test_differences_are_those_of_the_metrics(key: str, higher: bool) -> None:
    draw = random_draw(25, 30, 2, (0.75, 0.7))
    ours, theirs = (compute_metrics(draw.sums[name], draw.total).by_name()[key] for name in ("m0", "m1"))
    found = differences(draw, key, [("m0", "m1"), ("m1", "m0")], higher_is_better=higher)
    expected = ours - theirs if higher else theirs - ours
    assert found.value == pytest.approx([expected, -expected], abs=1e-9)
    if key not in ("worst", "best", BEYOND_CHANCE):  # the limits of the tenths are a compromise of both methods
        assert found.terms.mean(1) == pytest.approx(found.value, abs=1e-9)


def test_groups_over_all_clients() -> None:
    draw = random_draw(25, 30, 3, (0.75, 0.7))
    scores = {name: 100 * (table.sum(0).double() / draw.total.sum(0)).numpy() for name, table in draw.sums.items()}
    for key, of in (("group 1", lambda v: v[1]), ("worst group", min), ("group spread", np.std)):
        (found,) = compare([draw], key, [("m0", "m1")], higher_is_better=True)
        assert found.difference == pytest.approx(of(scores["m0"]) - of(scores["m1"]))
        assert found.low < found.difference < found.high


def test_what_cannot_be_said_has_a_reason() -> None:
    draw, few = random_draw(25, 30, 3), random_draw(4, 30, 3)
    for draws, key, reason in (
        ([draw], "minimum", "one client alone, chosen by its rows"),
        ([few], "client_fairness", "fewer than 5 clients"),
        ([draw], "auprc", "the predictions are not stored"),
    ):
        (found,) = compare(draws, key, [("m0", "m1")], higher_is_better=True)
        assert (found.low, found.high, found.p_value, found.reason) == (-math.inf, math.inf, 1.0, reason)
        assert found.sign() == 0


def test_the_auprc_has_the_error_of_a_jackknife_over_clients() -> None:
    rng, owner = np.random.default_rng(4), np.arange(40).repeat(30)
    labels = (rng.random(len(owner)) < 0.1).astype(int)

    def rows(signal: float) -> Rows:
        p = 1 / (1 + np.exp(-(signal * (labels - 0.5) + rng.normal(size=len(owner)))))
        return Rows(owner, None, PredictedClasses(labels, np.stack([1 - p, p], 1), rarer=1))

    of = {"m0": rows(3.0), "m1": rows(1.0), "m2": rows(1.0)}
    draw = Draw(sums=dict.fromkeys(of, torch.ones(40, 1, dtype=torch.long)), total=torch.full((40, 1), 30), rows=of.get)
    better, equal = compare([draw], "auprc", [("m0", "m1"), ("m1", "m2")], higher_is_better=True)
    assert better.sign() == 1
    assert equal.sign() == 0
    assert equal.high - equal.low < 0.3


# -- several draws -----------------------------------------------------------------------------------------------------


def of_new_data(draws: list[Draw], new_data: bool = True) -> list[Draw]:
    return [replace(draw, new_data=new_data) for draw in draws]


def test_p_over_seeds_is_twice_their_median() -> None:
    draws = [one_sided(wins, 0, 40) for wins in (6, 8, 7)]
    assert accuracy(draws).p_value == pytest.approx(2 * 2 / 2**7)
    assert accuracy([draws[0], draws[0]]).p_value == pytest.approx(2 * 2 / 2**6)
    assert 2 * 2 / 2**8 < accuracy(draws[:2]).p_value < 2 * 2 / 2**6
    assert accuracy([draws[0], draws[0], one_sided(0, 9, 40)]).p_value == pytest.approx(2 * 2 / 2**6)
    assert accuracy([draws[0], one_sided(0, 6, 40)]).p_value == 1.0
    assert accuracy([one_sided(1, 0, 40)] * 3).p_value == 1.0


def test_the_interval_agrees_with_p() -> None:
    for seed in range(40):
        draws = [random_draw(6 + seed, 10, 10 * seed + n, (0.8, 0.7)) for n in range(1 + seed % 5)]
        for new_data in (False, True):
            for confidence in (0.5, 0.9, 0.99):
                found = accuracy(of_new_data(draws, new_data), confidence=confidence)
                assert (found.sign(1 - confidence) > 0) == (found.low > 0)
                assert (found.sign(1 - confidence) < 0) == (found.high < 0)
                assert found.low <= found.difference <= found.high


def test_seeds_of_new_data_are_a_sample() -> None:
    draws = [random_draw(20, 40, seed, (0.8, 0.72)) for seed in range(6)]
    gains = [accuracy([draw]).difference for draw in draws]
    found = accuracy(of_new_data(draws))
    assert found.p_value >= stats.ttest_1samp(gains, 0.0).pvalue
    assert found.p_value < accuracy(draws).p_value
    same = accuracy(of_new_data([draws[0]] * 6))  # no seed differs: the rows within each do
    assert same.high - same.low > 0.5 * (accuracy(draws[:1]).high - accuracy(draws[:1]).low) / math.sqrt(6)
    assert accuracy(of_new_data(draws[:2])) == accuracy(draws[:2])


# -- several methods ---------------------------------------------------------------------------------------------------


def test_holm_corrects_the_smallest_p_by_the_number_of_tests() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.04, 0.001, 0.2, 0.0125]) == pytest.approx([0.08, 0.004, 0.2, 0.0375])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def best_of(draws: list[Draw], **options) -> tuple[str, ...]:
    names = list(draws[0].sums)
    values = {n: np.mean([compute_metrics(d.sums[n], d.total).accuracy for d in draws]) for n in names}
    return best(draws, "accuracy", values, higher_is_better=True, **options).names


def test_one_method_is_named_only_if_it_is_better_than_every_other() -> None:
    assert best_of([random_draw(30, 40, 0, (0.6, 0.8, 0.7))]) == ("m1",)
    first, *others = best_of([random_draw(30, 40, 2, (0.8, 0.8, 0.5))])
    assert {first, *others} == {"m0", "m1"}
    assert best_of([random_draw(30, 40, 1, (0.8,))]) == ("m0",)
    same = np.arange(300) % 7 > 0
    equal = draw_of({"m0": same, "m1": same, "m2": ~same}, np.arange(300) % 10)
    assert best_of([equal]) == ("m0", "m1")


def test_between_the_first_and_one_other_all_pairs_are_corrected() -> None:
    """m1 is worse than m0 with p = 0.031 alone; m2 is not, so that m0 is not the best and three pairs count."""
    same = np.arange(40) < 30
    worse, other = same.copy(), same.copy()
    worse[:6], other[10] = False, False
    draw = draw_of({"m0": same, "m1": worse, "m2": other}, np.zeros(40, dtype=int))
    assert best_of([draw]) == ("m0", "m1", "m2")
    assert best_of([draw_of({"m0": same, "m1": worse}, np.zeros(40, dtype=int))]) == ("m0",)
    worse[:8] = False  # p = 0.0078, times 3
    assert best_of([draw_of({"m0": same, "m1": worse, "m2": other}, np.zeros(40, dtype=int))]) == ("m0", "m2")


def test_a_difference_that_disappears_in_the_table_is_not_told_apart() -> None:
    draw = one_sided(20, 0, 20_000)
    assert best_of([draw]) == ("m0",)
    assert best_of([draw], digits=0) == ("m0", "m1")
