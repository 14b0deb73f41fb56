"""All published methods: same bits twice, with workers and after a resume; weights of samples; a CNN with BatchNorm."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import methods
from fedtilt.methods import PRESETS
from fedtilt.storage.run_folder import RunFolder
from tests.methods.published.reference import MODEL

METHODS: dict[str, Callable[[], ft.Method]] = {
    "aaggff": methods.aaggff,
    "aaggff, silo": functools.partial(methods.aaggff, "silo"),
    "apfl": methods.apfl,
    "fedala": methods.fedala,
    "fedas": methods.fedas,
    "fedbabu": methods.fedbabu,
    "feddbe": functools.partial(methods.feddbe, kappa=1.0),
    "fedminmax": methods.fedminmax,
    "fedrod": methods.fedrod,
    "foundationfl": methods.foundationfl,
    "moon": methods.moon,
}
RECIPE = {"rounds": 3, "participation": 0.75, "epochs": 2, "batch_size": 8, "lr": 0.05, "seed": 5, "workers": 0}
FED = ft.Federation.build(ft.data.load("digits"), clients=4, partition="dirichlet", alpha=1.0, max_train=40, seed=1)
States = dict[str, dict[str, Tensor]]


def states_of(state: object, name: str) -> States:
    """What the server and every client keep."""
    kept = {f"client {n}": dict(state.client_states.get((name, n))) for m, n in state.client_states.owners() if m == name}
    return {"server": dict(state.server[name])} | kept


@functools.cache
def plain(key: str) -> States:
    method = METHODS[key]()
    *_, last = ft.simulate([method], FED, MODEL, **RECIPE)
    return states_of(last.state, method.name)


def same(found: States, expected: States) -> None:
    assert found.keys() == expected.keys()
    for owner, tensors in expected.items():
        assert found[owner].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(found[owner][name], tensor), f"{name} of {owner}"


def test_the_table_has_every_published_method() -> None:
    published = {name for name, preset in PRESETS.items() if ".published." in preset.__module__}
    assert published == {key.partition(",")[0] for key in METHODS}
    assert len(published) == 10


@pytest.mark.parametrize("settings", [{}, {"workers": 2}, {"backend": "autograd"}], ids=["twice", "workers", "autograd"])
@pytest.mark.parametrize("key", METHODS)
def test_same_bits(key: str, settings: dict[str, object]) -> None:
    method = METHODS[key]()
    if settings.get("backend") and method.training is None:
        pytest.skip("another backend may round otherwise")
    *_, last = ft.simulate([method], FED, MODEL, **(RECIPE | settings))
    same(states_of(last.state, method.name), plain(key))


@pytest.mark.parametrize("after", [1, 2])
@pytest.mark.parametrize("key", METHODS)
def test_same_bits_after_a_resume(key: str, after: int, tmp_path: Path) -> None:
    method = METHODS[key]()
    run = functools.partial(ft.simulate, [ft.ditto(name="other"), method], FED, MODEL, **RECIPE)
    saved = RunFolder(tmp_path)
    for r in run(client_states=saved.client_states):
        if r.number == after:
            saved.checkpoint(r.state)
            break
    *_, last = run(state=RunFolder(tmp_path).latest())
    same(states_of(last.state, method.name), plain(key))


@pytest.mark.parametrize("key", METHODS)
def test_a_row_of_weight_two_is_two_rows(key: str) -> None:
    data, method = FED.dataset, METHODS[key]()
    doubled = [torch.cat([rows, rows]) if n % 2 else rows for n, rows in enumerate(FED.train_index)]
    weights = torch.ones(len(data.y_train))
    for n, rows in enumerate(FED.train_index):
        weights[rows] = 2.0 if n % 2 else 1.0
    ones = torch.ones(len(data.y_test))
    weighted = dataclasses.replace(FED, dataset=dataclasses.replace(data, weight_train=weights, weight_test=ones))
    settings = RECIPE | {"batch_size": 1000}  # all rows in one batch: the order of rows is no matter
    if key == "fedala":
        method = methods.fedala(share=1.0)
    *_, a = ft.simulate([method], dataclasses.replace(FED, train_index=doubled), MODEL, **settings)
    *_, b = ft.simulate([method], weighted, MODEL, **settings)
    torch.testing.assert_close(a.state.shared[method.name], b.state.shared[method.name], rtol=1e-3, atol=1e-5)


def normalised(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(144, classes)
    )


@pytest.mark.parametrize("buffers", ["local", "average", "frozen"])
@pytest.mark.parametrize("key", METHODS)
def test_a_model_with_buffers_and_dropout(key: str, buffers: str) -> None:
    method = METHODS[key]()
    runs = [list(ft.simulate([method], FED, normalised, **RECIPE, buffers=buffers))[-1] for _ in range(2)]
    same(*(states_of(run.state, method.name) for run in runs))
    assert all(tensor.isfinite().all() for tensors in states_of(runs[0].state, method.name).values() for tensor in tensors.values())


@pytest.mark.parametrize("key", METHODS)
def test_it_learns(key: str) -> None:
    method = METHODS[key]()
    *_, last = ft.simulate([method], FED, MODEL, **(RECIPE | {"rounds": 12, "lr": 0.1, "eval_every": 12}))
    assert last.evaluation is not None or last.number == 12


@pytest.mark.parametrize("name", [name for name in METHODS if "," not in name])
def test_a_spec_can_name_it(name: str) -> None:
    method = METHODS[name]()
    again = ft.Method(name=name, **method.to_table())
    assert again == method
    assert ft.Method(name="own", **METHODS["moon"]().to_table()).training == methods.moon().training
