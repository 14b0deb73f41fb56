"""Choosing on validation data, and counting who is better than whom."""

from collections import Counter

import pytest

from fedtilt.reproduction import load
from fedtilt.reproduction.comparison.standings import METRICS, paired, score, standings
from fedtilt.reproduction.train_grid import ditto, fedavg, fedtilt
from tests.helpers.handmade_results import cell, compared, metrics, part

ACCURACY, CLIENT = METRICS[:2]


def test_validation_chooses_and_test_data_is_not_looked_at() -> None:
    found = cell(
        (fedavg(), part(metrics(80.0), personal=False)),
        (ditto(0.01), part(metrics(90.0), metrics(91.0))),
        (ditto(0.1), part(metrics(89.0), metrics(92.0))),  # better on validation, worse on test
        (fedtilt(50.0, 100.0, 0.01), part(metrics(95.0), metrics(90.0))),
        (fedtilt(1.0, 1.0, 0.01), part(metrics(93.0), metrics(94.0, 3.0))),
        (fedtilt(1.0, 10.0, 0.01), part(metrics(92.0), metrics(94.0, 2.0))),  # a tie, and fairer to clients
        (fedtilt(10.0, -10.0, 0.01), part(metrics(50.0), metrics(50.0, 0.0))),  # collapsed: perfectly fair
    )
    standing = standings(load("clean"), {"mnist-seed-0": found})["mnist"]
    assert standing.picks["ditto-validated"] == Counter({"ditto mu=0.1": 1})
    assert standing.picks["fedtilt-validated"] == Counter({"fedtilt tau=1 lam=10": 1})
    values = {row: standing.values(row, "accuracy") for row in standing.rows}
    assert {row: v.mean for row, v in values.items() if v} == {
        "fedavg": 80.0,
        "ditto": 90.0,
        "ditto-validated": 89.0,
        "fedtilt": 95.0,
        "fedtilt-validated": 92.0,
    }
    assert standing.values("fedavg", "accuracy", "personal") is None
    assert standing.values("ditto", "accuracy", "personal") is not None


def test_a_setting_that_diverged_is_not_in_its_row() -> None:
    found = compared(metrics(80.0), metrics(90.0), metrics(95.0), tilts=(1.0, 1.0))  # the paper's tilts are missing
    found["diverged"] = {"fedtilt tau=50 lam=100": "method 'fedtilt tau=50 lam=100' diverged in round 3"}
    standing = standings(load("clean"), {"mnist-seed-0": found})["mnist"]
    assert "fedtilt" not in standing.rows
    assert set(standing.rows["fedtilt-validated"]) == {0}
    assert standing.diverged == found["diverged"]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((91.0, 92.0, 93.0), (90.0, 91.0, 92.0), "better"),  # always one point above
        ((90.0, 91.0, 92.0), (91.0, 92.0, 93.0), "worse"),
        ((91.0, 90.0, 92.0), (90.0, 91.0, 91.9), "tied"),  # 0.03 ± 0.58
        ((91.0,), (90.0,), "ahead"),
        ((90.0,), (90.0,), "not ahead"),
        ((), (90.0,), "not measured"),
        ((90.0, 90.0), (90.0, 90.0), "tied"),
    ],
)
def test_better_tied_worse(ours: tuple[float, ...], theirs: tuple[float, ...], expected: str) -> None:
    def by_seed(values: tuple[float, ...]) -> dict[int, dict]:
        return {seed: part(metrics(value)) for seed, value in enumerate(values)}

    assert paired(by_seed(ours), by_seed(theirs), ACCURACY) == expected


def test_lower_is_better_for_fairness_and_a_margin_has_to_be_passed() -> None:
    fair = {seed: part(metrics(90.0, 1.0)) for seed in range(3)}
    unfair = {seed: part(metrics(90.0, 4.0)) for seed in range(3)}
    assert paired(fair, unfair, CLIENT) == "better"
    assert paired(unfair, fair, CLIENT) == "worse"
    assert paired(fair, unfair, CLIENT, by=2.5) == "better"
    assert paired(fair, unfair, CLIENT, by=3.5) == "tied"
    assert paired(fair, unfair, ACCURACY) == "tied"


def test_shared_models_can_be_compared_where_personal_ones_are_in_use() -> None:
    tilted = {s: {"test": {"shared": metrics(60.0 - s), "personal": metrics(95.0 + s)}} for s in range(3)}
    plain = {s: {"test": {"shared": metrics(70.0), "personal": None}} for s in range(3)}
    assert paired(tilted, plain, ACCURACY) == "better"
    assert paired(tilted, plain, ACCURACY, view="shared") == "worse"


def test_a_mean_that_is_its_standard_error_is_a_tie() -> None:
    ours, theirs = ({s: part(metrics(v)) for s, v in enumerate(values)} for values in ((89.99, 89.59), (89.59, 89.59)))
    assert paired(ours, theirs, ACCURACY) == "tied"


def test_seeds_are_paired_only_where_both_are_there() -> None:
    ours = {0: part(metrics(10.0)), 1: part(metrics(91.0)), 2: part(metrics(92.0))}
    theirs = {1: part(metrics(90.0)), 2: part(metrics(91.0)), 3: part(metrics(99.0))}
    assert paired(ours, theirs, ACCURACY) == "better"


def test_the_score_counts_cells() -> None:
    better = [compared(metrics(80.0), metrics(90.0 + s), metrics(91.0 + s)) for s in range(2)]
    worse = [compared(metrics(80.0), metrics(90.0 + s), metrics(89.0 + s)) for s in range(2)]
    one = compared(metrics(80.0), metrics(90.0), metrics(99.0), tilts=(2.0, 1.0))
    results = {f"mnist-seed-{s}": better[s] for s in range(2)} | {f"fashion-mnist-seed-{s}": worse[s] for s in range(2)}
    clean = standings(load("clean"), results | {"cifar10-seed-0": one})
    flips = standings(load("flips"), {})
    every = [*clean.values(), *flips.values()]
    assert score(every, "ditto-validated", ACCURACY) == {"better": 1, "worse": 1, "ahead": 1, "not measured": 3}
    assert score(every, "fedavg", ACCURACY) == {"better": 2, "ahead": 1, "not measured": 3}
    assert score(every, "ditto", CLIENT) == {"tied": 2, "not ahead": 1, "not measured": 3}
