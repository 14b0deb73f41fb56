import math
from functools import partial

import pytest

from fedtilt.data import Federation, load
from fedtilt.methods import Method, ditto, fedtilt
from fedtilt.models import mlp
from fedtilt.reproduction import Options
from fedtilt.reproduction import load as load_experiment
from fedtilt.reproduction.propositions import by_hand, cells, chapter, compared, measure
from fedtilt.rounds.settings import TrainSettings, initial_model

EXPERIMENT = load_experiment("propositions").quickened()


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, object]]:
    small = dict(EXPERIMENT.settings) | {"train": EXPERIMENT.settings["train"] | {"rounds": 2, "epochs": 1}}
    experiment = type(EXPERIMENT)(**{**vars(EXPERIMENT), "settings": small})
    options = Options(device="cpu")
    return {cell.name: measure(cell, options, lambda *_: None) for cell in cells(experiment, options)}


@pytest.mark.parametrize("part", ["fedavg", "fedavg-by-samples", "fedprox", "ditto"])
def test_a_special_case_is_the_loop_by_hand(results: dict[str, dict[str, float]], part: str) -> None:
    found = results[f"{part}-seed-0"]
    assert found["moved"] > 0.01
    assert found["shared"] <= 1e-5 * found["moved"]
    assert (found["personal"] is None) == (part != "ditto")
    assert (found["personal"] or 0) <= 1e-5 * found["moved"]
    assert found["missing"] == []
    assert found["accuracy"] == 0


def test_fedprox_is_not_reached_by_mu_alone(results: dict[str, dict[str, float]]) -> None:
    found = results["fedprox-seed-0"]
    assert found["apart_from_fedprox"] > 1e-3
    assert found["apart_from_fedavg"] == 0
    assert found["first_round"] < 1e-6


def test_a_large_mu_holds_v_at_the_w_it_received(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    behind = results["large-mu-seed-0"]["behind"]
    assert behind["1000"]["received"] == pytest.approx(behind["100"]["received"] / 10, rel=0.3)
    assert behind["1000"]["received"] < 0.1 * behind["1000"]["out"]  # one round behind the w that comes out


def test_the_comparison_sees_a_wrong_setting() -> None:
    federation = Federation.build(load("digits"), clients=4, classes_per_client=2, max_train=30)
    training = TrainSettings(rounds=2, participation=0.5, epochs=1, lr=0.1, device="cpu")
    net = initial_model(federation, partial(mlp, hidden=[8]), 0)
    hand = by_hand(federation, training, net, mu=0.5)
    exact = compared(ditto(0.5), hand, federation, training, net)
    assert exact["personal"] < 1e-6
    assert compared(ditto(0.0), hand, federation, training, net)["personal"] > 1e-3
    assert compared(fedtilt(tau=5, lam=5, mu=0.5), hand, federation, training, net)["shared"] > 1e-3
    pulled = Method(name="fedtilt", mu=0.5, prox=0.5)
    assert compared(pulled, hand, federation, training, net)["shared"] > 1e-4
    without = Method(name="fedtilt", mu=math.inf)
    assert compared(without, hand, federation, training, net)["missing"] == sorted(hand[1])


def test_verdicts_follow_the_differences(results: dict[str, dict[str, float]]) -> None:
    told = chapter(EXPERIMENT, results)
    assert [v.holds for v in told.verdicts] == ["holds", "holds partly", "holds"]
    assert len(told.parts) == 2
    wrong = results | {"ditto-seed-0": results["ditto-seed-0"] | {"personal": 0.1}}
    assert chapter(EXPERIMENT, wrong).verdicts[2].holds == "does not hold"
    assert {v.holds for v in chapter(EXPERIMENT, {}).verdicts} == {"not measured"}
