"""Choosing settings on validation data: the grid, the front, and the choice."""

import math

import pytest

from fedtilt.errors import InputError
from fedtilt.runs.tune import SHARE, USUAL, Tuning, axes_of, check_validation, choose, front, grid_of
from fedtilt.spec import load


def figures(accuracy: float, clients: float, classes: float) -> dict[str, float]:
    return {"accuracy": accuracy, "client_fairness": clients, "client_data_fairness_mean": classes}


def test_the_grid_is_every_combination_beside_the_others() -> None:
    base = load("digits")
    grid, tuning = grid_of(base, None, {"tau": [0.0, 5.0], "lam": [-2.0, 1.0]})
    names = ["fedtilt", "fedtilt tau=0 lam=1", "fedtilt tau=5 lam=-2", "fedtilt tau=5 lam=1"]
    assert [m.name for m in grid.methods] == ["fedavg", "ditto", *names]  # the spec's own is tau 0, lam -2
    assert tuning.method == "fedtilt"
    assert list(tuning.settings) == names
    made = {m.name: m.to_method() for m in grid.methods}
    for name, setting in tuning.settings.items():
        assert {"tau": made[name].tau, "lam": made[name].lam} == setting
        assert made[name].mu == base.methods[2].mu
    assert (base.clients.validation, grid.clients.validation) == (0.0, SHARE)
    assert grid_of(load("digits", overrides=["clients.validation=0.3"]), None, USUAL)[0].clients.validation == 0.3


def test_any_numeric_setting_of_any_preset_can_be_varied() -> None:
    grid, tuning = grid_of(load("digits"), "ditto", {"mu": [0.01, math.inf], "q": [0.0, -1.0]})
    assert list(tuning.settings) == ["ditto", "ditto mu=0.01 q=-1", "ditto mu=inf q=0", "ditto mu=inf q=-1"]
    assert not grid.methods[3].to_method().personal
    assert Tuning.from_json(tuning.to_json()) == tuning


def test_a_setting_left_out_of_the_spec_has_the_presets_default() -> None:
    spec = load("digits", methods=["fedprox"])
    assert grid_of(spec, None, {"mu": [0.01, 1.0]})[1].settings == {"fedprox": {"mu": 0.01}, "fedprox mu=1": {"mu": 1}}


@pytest.mark.parametrize(
    ("method", "axes", "words"),
    [
        ("fedsgd", {"mu": [1.0]}, "method 'fedsgd' is not in the spec; choose from fedavg, ditto, fedtilt"),
        ("ditto", {"tau": [1.0]}, "no method to tune takes tau (ditto takes mu, q, bad_share)"),
        (None, {"aggregator": [1.0]}, "no method to tune takes aggregator"),
        ("ditto", {"mu": [-1.0]}, "methods.ditto mu=-1.mu = -1.0 is not possible; give a number ≥ 0"),
    ],
)
def test_what_cannot_be_tuned_is_refused(method: str | None, axes: dict, words: str) -> None:
    with pytest.raises(InputError) as error:
        grid_of(load("digits"), method, axes)
    assert words in str(error.value)


def test_what_to_vary_is_read_or_refused() -> None:
    assert axes_of([]) == USUAL
    assert axes_of([" tau = 0, 1e1,0 ", "lam=-inf"]) == {"tau": (0.0, 10.0), "lam": (-math.inf,)}
    for text, words in (("tau", "is not KEY=NUMBER"), ("tau=", "is not KEY=NUMBER"), ("tau=a", "is not KEY=NUMBER")):
        with pytest.raises(InputError, match=words):
            axes_of([text])
    with pytest.raises(InputError, match="--over tau is given twice"):
        axes_of(["tau=1", "tau=2"])


def test_the_front_is_what_nothing_beats_and_a_collapsed_model_is_not_on_it() -> None:
    candidates = {
        "collapsed": figures(50.0, 0.0, 50.0),
        "beaten": figures(96.0, 3.0, 2.0),
        "fair to clients": figures(96.0, 1.0, 2.5),
        "fair to classes": figures(95.0, 4.0, 0.5),
        "accurate": figures(97.0, 3.0, 2.0),
        "its twin": figures(97.0, 3.0, 2.0),
    }
    assert front(candidates) == ["accurate", "its twin", "fair to clients", "fair to classes"]
    assert choose(candidates) == "accurate"


def test_the_verdict_is_of_validation_data_and_leaves_out_what_diverged() -> None:
    def columns(accuracy: float) -> dict[str, dict[str, float]]:
        return {key: {"mean": value} for key, value in figures(accuracy, 1.0, 1.0).items()}

    settings: dict[str, dict[str, float]] = {"m": {"lam": 0.0}, "m lam=1": {"lam": 1.0}, "m lam=9": {"lam": 9.0}}
    methods = {
        "m": columns(99.0) | {"validation": columns(90.0)},
        "m lam=1": columns(80.0) | {"validation": columns(91.0)},
    }
    verdict = Tuning("m", settings, "fedtilt run mine.toml", ("m lam=9",)).verdict({"methods": methods})
    assert verdict["chosen"] == "m lam=1"
    assert verdict["front"] == ["m lam=1"]
    assert verdict["run"] == "fedtilt run mine.toml --set methods.m.lam=1"
    assert verdict["diverged"] == ["m lam=9"]


def test_no_digit_of_a_value_is_lost() -> None:
    _, tuning = grid_of(load("digits"), "ditto", {"mu": [0.1234561, 0.1234562]})
    assert list(tuning.settings) == ["ditto", "ditto mu=0.1234561", "ditto mu=0.1234562"]


def test_a_search_that_nothing_would_decide_is_refused() -> None:
    tiny = load("digits", overrides=["clients.max_train=1", "clients.validation=0.1"])
    with pytest.raises(InputError, match=r"clients.validation = 0.1 sets no sample aside at any client, the largest"):
        check_validation(tiny)
    check_validation(load("digits", overrides=["clients.validation=0.1"]))
