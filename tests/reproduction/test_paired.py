"""Settings chosen on validation data."""

from collections import Counter

from reproduction import load
from reproduction.experiments.paired import compare_datasets
from reproduction.training import ditto, fedavg, fedtilt
from tests.helpers.handmade_results import case_result, comparison_result, metrics, part


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
