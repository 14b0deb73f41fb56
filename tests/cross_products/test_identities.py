"""Options that must change nothing change nothing: beside every method, beside each other, and after a resume."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.engine.client_states import FederationState
from fedtilt.errors import InputError
from fedtilt.methods import COMPONENTS, PRESETS, Before
from fedtilt.methods.aggregators import QFfl, Rooted, Tilted
from fedtilt.methods.before import NNM, Bucketing
from fedtilt.storage.run_folder import RunFolder
from tests.cross_products.cases import (
    METHODS,
    MODEL,
    NEUTRAL,
    RECIPE,
    ROUNDS,
    Case,
    all_cases,
    federation,
    few_cases,
    with_weights,
)

BASE = {"workers": 0, "eval_every": ROUNDS}
Tensors = dict[str, Tensor]


def states_of(state: FederationState) -> dict[str, Tensors]:
    """What the server and every client keep for the method `m`."""
    clients = [n for name, n in state.client_states.owners() if name == "m"]
    kept = {f"client {n}": state.client_states.get(("m", n)).to_tensors() for n in clients}
    return {"server": state.server["m"].to_tensors()} | kept


@functools.cache
def plain(name: str) -> dict[str, Tensors]:
    """The states of a method without any option."""
    *_, last = ft.simulate([METHODS[name]], federation(), MODEL, **(RECIPE | BASE))
    return states_of(last.state)


def run_of(case: Case) -> functools.partial:
    """`ft.simulate` of a method with options."""
    m, settings, data = METHODS[case.method], RECIPE | BASE, {}
    before, after = [], []
    for option in (NEUTRAL[name] for name in case.options):
        m, settings, data = option.change(m), settings | dict(option.settings), data | dict(option.federation)
        before, after = [*before, *option.others[0]], [*after, *option.others[1]]
    return functools.partial(ft.simulate, [*before, m, *after], federation(**data), MODEL, **settings)


def is_accepted(case: Case) -> bool:
    """Whether the product can be written: all inputs are checked before the first round."""
    try:
        run_of(case)()
    except InputError:
        return False
    return True


def with_options(case: Case, folder: Path) -> dict[str, Tensors]:
    """The states of a method with options, interrupted and continued from a checkpoint on disk."""
    run, saved = run_of(case), RunFolder(folder)
    for r in run(client_states=saved.client_states):
        if r.number == case.resume_after:
            saved.checkpoint(r.state)
            break
    else:
        return states_of(r.state)
    *_, last = run(state=RunFolder(folder).latest())
    return states_of(last.state)


def check(case: Case, folder: Path) -> bool:
    """Compare a case with the method alone; False if the product is refused, in one line."""
    try:
        found = with_options(case, folder)
    except InputError as error:
        if "\n" in str(error):
            raise
        return False
    is_exact = all(NEUTRAL[name].is_exact for name in case.options)
    for owner, tensors in plain(case.method).items():
        for key, expected in tensors.items():
            actual = found[owner][key]
            if key in ("training.samples", "training.counts"):  # by their weights: they differ by one factor
                actual, expected = actual / actual.sum(), expected / expected.sum()
            if is_exact:
                assert torch.equal(actual, expected), f"{case}: {key} of {owner}"
            else:
                torch.testing.assert_close(
                    actual,
                    expected,
                    rtol=1e-3,
                    atol=2e-5,
                    msg=lambda m: f"{case}: {key} of {owner}: {m}",  # noqa: B023
                )
    return True


FEW = few_cases()


def check_options(case: Case, folder: Path) -> None:
    """Check a case without the options that cannot be beside the others, and these one by one."""
    if check(case, folder / "all"):
        return
    together, apart = case._replace(options=()), []
    for option in case.options:
        more = case._replace(options=(*together.options, option))
        if is_accepted(more):
            together = more
        else:
            apart.append(case._replace(options=(option,)))
    for i, part in enumerate([together, *apart]):
        check(part, folder / str(i))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_with_options_that_must_change_nothing(name: str, tmp_path: Path) -> None:
    for i, case in enumerate(case for case in FEW if case.method == name):
        check_options(case, tmp_path / str(i))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method_with_every_pair_of_options(name: str, tmp_path: Path) -> None:
    cases = [case for case in all_cases() if case.method == name]
    held = [check(case, tmp_path / str(i)) for i, case in enumerate(cases)]
    assert sum(held) > len(cases) / 4  # most are products that can be written


def test_the_table_has_every_preset_and_every_component() -> None:
    assert {*PRESETS} <= {*METHODS}
    missing = {
        kind: {*known} - {part.rule for m in METHODS.values() for part in m.components().values() if part.kind == kind}
        for kind, known in COMPONENTS.items()
    }
    assert {kind: rules for kind, rules in missing.items() if rules} == {
        "aggregator": {"mean", "bulyan"},  # the mean is q = 0; Bulyan needs more clients
        "before": {"bucketing"},  # it is an option
    }


def every_method(*, random_draws: bool = True) -> list[ft.Method]:
    """The table, each under its name there; without random draws, results do not depend on the order of samples."""
    methods = METHODS if random_draws else METHODS | {"fedala": ft.methods.fedala(share=1.0)}
    rooted = [name for name, m in methods.items() if isinstance(m.aggregator, Rooted)]
    names = [name for name in methods if random_draws or name not in rooted]
    return [dataclasses.replace(methods[name], name=name) for name in names]


def assert_close_states(a: ft.Round, b: ft.Round, methods: list[ft.Method], clients: Mapping[int, int]) -> None:
    """The states of the server, and of these clients of the first run and the second."""
    for m in methods:
        pairs = [(a.state.server[m.name], b.state.server[m.name])]
        pairs += [
            (a.state.client_states.get((m.name, i)), b.state.client_states.get((m.name, j))) for i, j in clients.items()
        ]
        for one, other in pairs:
            torch.testing.assert_close(
                one.to_tensors(), other.to_tensors(), rtol=2e-3, atol=5e-5,
                msg=lambda text: f"{m.name}: {text}",  # noqa: B023
            )  # fmt: skip


@pytest.mark.parametrize("class_weights", [(), "balanced"], ids=["plain", "balanced"])
def test_a_row_of_weight_two_is_two_rows(class_weights: object) -> None:
    """In the loss, in numbers of samples and in class weights, for every method; some rows of clients are twice."""
    fed = federation()
    data, loss = fed.dataset, ft.losses.CrossEntropy(class_weights=class_weights)
    is_twice = data.y_train < 3
    weighted = dataclasses.replace(fed, dataset=with_weights(data, torch.where(is_twice, 2.0, 1.0)))
    twice = dataclasses.replace(fed, train_index=[torch.cat([rows, rows[is_twice[rows]]]) for rows in fed.train_index])
    settings = RECIPE | BASE | {"batch_size": 1000, "loss": loss}  # all rows in one batch: their order is no matter
    methods = every_method(random_draws=False)
    if class_weights:  # which are in the loss of all of them
        methods = [m for m in methods if m.name in ("fedtilt", "fedavg", "fedas", "samples")]
    methods.append(ft.fedavg(name="samples, tilted", weighting="samples", aggregator=Tilted(q=2.0)))
    *_, a = ft.simulate(methods, twice, MODEL, **settings)
    *_, b = ft.simulate(methods, weighted, MODEL, **settings)
    assert_close_states(a, b, methods, {n: n for n in range(8)})
    assert not torch.allclose(a.state.shared["samples"], a.state.shared["fedavg"], atol=1e-5)  # it does matter


def test_a_client_that_is_left_out_is_no_client() -> None:
    """For every method: the others train as if they were all, also where the server counts clients."""
    whole, left_out = federation(), ("3", "6")
    kept = [n for n in range(8) if str(n) not in left_out]
    parts = ("train_index", "validation_index", "test_index", "client_classes")
    others = dataclasses.replace(
        whole, **{key: [getattr(whole, key)[n] for n in kept] for key in parts}, has_outliers=whole.has_outliers[kept],
        client_names=tuple(map(str, kept)),
    )  # fmt: skip
    without = federation(leave_out=left_out)
    settings = RECIPE | BASE | {"batch_size": 1000, "participation": 1.0}  # nothing is drawn by number
    methods = every_method(random_draws=False)
    *_, a = ft.simulate(methods, without, MODEL, **settings)
    *_, b = ft.simulate(methods, others, MODEL, **settings)
    assert_close_states(a, b, methods, dict(zip(kept, range(6), strict=True)))


@pytest.mark.parametrize("step", [Bucketing(4), NNM(0.3)], ids=lambda step: step.rule)
def test_losses_are_mixed_as_the_models_are(step: Before) -> None:
    """q-FFL's power law on mixed models has the mixed losses: q = 0 is the mean of the mixed models."""
    rules = {"tilted": Tilted(q=1e-9), "q_ffl": QFfl(0.0), "power": QFfl(1.0)}
    # of six models, the buckets have four and two
    methods = [ft.fedavg(name=name, aggregator=rule, before=[step]) for name, rule in rules.items()]
    *_, last = ft.simulate(methods, federation(), MODEL, **(RECIPE | BASE))
    torch.testing.assert_close(last.state.shared["q_ffl"], last.state.shared["tilted"], rtol=1e-4, atol=1e-5)
    assert last.state.shared["power"].isfinite().all()
    assert not math.isclose(float((last.state.shared["power"] - last.state.shared["q_ffl"]).norm()), 0.0)
