from functools import partial

import pytest

from fedtilt.data import Federation, load
from fedtilt.engine.initial_model import initial_model
from fedtilt.engine.settings import TrainSettings
from fedtilt.methods import Method, ditto, fedtilt
from fedtilt.models import mlp
from reproduction import Options
from reproduction import load as load_experiment
from reproduction.experiments.propositions import cases, chapter, compare, measure, train_by_hand

EXPERIMENT = load_experiment("propositions").quick_version()


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, object]]:
    small = dict(EXPERIMENT.settings) | {"train": EXPERIMENT.settings["train"] | {"rounds": 2, "epochs": 1}}
    experiment = type(EXPERIMENT)(**{**vars(EXPERIMENT), "settings": small})
    options = Options(device="cpu")
    return {case.name: measure(case, options, lambda *_: None) for case in cases(experiment, options)}


@pytest.mark.parametrize("part", ["fedavg", "fedavg-by-samples", "fedprox", "ditto"])
def test_a_special_case_equals_the_hand_written_loop(results: dict[str, dict[str, float]], part: str) -> None:
    result = results[f"{part}-seed-0"]
    assert result["moved"] > 0.01
    assert result["shared"] <= 1e-5 * result["moved"]
    assert (result["personal"] is None) == (part != "ditto")
    assert (result["personal"] or 0) <= 1e-5 * result["moved"]
    assert result["missing"] == []
    assert result["accuracy"] == 0


def test_mu_alone_does_not_give_fedprox(results: dict[str, dict[str, float]]) -> None:
    result = results["fedprox-seed-0"]
    assert result["apart_from_fedprox"] > 1e-3
    assert result["apart_from_fedavg"] == 0
    assert result["first_round"] < 1e-6


def test_a_large_mu_keeps_v_at_the_w_it_received(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> None:
    distances = results["large-mu-seed-0"]["behind"]
    assert distances["1000"]["received"] == pytest.approx(distances["100"]["received"] / 10, rel=0.3)
    assert distances["1000"]["received"] < 0.1 * distances["1000"]["out"]  # one round behind the aggregated w


def test_the_comparison_detects_a_wrong_setting() -> None:
    federation = Federation.build(load("digits"), clients=4, classes_per_client=2, max_train=30)
    training = TrainSettings(rounds=2, participation=0.5, epochs=1, lr=0.1, device="cpu")
    net, _ = initial_model(federation, partial(mlp, hidden=[8]), training)
    by_hand = train_by_hand(federation, training, net, mu=0.5)
    exact = compare(ditto(0.5), by_hand, federation, training, net)
    assert exact["personal"] < 1e-6
    assert compare(ditto(0.0), by_hand, federation, training, net)["personal"] > 1e-3
    assert compare(fedtilt(tau=5, lam=5, mu=0.5), by_hand, federation, training, net)["shared"] > 1e-3
    with_prox = Method(name="fedtilt", personal={"mu": 0.5}, prox=0.5)
    assert compare(with_prox, by_hand, federation, training, net)["shared"] > 1e-4
    no_personal = Method(name="fedtilt")
    assert compare(no_personal, by_hand, federation, training, net)["missing"] == sorted(by_hand.personal)


def test_verdicts_follow_the_differences(results: dict[str, dict[str, float]]) -> None:
    result = chapter(EXPERIMENT, results)
    assert [v.holds for v in result.verdicts] == ["holds", "holds partly", "holds"]
    assert len(result.parts) == 2
    wrong = results | {"ditto-seed-0": results["ditto-seed-0"] | {"personal": 0.1}}
    assert chapter(EXPERIMENT, wrong).verdicts[2].holds == "does not hold"
    assert {v.holds for v in chapter(EXPERIMENT, {}).verdicts} == {"not measured"}
