"""All published methods: the contract, weights of samples, buffers and dropout, and the options of a run."""

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import methods
from fedtilt.methods import PRESETS
from fedtilt.testing import check_method
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


def test_the_table_has_every_published_method() -> None:
    published = {name for name, preset in PRESETS.items() if ".published." in preset.__module__}
    assert published == {key.partition(",")[0] for key in METHODS}
    assert len(published) == 10


@pytest.mark.parametrize("key", METHODS)
def test_it_holds_the_contract(key: str) -> None:
    """Bit-identical twice, by workers, beside others, after a resume; tests/flower deploys all."""
    check_method(METHODS[key](), deployment=False)


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


def all_methods() -> list[ft.Method]:
    return [dataclasses.replace(make(), name=key) for key, make in METHODS.items()]


SLOW_BUFFERS = [pytest.param(mode, marks=pytest.mark.slow) for mode in ("average", "frozen")]


@pytest.mark.parametrize("buffers", ["local", *SLOW_BUFFERS])
def test_a_model_with_buffers_and_dropout(buffers: str) -> None:
    recipe = RECIPE | {"rounds": 2, "epochs": 1, "batch_size": 20, "buffers": buffers}
    first, second = (list(ft.simulate(all_methods(), FED, normalised, **recipe))[-1].state.server for _ in range(2))
    for key in METHODS:
        for name, tensor in first[key].to_tensors().items():
            assert tensor.isfinite().all()
            assert torch.equal(second[key].to_tensors()[name], tensor), (key, name)


class OneLogit(nn.Sequential):
    """For two classes, with a parameter that is one number; `as_two`: it returns two logits itself."""

    def __init__(self, as_two: bool) -> None:
        super().__init__(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.as_two, self.scale = as_two, nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor) -> Tensor:
        logit = super().forward(self.scale * x)
        return torch.cat([torch.zeros_like(logit), logit], 1) if self.as_two else logit


def test_a_model_with_one_logit_and_a_parameter_that_is_one_number() -> None:
    x, y = torch.randn(90, 3, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 2
    data = ft.data.Dataset(name="two", x_train=x, y_train=y, x_test=x, y_test=y, classes=2)
    federation = ft.Federation.build(data, clients=4, partition="iid")
    recipe = RECIPE | {"rounds": 2, "epochs": 1, "batch_size": 20}
    one, two = (
        list(ft.simulate(all_methods(), federation, functools.partial(OneLogit, as_two), **recipe))[-1].state
        for as_two in (False, True)
    )
    for owner in one.client_states.owners():
        for name, tensor in one.client_states.get(owner).to_tensors().items():
            assert torch.equal(two.client_states.get(owner).to_tensors()[name], tensor), (owner, name)
    for key in METHODS:
        assert torch.equal(one.shared[key], two.shared[key])
        assert one.shared[key].isfinite().all()


def test_they_learn() -> None:
    *_, last = ft.simulate(all_methods(), FED, MODEL, **(RECIPE | {"rounds": 10, "lr": 0.2, "eval_every": 10}))
    accuracy = {key: last.metrics(key).accuracy for key in METHODS}
    assert min(accuracy.values()) > 60, accuracy


@pytest.mark.parametrize("name", [name for name in METHODS if "," not in name])
def test_a_table_names_its_components(name: str) -> None:
    method = METHODS[name]()
    assert ft.Method(name=name, **method.to_table()) == method
    assert getattr(methods, name)() == PRESETS[name]()


def test_other_rules_steps_and_optimisers_stand_beside_them() -> None:
    more = {"client_momentum": 0.5, "optimizer": "adam"}
    changed = [dataclasses.replace(method, **more) for method in all_methods()]
    *_, last = ft.simulate(changed, FED, MODEL, **(RECIPE | {"momentum": 0.9}))
    assert all(last.state.shared[key].isfinite().all() for key in METHODS)
