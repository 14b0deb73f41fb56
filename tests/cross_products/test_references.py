"""Every preset with every option that keeps state, against plain PyTorch: the models of a few rounds are the same."""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import pytest
import torch

import fedtilt as ft
from fedtilt.methods import PRESETS
from fedtilt.models import parameters_to_vector
from tests.helpers import plain_loop, plain_methods
from tests.helpers.plain_methods import PlainMethod

CLIENTS, ROUNDS, STEPS, LR = 4, 3, 2, 0.05
FED = ft.Federation.build(
    ft.data.load("digits"), clients=CLIENTS, partition="dirichlet", alpha=1.0, max_train=40, seed=1
)
MODEL = functools.partial(ft.models.mlp, hidden=(6,))
HEAD = 10 * 6 + 10
RECIPE = {"rounds": ROUNDS, "epochs": STEPS, "batch_size": 1000, "lr": LR, "participation": 0.5}
RECIPE |= {"workers": 0, "backend": "autograd"}  # another backend may be on the other side of a kink of a ReLU
PERSONAL = ("fedtilt", "fedavg_finetuned", "ditto", "local", "pfedme")


def plain(kind: Callable[..., PlainMethod] = PlainMethod, **settings: object) -> Callable[[], PlainMethod]:
    net = plain_loop.initial(FED, MODEL)
    return lambda: kind(FED, net, parameters_to_vector(net), LR, STEPS, **settings)


METHODS: dict[str, tuple[ft.Method, Callable[[], PlainMethod]]] = {
    "fedtilt": (
        ft.fedtilt(tau=2.0, lam=-1.0, q=0.5, mu=0.2),
        plain(plain_methods.TiltedServer, objective=plain_methods.two_levels(2.0, -1.0), mu=0.2, q=0.5),
    ),
    "fedavg": (ft.fedavg(), plain()),
    "fedavg_finetuned": (ft.methods.fedavg_finetuned(), plain(plain_methods.Personal, personal_start="received")),
    "fedprox": (ft.fedprox(0.5), plain(prox=0.5)),
    "ditto": (ft.ditto(0.2), plain(plain_methods.Personal, mu=0.2)),
    "term": (ft.term(1.5), plain(objective=lambda losses, _: plain_methods.tilted(losses, 1.5))),
    "local": (ft.methods.local(), plain(plain_methods.Personal, personal_start="initial")),
    "scaffold": (ft.methods.scaffold(), plain(plain_methods.Scaffold)),
    "feddyn": (ft.methods.feddyn(0.5), plain(plain_methods.FedDyn, prox=0.5)),
    "qffl": (ft.methods.qffl(1.5), plain(plain_methods.QFfl, q=1.5)),
    "afl": (
        ft.methods.afl(0.05),
        lambda: plain(plain_methods.ByLoss, weights=plain_methods.afl_weights(CLIENTS, 0.05))(),
    ),
    "term_clients": (ft.methods.term_clients(2.0), plain(plain_methods.ByLoss)),
    "fedmgda": (ft.methods.fedmgda(), plain(plain_methods.FedMgda)),
    "propfair": (ft.methods.propfair(6.0), plain(objective=plain_methods.prop_fair(6.0))),
    "fedper": (ft.methods.fedper(), plain(plain_methods.FedPer, shared=slice(-HEAD))),
    "fedrep": (ft.methods.fedrep(3), plain(plain_methods.FedPer, shared=slice(-HEAD), head_steps=3)),
    "pfedme": (ft.methods.pfedme(2.0, 2), plain(plain_methods.PFedMe)),
}
OPTIMIZERS = {"none": (1.0, 0.0), "sgd": (0.7, 0.5), "adam": (0.02, 0.9), "yogi": (0.02, 0.9), "adagrad": (0.05, 0.0)}
OPTIONS = list(itertools.product(OPTIMIZERS, (0.0, 0.4), (1.0, 0.8)))  # server optimiser, client momentum, decay


@functools.cache
def rounds() -> list[tuple[int, list[int]]]:
    """The rounds, and the clients that take part."""
    return [(r.number, r.selected) for r in ft.simulate([ft.fedavg()], FED, MODEL, **RECIPE)]


def check(name: str, optimizer: str, client_momentum: float, decay: float) -> None:
    method, make = METHODS[name]
    lr, beta = OPTIMIZERS[optimizer]
    settings = dict(RECIPE)
    if optimizer != "none":
        settings |= {"server_optimizer": {"rule": optimizer, "lr": lr, "momentum": beta}}
    if decay != 1:
        settings |= {"schedule": {"name": "exponential", "decay": decay}}
    tested = dataclasses.replace(method, client_momentum=client_momentum)
    *_, last = ft.simulate([tested], FED, MODEL, **settings)
    reference = make()
    step = plain_methods.server_step(optimizer, lr, beta)
    expected = plain_methods.train(reference, rounds(), step, client_momentum=client_momentum, decay=decay)
    close = functools.partial(torch.testing.assert_close, rtol=2e-3, atol=2e-5)
    close(last.state.shared[name], expected)
    assert (name in PERSONAL) == bool(reference.personal)
    for n, theta in reference.personal.items():
        close(parameters_to_vector(last.model(name, n)), theta)
    for n in {key[1] for key in reference.vectors if isinstance(key, tuple)}:  # ("local", client)
        close(parameters_to_vector(last.model(name, n)), reference.full(expected, n))


def test_the_table_has_every_preset() -> None:
    assert {*METHODS} == {name for name, preset in PRESETS.items() if ".published." not in preset.__module__}


@pytest.mark.parametrize("number", range(len(METHODS)))
def test_every_preset_with_options_that_keep_state(number: int) -> None:
    """Each with three products, so that every pair of options stands beside some preset."""
    name = [*METHODS][number]
    for option in {*OPTIONS[number % 4 :: 7], OPTIONS[0], OPTIONS[4]}:
        check(name, *option)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("option", OPTIONS, ids=str)
def test_every_preset_with_every_product_of_options_that_keep_state(
    name: str, option: tuple[str, float, float]
) -> None:  # fmt: skip
    check(name, *option)
