"""Choosing settings on validation data: the grid, the Pareto front, and the recommendation."""

import math

import pytest

from fedtilt.errors import InputError
from fedtilt.runs.tune import (
    DEFAULT_AXES,
    VALIDATION_SHARE,
    Tuning,
    axes_of,
    check_validation,
    choose,
    grid_of,
    pareto_front,
)
from fedtilt.spec import load


def metrics(accuracy: float, clients: float, classes: float) -> dict[str, float]:
    return {"accuracy": accuracy, "client_fairness": clients, "client_data_fairness_mean": classes}


def test_the_grid_has_every_combination_and_the_other_methods() -> None:
    base = load("digits")
    grid, tuning = grid_of(base, None, {"tau": [0.0, 5.0], "lam": [-2.0, 1.0]})
    names = ["fedtilt", "fedtilt tau=0 lam=1", "fedtilt tau=5 lam=-2", "fedtilt tau=5 lam=1"]
    assert [m.name for m in grid.methods] == ["fedavg", "ditto", *names]  # the spec's own is tau 0, lam -2
    assert tuning.method == "fedtilt"
    assert list(tuning.settings) == names
    methods = {m.name: m.to_method() for m in grid.methods}
    for name, setting in tuning.settings.items():
        assert {"tau": methods[name].tau, "lam": methods[name].lam} == setting
        assert methods[name].mu == base.methods[2].mu
    assert (base.clients.validation, grid.clients.validation) == (0.0, VALIDATION_SHARE)
    assert (
        grid_of(load("digits", overrides=["clients.validation=0.3"]), None, DEFAULT_AXES)[0].clients.validation == 0.3
    )


def test_any_numeric_setting_of_any_preset_can_be_varied() -> None:
    spec = load("digits", overrides=["methods.ditto.mu=0.01", "methods.ditto.lr_personal="])
    grid, tuning = grid_of(spec, "ditto", {"mu": [0.01, math.inf], "q": [0.0, -1.0]})
    assert list(tuning.settings) == ["ditto", "ditto mu=0.01 q=-1", "ditto mu=inf q=0", "ditto mu=inf q=-1"]
    assert not grid.methods[3].to_method().personal
    assert Tuning.from_json(tuning.to_json()) == tuning


def test_a_rate_missing_from_the_method_is_that_of_the_run() -> None:
    spec = load("digits", methods=["fedprox", "local"], overrides=["train.lr=0.2", "train.lr_personal=0.3"])
    assert grid_of(spec, "fedprox", {"lr": [0.2, 0.4]})[1].settings == {
        "fedprox": {"lr": 0.2},
        "fedprox lr=0.4": {"lr": 0.4},
    }
    assert list(grid_of(spec, "local", {"lr_personal": [0.3]})[1].settings.values()) == [{"lr_personal": 0.3}]


def test_a_setting_missing_from_the_spec_has_the_default_of_the_preset() -> None:
    spec = load("digits", methods=["fedprox"])
    assert grid_of(spec, None, {"mu": [0.01, 1.0]})[1].settings == {"fedprox": {"mu": 0.01}, "fedprox mu=1": {"mu": 1}}


@pytest.mark.parametrize(
    ("method", "axes", "message"),
    [
        ("fedsgd", {"mu": [1.0]}, "method 'fedsgd' is not in the spec; choose from fedavg, ditto, fedtilt"),
        ("ditto", {"tau": [1.0]}, "--over tau: no method to tune has this setting; choose among those that"),
        ("ditto", {"tau": [1.0]}, "can be tuned: ditto has mu, q, bad_share, lr, lr_personal"),
        (None, {"aggregator": [1.0], "tau": [1.0]}, "--over aggregator: no method to tune has this setting"),
        ("ditto", {"mu": [-1.0]}, "methods.ditto mu=-1.mu = -1.0 is not possible; give a number ≥ 0"),
    ],
)
def test_settings_that_cannot_be_tuned_are_refused(method: str | None, axes: dict, message: str) -> None:
    with pytest.raises(InputError) as error:
        grid_of(load("digits"), method, axes)
    assert message in str(error.value)


def test_axes_are_parsed_or_refused() -> None:
    assert axes_of([]) == DEFAULT_AXES
    assert axes_of([" tau = 0, 1e1,0 ", "lam=-inf"]) == {"tau": (0.0, 10.0), "lam": (-math.inf,)}
    for text, message in (("tau", "is not KEY=NUMBER"), ("tau=", "is not KEY=NUMBER"), ("tau=a", "is not KEY=NUMBER")):
        with pytest.raises(InputError, match=message):
            axes_of([text])
    with pytest.raises(InputError, match="--over tau is given twice"):
        axes_of(["tau=1", "tau=2"])


def test_the_pareto_front_has_no_dominated_and_no_collapsed_model() -> None:
    candidates = {
        "collapsed": metrics(50.0, 0.0, 50.0),
        "dominated": metrics(96.0, 3.0, 2.0),
        "fair to clients": metrics(96.0, 1.0, 2.5),
        "fair to classes": metrics(95.0, 4.0, 0.5),
        "accurate": metrics(97.0, 3.0, 2.0),
        "equal to it": metrics(97.0, 3.0, 2.0),
    }
    assert pareto_front(candidates) == ["accurate", "equal to it", "fair to clients", "fair to classes"]
    assert choose(candidates) == "accurate"


def test_the_recommendation_uses_validation_data_and_leaves_out_diverged_candidates() -> None:
    def columns(accuracy: float) -> dict[str, dict[str, float]]:
        return {key: {"mean": value} for key, value in metrics(accuracy, 1.0, 1.0).items()}

    settings: dict[str, dict[str, float]] = {"m": {"lam": 0.0}, "m lam=1": {"lam": 1.0}, "m lam=9": {"lam": 9.0}}
    methods = {
        "m": columns(99.0) | {"validation": columns(90.0)},
        "m lam=1": columns(80.0) | {"validation": columns(91.0)},
    }
    tuning = Tuning("m", settings, "fedtilt run mine.toml", ("m lam=9",))
    recommendation = tuning.recommendation({"methods": methods})
    assert recommendation["chosen"] == "m lam=1"
    assert recommendation["pareto_front"] == ["m lam=1"]
    assert recommendation["run"] == "fedtilt run mine.toml --set methods.m.lam=1"
    assert recommendation["diverged"] == ["m lam=9"]


def test_names_keep_every_digit_of_a_value() -> None:
    _, tuning = grid_of(load("digits"), "ditto", {"mu": [0.1234561, 0.1234562]})
    assert list(tuning.settings) == ["ditto", "ditto mu=0.1234561", "ditto mu=0.1234562"]


def test_a_search_without_validation_samples_is_refused() -> None:
    tiny = load("digits", overrides=["clients.max_train=1", "clients.validation=0.1"])
    with pytest.raises(InputError, match="clients.validation = 0.1 gives no client a validation sample"):
        check_validation(tiny)
    check_validation(load("digits", overrides=["clients.validation=0.1"]))
