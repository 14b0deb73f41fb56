"""The recommendation respects chance and constraints."""

import re

import pytest
import torch
from scipy import stats

from fedtilt import seeds
from fedtilt.tuning.decision import decide, pareto_front, ranked
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


def against(ours: dict, theirs: dict, by=ACCURACY):
    return decision({"yours": theirs, "other": ours}, (), by).differences["other"]


def test_a_difference_is_that_of_paired_clients() -> None:
    ours, theirs = by_seed(0.9, 1), by_seed(0.8, 101)
    found = against(ours, theirs)
    gains = 100 * (ours[1].sums - theirs[1].sums).double() / SAMPLES
    assert found.difference == pytest.approx(gains.mean().item())
    margin = stats.t.ppf(0.975, CLIENTS - 1) * gains.std().item() / CLIENTS**0.5
    assert found.high - found.difference == pytest.approx(margin)
    assert against(ours, ours, WORST)[:4] == (0, 0, 0, 1)


def test_settings_that_were_stopped_earlier_count_too() -> None:
    settings = {"yours": by_seed(0.80, 1), "other": by_seed(0.88, 101)}
    values = {name: values_of(found, OF_ONE_CLASS) for name, found in settings.items()}
    chosen = [decide(settings, values, "yours", ACCURACY, ACCURACY, (), tried).chosen for tried in (1, 10**6)]
    assert chosen == ["other", "yours"]


def decision(settings: dict, constraints: tuple = (), by=ACCURACY):
    values = {name: values_of(found, OF_ONE_CLASS) for name, found in settings.items()}
    return decide(settings, values, "yours", by, ACCURACY, constraints)


def test_a_clear_gain_is_taken_and_chance_is_not() -> None:
    better = decision({"yours": by_seed(0.7, 1), "other": by_seed(0.9, 101)})
    assert better.chosen == "other"
    assert better.reason.endswith(" points better than yours (p < 0.001)")
    same = {"yours": by_seed(0.8, 1, 2), "other": by_seed(0.8, 101, 102)}
    assert decision(same).chosen == "yours"
    assert re.search(r"which is not told apart \(p = .+\)|no other setting has a better", decision(same).reason)
    worse = decision({"yours": by_seed(0.9, 1), "other": by_seed(0.7, 101)})
    assert worse.chosen == "yours"
    assert worse.reason == "keep yours: no other setting has a better accuracy"


def test_noise_alone_is_not_recommended() -> None:
    taken = [decision({"yours": by_seed(0.8, i), "other": by_seed(0.8, 100 + i)}).chosen for i in range(1, 41)]
    assert taken.count("other") <= 4  # 2.5 % on one side


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
