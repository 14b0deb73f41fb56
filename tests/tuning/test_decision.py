"""The recommendation respects chance and constraints."""

import pytest
import torch

from fedtilt import seeds
from fedtilt.tuning.decision import decide, difference, pareto_front, ranked
from fedtilt.tuning.objectives import CLASSIFICATION, Constraint, ScoreTable, values_of
from fedtilt.tuning.objectives import OBJECTIVES as ALL_OBJECTIVES

OBJECTIVES = ALL_OBJECTIVES[CLASSIFICATION]
ACCURACY, WORST = OBJECTIVES["accuracy"], OBJECTIVES["worst"]
OF_ONE_CLASS = [o for o in OBJECTIVES.values() if o.name != "class_fairness"]
CLIENTS, SAMPLES = 50, 20


def scores(accuracy: float, seed: int, clients: int = CLIENTS) -> ScoreTable:
    """Clients with one class, on which a model is right with this probability."""
    correct = (seeds.uniform(seeds.key(seed, "test"), (clients, SAMPLES)) < accuracy).sum(1, keepdim=True)
    return ScoreTable(correct, torch.full((clients, 1), SAMPLES), {})


def by_seed(accuracy: float, *numbers: int) -> dict[int, ScoreTable]:
    return {number % 100: scores(accuracy, number) for number in numbers}


def test_the_standard_error_is_that_of_paired_clients() -> None:
    ours, theirs = by_seed(0.9, 1), by_seed(0.8, 101)
    found = difference(ours, theirs, ACCURACY)
    gains = 100 * (ours[1].sums - theirs[1].sums).double() / SAMPLES
    assert found.gain == pytest.approx(gains.mean().item())
    assert found.error == pytest.approx(gains.std().item() / CLIENTS**0.5, rel=0.3)  # the bootstrap is random
    assert difference(ours, ours, WORST) == difference(theirs, theirs, WORST)
    assert difference(ours, ours, ACCURACY).error == 0.0


def test_seeds_that_differ_more_than_clients_make_the_error_larger() -> None:
    ours = {1: scores(1.0, 1), 2: scores(0.5, 2)}
    theirs = {1: scores(0.5, 3), 2: scores(0.5, 4)}
    gains = [ACCURACY.value(ours[seed]) - ACCURACY.value(theirs[seed]) for seed in (1, 2)]
    assert difference(ours, theirs, ACCURACY).error == pytest.approx(abs(gains[0] - gains[1]) / 2)


def decision(settings: dict, constraints: tuple = (), by=ACCURACY):
    values = {name: values_of(found, OF_ONE_CLASS) for name, found in settings.items()}
    return decide(settings, values, "yours", by, ACCURACY, constraints)


def test_a_clear_gain_is_taken_and_chance_is_not() -> None:
    better = decision({"yours": by_seed(0.7, 1), "other": by_seed(0.9, 101)})
    assert better.chosen == "other"
    assert "points better than yours, with a standard error of" in better.reason
    same = {"yours": by_seed(0.8, 1, 2), "other": by_seed(0.8, 101, 102)}
    assert decision(same).chosen == "yours"
    worse = decision({"yours": by_seed(0.9, 1), "other": by_seed(0.7, 101)})
    assert worse.chosen == "yours"
    assert worse.reason == "keep yours: no other setting has a better accuracy"


def test_noise_alone_is_within_the_error_most_of_the_time() -> None:
    taken = [decision({"yours": by_seed(0.8, i), "other": by_seed(0.8, 100 + i)}).chosen for i in range(1, 13)]
    assert taken.count("other") <= 4  # one standard error is exceeded on one side with probability 16 %


def test_constraints_come_first() -> None:
    settings = {"yours": by_seed(0.7, 1), "other": by_seed(0.9, 101)}
    bound = Constraint(OBJECTIVES["accuracy"], 85.0, at_least=True)
    assert decision(settings, (bound,), OBJECTIVES["client_fairness"]).chosen == "other"
    impossible = decision(settings, (Constraint(ACCURACY, 99.0, at_least=True),))
    assert impossible.chosen is None
    assert impossible.reason == "no setting has accuracy ≥ 99 %; the nearest is 'other'"


def test_a_setting_that_diverged_cannot_be_kept() -> None:
    values = {"other": values_of(by_seed(0.9, 1), OF_ONE_CLASS)}
    found = decide({"other": by_seed(0.9, 1)}, values, "yours", ACCURACY, ACCURACY, ())
    assert found.chosen == "other"
    assert "your setting diverged" in found.reason


def metrics(accuracy: float, clients: float, classes: float) -> dict[str, float]:
    return {"accuracy": accuracy, "client_fairness": clients, "class_fairness": classes}


def test_the_pareto_front_has_no_dominated_and_no_collapsed_model() -> None:
    candidates = {
        "collapsed": metrics(50.0, 0.0, 50.0),
        "dominated": metrics(96.0, 3.0, 2.0),
        "fair to clients": metrics(96.0, 1.0, 2.5),
        "fair to classes": metrics(95.0, 4.0, 0.5),
        "accurate": metrics(97.0, 3.0, 2.0),
        "equal to it": metrics(97.0, 3.0, 2.0),
    }
    objectives = [OBJECTIVES[name] for name in ("accuracy", "client_fairness", "class_fairness")]
    front = ["accurate", "equal to it", "fair to clients", "fair to classes"]
    assert pareto_front(candidates, objectives, ACCURACY) == front
    assert (
        pareto_front(candidates, objectives, ACCURACY, [Constraint(objectives[1], 2.0, at_least=False)]) == front[2:3]
    )
    assert ranked(candidates, OBJECTIVES["client_fairness"], ACCURACY, ())[0] == "fair to clients"
    assert ranked(candidates, OBJECTIVES["client_fairness"], ACCURACY, ())[-1] == "collapsed"
