"""The difference of two settings from records: by hand, in a simulation, and the only way there is."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedtilt.evaluation.client_differences import Draw
from fedtilt.evaluation.metrics import compute_metrics
from fedtilt.evaluation.verdicts import compare, of_summaries, of_units
from reproduction.experiments.paired import COMPARED_METRICS
from reproduction.records import below, best_rows, difference, interaction, methods_of, outcome, standard_errors
from tests.helpers.handmade_results import metrics, part

ROOT = Path(__file__).parents[2]
ACCURACY, CLIENT, MEAN, STD, WORST = COMPARED_METRICS


def by_seed(*accuracy: float, client: float = 1.0) -> dict[int, dict[str, Any]]:
    return {seed: part(metrics(value, client)) for seed, value in enumerate(accuracy)}


def test_a_difference_by_hand() -> None:
    """The middle of three seeds at half the error, with the unpaired standard error of 10 clients."""
    found = difference(by_seed(92.0, 95.0, 91.5, client=3.0), by_seed(90.0, 90.0, 90.0, client=4.0), ACCURACY, 10)
    assert found is not None
    error, margin = math.sqrt((9 + 16) / 9), stats.t.ppf(1 - 0.025 / 2, 9)
    verdict = found.verdict
    assert (verdict.difference, found.seeds) == (pytest.approx(17 / 6), 3)
    assert verdict.p_value == pytest.approx(2 * 2 * stats.t.sf(2 / error, 9))
    assert verdict.low == pytest.approx(2 - margin * error)
    assert verdict.high == pytest.approx(2 + margin * error)
    assert outcome(found) == "not told apart"


def test_standard_errors_by_hand() -> None:
    ours = metrics(90.0, 3.0, 4.0, 2.0) | {"minimum": 80.0, "best": 95.0}
    theirs = metrics(91.0, 6.0, 5.0, 1.0) | {"minimum": 87.0, "best": 95.0}
    assert standard_errors([ours, theirs], "accuracy", 10) == [1.0, 2.0]
    assert standard_errors([ours, theirs], "client_data_fairness_mean", 5) == [1.0, 0.5]
    assert standard_errors([ours, theirs], "client_fairness", 26) == pytest.approx(
        [1.25 * math.sqrt((100 - 9) / 100), 1.25 * math.sqrt(72 / 100)]  # R = 10 of ours; 2 s² is more than R² − s²
    )
    assert standard_errors([ours, theirs], "client_data_fairness_std", 26) == pytest.approx(
        [1.25 * math.sqrt((16**2 - 4) / 100), 1.25 * math.sqrt((16**2 - 1) / 100)]  # 20 points of error, less 4
    )
    assert standard_errors([ours], "worst", 10) == [math.inf]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((91.0, 92.0, 93.0), (90.0, 91.0, 92.0), "better"),  # the error is 0.14
        ((90.0, 91.0, 92.0), (91.0, 92.0, 93.0), "worse"),
        ((91.0, 90.0, 92.0), (90.0, 91.0, 91.9), "not told apart"),
        ((95.0, 90.0, 80.0), (90.0, 90.0, 90.0), "not told apart"),  # the mean and the middle do not agree
        ((91.0,), (90.0,), "ahead"),
        ((90.0,), (90.0,), "not ahead"),
        ((), (90.0,), "not measured"),
        ((90.0, 90.0), (90.0, 90.0), "not told apart"),
    ],
)
def test_outcomes(ours: tuple[float, ...], theirs: tuple[float, ...], expected: str) -> None:
    assert outcome(difference(by_seed(*ours), by_seed(*theirs), ACCURACY, 100)) == expected


def test_lower_fairness_is_better_and_margins_and_limits_count() -> None:
    fair, unfair = by_seed(90.0, 90.0, 90.0), by_seed(90.0, 90.0, 90.0, client=4.0)
    found, back = difference(fair, unfair, CLIENT, 100), difference(unfair, fair, CLIENT, 100)
    assert (outcome(found), outcome(back)) == ("better", "worse")
    assert (outcome(found, 2.0), outcome(found, 2.9)) == ("better", "not told apart")
    assert [below(found, limit) for limit in (4.0, 3.1, 2.0)] == ["better", "not told apart", "worse"]
    assert outcome(difference(fair, unfair, ACCURACY, 100)) == "not told apart"
    assert best_rows({"fair": fair, "unfair": unfair, "as fair": fair}, CLIENT, 100) == ["fair", "as fair"]


def test_of_the_worst_clients_nothing_can_be_said() -> None:
    found = difference(by_seed(90.0, 91.0), by_seed(60.0, 61.0), WORST, 100)
    assert found is not None
    assert (found.verdict.difference, found.verdict.low, found.verdict.p_value) == (30.0, -math.inf, 1.0)
    assert (found.is_known, outcome(found)) == (False, "not told apart")
    assert best_rows({"a": by_seed(90.0), "b": by_seed(60.0)}, WORST, 100) == []


def test_shared_models_can_be_compared_where_personal_ones_are_evaluated() -> None:
    tilted = {s: {"test": {"shared": metrics(60.0 - s), "personal": metrics(95.0 + s)}} for s in range(3)}
    plain = {s: {"test": {"shared": metrics(70.0), "personal": None}} for s in range(3)}
    assert outcome(difference(tilted, plain, ACCURACY, 100)) == "better"
    assert outcome(difference(tilted, plain, ACCURACY, 100, "shared")) == "worse"
    assert difference(tilted, plain, ACCURACY, 100, "personal") is None


def test_only_common_seeds_are_paired() -> None:
    ours, theirs = by_seed(10.0, 91.0, 92.0), by_seed(0.0, 90.0, 91.0, 99.0)
    del ours[0], theirs[0]
    found = difference(ours, theirs, ACCURACY, 100)
    assert found is not None
    assert (found.seeds, found.verdict.difference) == (2, 1.0)


def test_the_errors_of_two_gains_add_up() -> None:
    low, high = by_seed(90.0, 91.0, 92.0), by_seed(95.0, 96.0, 97.0)
    found, gain = interaction((high, low), (low, low), ACCURACY, 100), difference(high, low, ACCURACY, 100)
    assert found is not None
    assert gain is not None
    assert found.verdict.difference == gain.verdict.difference == 5.0
    width, of_gain = (verdict.high - verdict.low for verdict in (found.verdict, gain.verdict))
    assert width == pytest.approx(2 * of_gain)
    assert interaction((high, low), ({}, low), ACCURACY, 100) is None


def test_counts_of_clients_are_compared_where_they_are_recorded() -> None:
    """Every client gains one point of two classes, which the spread over clients would hide."""
    samples = [[50, 50] for _ in range(30)] + [[100]]
    theirs = [[20 + n // 2, 20 + n % 2] for n in range(30)] + [[60]]
    ours = [[of_class + 1 for of_class in client] for client in theirs]

    def record(correct: list[list[int]]) -> dict[str, Any]:
        padded, total = (torch.tensor([(*row, 0)[:2] for row in rows]) for rows in (correct, samples))
        found = compute_metrics(padded, total).by_name()
        test = {"shared": found, "personal": None, "correct": {"shared": correct, "personal": None}}
        return methods_of({"methods": {"a": {"test": test}}, "samples": samples})["a"]

    both = [{seed: record(correct) for seed in range(3)} for correct in (ours, theirs)]
    found = difference(*both, ACCURACY, 31)
    assert found is not None
    padded = {name: torch.tensor([(*row, 0)[:2] for row in rows]) for name, rows in (("a", ours), ("b", theirs))}
    draw = Draw(sums=padded, total=torch.tensor([(*row, 0)[:2] for row in samples]))
    assert found.verdict == compare([draw] * 3, "accuracy", [("a", "b")], higher_is_better=True)[0]
    assert outcome(found) == "better"
    old = [{seed: {"test": method["test"]} for seed, method in setting.items()} for setting in both]
    assert outcome(difference(*old, ACCURACY, 31)) == "not told apart"
    of_worst = difference(*both, WORST, 31)
    assert of_worst is not None
    assert of_worst.is_known


@pytest.mark.parametrize("clients", [20, 100])
@pytest.mark.parametrize("kind", ["beta", "exponential", "some fail"])
def test_equal_settings_are_told_apart_in_one_case_of_twenty(kind: str, clients: int) -> None:
    """Two settings of one distribution of skewed accuracies, of which none knows the other’s clients."""
    rng, found = np.random.default_rng(0), dict.fromkeys(("accuracy", "client_fairness", "data"), 0)
    draws = 1000
    true = {
        "beta": rng.beta(20, 1, (draws, 2, 2, clients)),
        "exponential": 1 - np.minimum(0.5, rng.exponential(0.03, (draws, 2, 2, clients))),
        "some fail": np.where(rng.random((draws, 2, 2, clients)) < 0.05, 0.7, 0.98),
    }[kind]
    by_class = 100 * rng.binomial(50, true) / 50  # (draws, settings, classes, clients)
    accuracy, spread = by_class.mean(2), by_class.std(2)
    for of_clients, of_classes in zip(accuracy, spread, strict=True):
        pair = [
            {"accuracy": a.mean(), "client_fairness": a.std(), "client_data_fairness_mean": s.mean(),
             "client_data_fairness_std": s.std(), "minimum": a.min(), "best": np.sort(a)[-clients // 10 :].mean()}
            for a, s in zip(of_clients, of_classes, strict=True)
        ]  # fmt: skip
        for name, key in zip(found, ("accuracy", "client_fairness", "client_data_fairness_std"), strict=True):
            error = math.hypot(*standard_errors(pair, key, clients))
            gap = np.array([[pair[0][key] - pair[1][key]]])
            found[name] += of_summaries(gap, np.array([[error]]), clients - 1)[0].sign() != 0
    assert max(found.values()) <= 0.055 * draws + 2 * math.sqrt(0.055 * 0.945 * draws), found


def test_summaries_of_new_data_are_a_sample() -> None:
    values = np.array([[1.0], [2.0], [3.0], [4.0], [5.0]])
    found = of_summaries(values, np.zeros((5, 1)), 4, new_data=True)[0]
    # mean 3, std √2.5, error √0.5; the implied errors of single draws are larger
    implied = np.abs(values[:, 0]) / stats.t.ppf(1 - 2**-4 / 2, 4)
    error = math.sqrt(max(2.5, float(np.square(implied).mean())) / 5)
    assert found.p_value == pytest.approx(2 * stats.t.sf(3 / error, 4))
    assert of_summaries(values[:2], np.zeros((2, 1)), 1, new_data=True)[0].p_value > 0.5


def test_units_that_are_not_clients() -> None:
    terms = np.array([[0.5, 1.5, 1.0, 2.0, 0.2, 0.8], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    first, equal = of_units(terms)
    # all signs equal: 2 of the 2⁶ assignments of signs, which is more than the p of Student's t
    assert stats.ttest_1samp(terms[0], 0.0).pvalue < first.p_value == pytest.approx(2 / 2**6)
    assert equal.p_value == pytest.approx(2 / 2**6)
    assert of_units(terms[:, :4])[0].low == -math.inf
    assert "fewer than 5 units" in of_units(terms[:, :4])[0].reason


def test_there_is_no_other_way_to_a_verdict() -> None:
    pattern = re.compile(r"\b(wilcoxon|friedmanchisquare|studentized_range|ttest_\w+|mannwhitneyu|mcnemar|binomtest)\b")
    for folder in ("src", "reproduction"):
        for path in (ROOT / folder).rglob("*.py"):
            found = pattern.search(path.read_text("utf-8"))
            assert found is None, f"{path} uses {found and found[0]}"
