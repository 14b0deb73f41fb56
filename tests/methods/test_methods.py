import dataclasses
import math

import pytest

from fedtilt.data import Federation, load
from fedtilt.errors import InputError
from fedtilt.methods import (
    Method,
    check_bad_share,
    check_methods,
    check_rates_used,
    ditto,
    fedavg,
    fedprox,
    fedtilt,
    local,
    term,
)
from fedtilt.models import mlp
from fedtilt.runs.run import run


def test_presets_are_settings_of_one_object() -> None:
    assert fedavg() == Method(name="fedavg", mu=math.inf)
    assert fedprox(0.3) == Method(name="fedprox", mu=math.inf, prox=0.3)
    assert ditto(0.3) == Method(name="ditto", mu=0.3)
    assert term(2) == Method(name="term", mu=math.inf, tau=2.0, lam=2.0)
    assert fedtilt(50, 100, q=1, mu=0.1, name="x") == Method(name="x", tau=50.0, lam=100.0, q=1.0, mu=0.1)
    assert [m.personal for m in (fedavg(), fedprox(), ditto(), term(1), fedtilt(0, 0))] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert fedtilt(0, 0, mu=math.inf, name="fedavg") == fedavg()  # Proposition 1
    assert dataclasses.replace(fedprox(0.0), name="fedavg") == fedavg()  # Proposition 2
    assert fedtilt(0, 0, mu=0.3, name="ditto") == ditto(0.3)  # Proposition 3


def test_a_method_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ditto().mu = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ditto(-1), "mu of method 'ditto' must be ≥ 0, got -1"),
        (lambda: fedprox(-0.5), "prox of method 'fedprox' must be ≥ 0, got -0.5"),
        (lambda: fedprox(math.inf), "prox of method 'fedprox' must be finite"),
        (lambda: fedtilt(tau="a", lam=0), "tau of method 'fedtilt' must be a number, got 'a'"),
        (lambda: fedtilt(tau=math.nan, lam=0), "got nan"),
        (lambda: fedavg(name="a/b"), "got 'a/b'"),
        (lambda: fedavg(name=""), "got ''"),
        (lambda: fedavg(distance="cosine"), "unknown distance 'cosine'; choose one of squared_l2, l2, l1"),
        (lambda: fedavg(aggregator="best"), "unknown aggregator 'best' of method 'fedavg'; choose one of tilted, mean"),
        (lambda: fedavg(aggregator="krum", weighting="samples"), "takes no weights"),
        (
            lambda: fedavg(aggregator="krum", q=5),
            "q of method 'fedavg' is not used by aggregator 'krum'; leave it out",
        ),
        (lambda: fedavg(aggregator="median", steps=(3, 0.1)), "steps of method 'fedavg' is not used by"),
        (lambda: fedavg(weighting="size"), "must be one of equal, samples, loss, afl, got 'size'"),
        (lambda: fedavg(steps=(0, 0.5)), "got (0, 0.5)"),
        (lambda: fedavg(steps=5), "got 5"),
        (lambda: fedavg(name=".."), "or a leading dot, got '..'"),
        (lambda: fedavg(name=3), "got 3"),
        (lambda: fedtilt(0, 0, q=1, distance="l1"), "has no direct solution; give steps"),
        (
            lambda: fedavg(mu=0.1),
            "mu is not a setting of fedavg, which besides its parameters takes q",
        ),
        (lambda: fedavg(tau=5), "tau is not a setting of fedavg"),
        (lambda: ditto(lambda_=1), "lambda_ is not a setting of ditto"),
        (lambda: fedavg(steps=("a", "b")), "steps of method 'fedavg' are (count ≥ 1, size > 0), got ('a', 'b')"),
        (lambda: fedavg(steps=(math.inf, 1)), "steps of method 'fedavg' are (count ≥ 1, size > 0), got (inf, 1)"),
        (lambda: fedavg(bad_share=0.2), "bad_share of method 'fedavg' is not used by aggregator 'tilted'"),
        (lambda: fedavg(bad_share=0.6), "in [0, 0.5), got 0.6"),
        (lambda: ditto(lr=0), "lr of method 'ditto' must be a number > 0, got 0"),
        (lambda: ditto(lr_personal=math.inf), "lr_personal of method 'ditto' must be a number > 0, got inf"),
        (lambda: ditto(epochs_personal=0), "epochs_personal of method 'ditto' must be a whole number ≥ 1, got 0"),
        (lambda: ditto(personal_start="zero"), "must be one of last, initial, received, got 'zero'"),
        (lambda: fedavg(lr_personal=0.1), "lr_personal of method 'fedavg' has no effect: it has no personal models"),
        (lambda: local(personal_start="last"), "personal_start is not a setting of local"),
        (lambda: check_methods([ditto(20, lr_personal=0.1)], 0.01, 0.01), "lr · mu must be < 2, got 2"),
        (lambda: check_methods([], 0.1, 0.1), "at least one method"),
        (lambda: check_methods(ditto(), 0.1, 0.1), "methods must be a list, such as [ft.fedavg(), ft.ditto()]"),
        (lambda: check_methods(["ditto"], 0.1, 0.1), "such as ft.fedavg() or ft.ditto(mu=0.1), got 'ditto'"),
        (lambda: check_methods([ditto], 0.1, 0.1), "such as ft.fedavg() or ft.ditto(mu=0.1), got <function ditto"),
        (lambda: check_methods([ditto(), ditto(0.1)], 0.1, 0.1), "two methods are named 'ditto'"),
        (lambda: check_methods([ditto(20)], 0.01, 0.1), "lr · mu must be < 2, got 2; lower one of them"),
        (lambda: check_methods([fedprox(20)], 0.1, 0.1), "lr · prox must be < 2"),
    ],
)
def test_bad_settings_are_refused(call, message: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert message in str(error.value)


def test_a_run_may_compare_two_settings_of_one_preset() -> None:
    methods = check_methods(iter([ditto(0.01), ditto(1.0, name="ditto-1"), fedavg()]), 0.1, 0.1)
    assert [(m.name, m.mu) for m in methods] == [("ditto", 0.01), ("ditto-1", 1.0), ("fedavg", math.inf)]


@pytest.mark.parametrize(
    ("methods", "given", "message"),
    [
        (
            [ditto(lr_personal=0.1), fedavg()],
            ["lr_personal"],
            "lr_personal has no effect: .* set that of ditto instead",
        ),
        ([fedavg()], ["lr_personal"], "lr_personal has no effect: .* leave it out"),
        ([fedavg(lr=0.1), ditto(lr=0.2)], ["lr"], "lr has no effect: .* set that of fedavg or ditto instead"),
    ],
)
def test_a_rate_of_the_run_that_no_method_takes_is_refused(methods: list[Method], given: list, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_rates_used(methods, given)
    check_rates_used(methods, ["rounds"])
    check_rates_used([*methods, ditto(name="another")], given)


@pytest.mark.parametrize("aggregator", ["trimmed_mean", "multi_krum"])
def test_a_rule_that_leaves_out_nobody_is_refused(aggregator: str) -> None:
    method = fedavg(aggregator=aggregator, bad_share=0.2)
    check_bad_share([method, fedavg(name="krum", aggregator="krum")], 5)  # one of five
    with pytest.raises(InputError, match=r"bad_share = 0.2 .* no client of the 4 .* use bad_share ≥ 0.25"):
        check_bad_share([method], 4)
    federation = Federation.build(load("digits"), clients=4, partition="iid")
    with pytest.raises(InputError, match=f"{aggregator} would be the plain mean"):
        run([method], federation, mlp, rounds=1, participation=1.0)
