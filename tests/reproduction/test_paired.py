"""Settings chosen on validation data, and outcomes of paired comparisons."""

from collections import Counter

import pytest

from reproduction import load
from reproduction.experiments.paired import (
    COMPARED_METRICS,
    compare_datasets,
    compare_paired,
)
from reproduction.training import ditto, fedavg, fedtilt
from tests.helpers.handmade_results import case_result, comparison_result, metrics, part

ACCURACY, CLIENT = COMPARED_METRICS[:2]


def test_settings_are_chosen_on_validation_data_only() -> None:
    result = case_result(
        (fedavg(), part(metrics(80.0), personal=False)),
        (ditto(0.01), part(metrics(90.0), metrics(91.0))),
        (ditto(0.1), part(metrics(89.0), metrics(92.0))),  # better on validation, worse on test
        (fedtilt(50.0, 100.0, 0.01), part(metrics(95.0), metrics(90.0))),
        (fedtilt(1.0, 1.0, 0.01), part(metrics(93.0), metrics(94.0, 3.0))),
        (fedtilt(1.0, 10.0, 0.01), part(metrics(92.0), metrics(94.0, 2.0))),  # a tie, and fairer to clients
        (fedtilt(10.0, -10.0, 0.01), part(metrics(50.0), metrics(50.0, 0.0))),  # collapsed: perfectly fair
    )
    comparison = compare_datasets(load("clean"), {"mnist-seed-0": result})["mnist"]
    assert comparison.choices["ditto-validated"] == Counter({"ditto mu=0.1": 1})
    assert comparison.choices["fedtilt-validated"] == Counter({"fedtilt tau=1 lam=10": 1})
    values = {row: comparison.values(row, "accuracy") for row in comparison.rows}
    assert {row: v.mean for row, v in values.items() if v} == {
        "fedavg": 80.0,
        "ditto": 90.0,
        "ditto-validated": 89.0,
        "fedtilt": 95.0,
        "fedtilt-validated": 92.0,
    }
    assert comparison.values("fedavg", "accuracy", "personal") is None
    assert comparison.values("ditto", "accuracy", "personal") is not None


def test_a_setting_that_diverged_is_not_in_its_row() -> None:
    result = comparison_result(
        metrics(80.0), metrics(90.0), metrics(95.0), tilts=(1.0, 1.0)
    )  # the paper's tilts are missing
    result["diverged"] = {"fedtilt tau=50 lam=100": "method 'fedtilt tau=50 lam=100' diverged in round 3"}
    comparison = compare_datasets(load("clean"), {"mnist-seed-0": result})["mnist"]
    assert "fedtilt" not in comparison.rows
    assert set(comparison.rows["fedtilt-validated"]) == {0}
    assert comparison.diverged == result["diverged"]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((91.0, 92.0, 93.0), (90.0, 91.0, 92.0), "better"),  # always one point above
        ((90.0, 91.0, 92.0), (91.0, 92.0, 93.0), "worse"),
        ((91.0, 90.0, 92.0), (90.0, 91.0, 91.9), "tied"),  # 0.03 ± 0.58
        ((91.0, 93.0, 95.0), (90.0, 91.0, 92.0), "tied"),  # 2.00 ± 0.58, but the interval is −0.48 to 4.48
        ((91.0, 92.1, 93.2), (90.0, 91.0, 92.0), "better"),  # 1.10 ± 0.06: the interval is 0.85 to 1.35
        ((91.0,), (90.0,), "ahead"),
        ((90.0,), (90.0,), "not ahead"),
        ((), (90.0,), "not measured"),
        ((90.0, 90.0), (90.0, 90.0), "tied"),
    ],
)
def test_outcomes_of_paired_comparisons(ours: tuple[float, ...], theirs: tuple[float, ...], expected: str) -> None:
    def by_seed(values: tuple[float, ...]) -> dict[int, dict]:
        return {seed: part(metrics(value)) for seed, value in enumerate(values)}

    assert compare_paired(by_seed(ours), by_seed(theirs), ACCURACY) == expected


def test_lower_fairness_is_better_and_the_margin_counts() -> None:
    fair = {seed: part(metrics(90.0, 1.0)) for seed in range(3)}
    unfair = {seed: part(metrics(90.0, 4.0)) for seed in range(3)}
    assert compare_paired(fair, unfair, CLIENT) == "better"
    assert compare_paired(unfair, fair, CLIENT) == "worse"
    assert compare_paired(fair, unfair, CLIENT, margin=2.5) == "better"
    assert compare_paired(fair, unfair, CLIENT, margin=3.5) == "tied"
    assert compare_paired(fair, unfair, ACCURACY) == "tied"


def test_shared_models_can_be_compared_where_personal_ones_are_evaluated() -> None:
    tilted = {s: {"test": {"shared": metrics(60.0 - s), "personal": metrics(95.0 + s)}} for s in range(3)}
    plain = {s: {"test": {"shared": metrics(70.0), "personal": None}} for s in range(3)}
    assert compare_paired(tilted, plain, ACCURACY) == "better"
    assert compare_paired(tilted, plain, ACCURACY, view="shared") == "worse"


def test_only_common_seeds_are_paired() -> None:
    ours = {0: part(metrics(10.0)), 1: part(metrics(91.0)), 2: part(metrics(92.0))}
    theirs = {1: part(metrics(90.0)), 2: part(metrics(91.0)), 3: part(metrics(99.0))}
    assert compare_paired(ours, theirs, ACCURACY) == "better"


def test_the_worst_tenth_of_the_clients_is_compared() -> None:
    ours, theirs = ({s: part(metrics(90.0) | {"worst": worst + 0.1 * s}) for s in range(3)} for worst in (60.0, 50.0))
    (worst,) = [metric for metric in COMPARED_METRICS if metric.key == "worst"]
    assert compare_paired(ours, theirs, worst) == "better"
    assert compare_paired(theirs, ours, worst) == "worse"
    assert compare_paired(ours, theirs, ACCURACY) == "tied"
