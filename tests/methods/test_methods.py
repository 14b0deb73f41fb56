import dataclasses
import math

import pytest

from fedtilt.data import Federation, load
from fedtilt.errors import InputError
from fedtilt.methods import (
    Method,
    Personal,
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
from fedtilt.methods.aggregators import Tilted
from fedtilt.methods.objectives import Tilted as TiltedLosses
from fedtilt.models import mlp
from fedtilt.runs.run import run


def of_tilted(**settings: object) -> dict[str, object]:
    """A table of the tilted aggregator."""
    return {"rule": "tilted", **settings}


def test_presets_are_compositions_of_one_object() -> None:
    assert fedavg() == Method(name="fedavg")
    assert fedprox(0.3) == Method(name="fedprox", prox=0.3)
    assert ditto(0.3) == Method(name="ditto", personal=Personal(mu=0.3))
    assert term(2) == Method(name="term", objective=TiltedLosses(tau=2.0, lam=2.0))
    assert fedtilt(50, 100, q=1, mu=0.1, name="x") == Method(
        name="x", objective=TiltedLosses(50.0, 100.0), personal=Personal(0.1), aggregator=Tilted(q=1.0)
    )
    methods = (fedavg(), fedprox(), ditto(), term(1), fedtilt(0, 0))
    assert [m.has_personal for m in methods] == [False, False, True, False, True]
    assert fedtilt(0, 0, mu=math.inf, name="fedavg") == fedavg()  # Proposition 1
    assert dataclasses.replace(fedprox(0.0), name="fedavg") == fedavg()  # Proposition 2
    assert fedtilt(0, 0, mu=0.3, name="ditto") == ditto(0.3)  # Proposition 3


def test_a_method_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ditto().personal = None  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        ditto().personal.mu = 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ditto(-1), "method 'ditto': proximal: mu must be a number ≥ 0, got -1"),
        (lambda: fedprox(-0.5), "prox of method 'fedprox' must be a number ≥ 0, got -0.5"),
        (lambda: fedprox(math.inf), "prox of method 'fedprox' must be a number ≥ 0, got inf"),
        (lambda: fedtilt(tau="a", lam=0), "method 'fedtilt': tilted: tau must be a number, got 'a'"),
        (lambda: fedtilt(tau=math.nan, lam=0), "got nan"),
        (lambda: fedtilt(tau=1), "method 'fedtilt' needs lam, such as fedtilt(tau=5, lam=-1)"),
        (lambda: fedtilt(lam=1), "method 'fedtilt' needs tau, or levels"),
        (
            lambda: fedtilt(lam=1, levels=3),
            "method 'fedtilt': tilted: levels are pairs of groups, each once, and a tilt",
        ),
        (lambda: fedtilt(1, 1, levels=[("ward", 2)]), "tau = 1 has no effect beside levels; leave it out"),
        (lambda: fedtilt(1, 1, q=2, aggregator="median"), "q = 2 of method 'fedtilt' has no effect beside aggregator"),
        (lambda: fedtilt(1, 1, mu=math.inf, lr_personal=0.1), "lr_personal of method 'fedtilt' has no effect: it has"),
        (lambda: fedavg(name="a/b"), "got 'a/b'"),
        (lambda: fedavg(name=""), "got ''"),
        (lambda: fedavg(name=".."), "or a leading dot, got '..'"),
        (lambda: fedavg(name=3), "got 3"),
        (
            lambda: fedavg(aggregator=of_tilted(distance="cosine")),
            "unknown distance 'cosine'; choose one of squared_l2",
        ),
        (lambda: fedavg(aggregator="best"), "unknown aggregator 'best' of method 'fedavg'; choose one of tilted, mean"),
        (lambda: fedavg(aggregator="krum", weighting="samples"), "takes no weights"),
        (
            lambda: fedavg(aggregator={"rule": "krum", "q": 5}),
            "q = 5 of aggregator of method 'fedavg' is not a setting of 'krum', which has bad_share; leave it out",
        ),
        (
            lambda: fedavg(aggregator={"rule": "median", "steps": [3, 0.1]}),
            "is not a setting of 'median', which has none",
        ),
        (lambda: fedavg(weighting="size"), "unknown weighting 'size' of method 'fedavg'; choose one of equal, samples"),
        (lambda: Tilted(q=1, distance="l1"), "distance 'l1' with q = 1 has no direct solution; give steps"),
        (lambda: Tilted(steps=(0, 0.5)), "steps are (count ≥ 1, size > 0), got (0, 0.5)"),
        (lambda: Tilted(steps=(math.inf, 1)), "steps are (count ≥ 1, size > 0), got (inf, 1)"),
        (
            lambda: fedavg(aggregator=of_tilted(steps=5)),
            "aggregator of method 'fedavg': tilted: steps are (count ≥ 1, size > 0)",
        ),
        (lambda: fedavg(aggregator=of_tilted(steps=["a", "b"])), "got ('a', 'b')"),
        (lambda: fedavg(mu=0.1), "mu is not a setting of fedavg, which takes objective, personal, local"),
        (lambda: fedavg(tau=5), "tau is not a setting of fedavg"),
        (lambda: fedavg(bad_share=0.2), "bad_share is not a setting of fedavg"),
        (lambda: fedavg(lr_personal=0.1), "lr_personal is not a setting of fedavg"),
        (lambda: ditto(lambda_=1), "lambda_ is not a setting of ditto, which takes mu, lr_personal"),
        (lambda: ditto(personal=Personal(0.1)), "personal of method 'ditto' is what its preset decides; leave it out"),
        (lambda: local(personal_start="last"), "personal_start is not a setting of local"),
        (
            lambda: fedavg(aggregator={"rule": "krum", "bad_share": 0.6}),
            "aggregator of method 'fedavg': krum: bad_share must be a number ≥ 0 and < 0.5, got 0.6",
        ),
        (lambda: ditto(lr=0), "lr of method 'ditto' must be a number > 0, got 0"),
        (lambda: ditto(lr_personal=math.inf), "method 'ditto': proximal: lr must be a number > 0, got inf"),
        (lambda: ditto(epochs_personal=0), "method 'ditto': proximal: epochs must be a whole number ≥ 1, got 0"),
        (lambda: ditto(personal_start="zero"), "unknown start 'zero'; choose one of last, initial, received"),
        (lambda: fedavg(before=["nnm", "nnm"]), "before of method 'fedavg' has 'nnm' twice; name it once"),
        (lambda: fedavg(before=["nnm"], weighting="samples"), "nnm of method 'fedavg' mixes models without weights"),
        (lambda: fedavg(before=3), "before of method 'fedavg' must be a list, such as ['nnm'], got 3"),
        (lambda: fedavg(aggregator=None), "aggregator of method 'fedavg' is missing; leave it out for the default"),
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
    assert "\n" not in str(error.value)


def test_a_run_may_compare_two_settings_of_one_preset() -> None:
    methods = check_methods(iter([ditto(0.01), ditto(1.0, name="ditto-1"), fedavg()]), 0.1, 0.1)
    assert [m.name for m in methods] == ["ditto", "ditto-1", "fedavg"]
    assert [m.personal for m in methods] == [Personal(0.01), Personal(1.0), None]


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


@pytest.mark.parametrize(
    ("aggregator", "same"),
    [("trimmed_mean", "the plain mean"), ("multi_krum", "the plain mean"), ("root_selected", "norm_clipped")],
)
def test_a_rule_that_leaves_out_nobody_is_refused(aggregator: str, same: str) -> None:
    method = fedavg(aggregator={"rule": aggregator, "bad_share": 0.2})
    check_bad_share([method, fedavg(name="krum", aggregator="krum")], 5)  # one of five
    with pytest.raises(InputError, match=r"bad_share = 0.2 .* no client of the 4 .* use bad_share ≥ 0.25"):
        check_bad_share([method], 4)
    federation = Federation.build(load("digits"), clients=4, partition="iid")
    with pytest.raises(InputError, match=f"{aggregator} would be {same}"):
        run([method], federation, mlp, rounds=1, participation=1.0)
