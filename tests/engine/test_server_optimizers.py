"""Server optimisers: steps computed by hand, and none is the aggregate itself."""

import math

import pytest
import torch

import fedtilt as ft
from fedtilt.engine.client import ClientUpdate, plan
from fedtilt.engine.server import server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import initial_server
from fedtilt.methods import COMPONENTS
from fedtilt.parts import Parts
from fedtilt.state import ClientState, ServerState
from fedtilt.training import LocalJob
from tests.helpers import plain_loop

EPSILON, LR = 0.1, 0.5
DELTAS = [2.0, -1.0, 0.5]  # aggregated − received of three rounds


def by_hand(name: str, beta: float) -> list[float]:
    """One parameter after every round, from 1, in plain numbers."""
    w, m, v, values = 1.0, 0.0, EPSILON**2, []
    for delta in DELTAS:
        if name == "sgd":
            m = beta * m + delta
            w += LR * m
        else:
            m = beta * m + (1 - beta) * delta
            if name == "adagrad":
                v = v + delta**2
            elif name == "adam":
                v = 0.99 * v + 0.01 * delta**2
            else:
                v = v - 0.01 * delta**2 * math.copysign(1.0, v - delta**2)
            w += LR * m / (math.sqrt(v) + EPSILON)
        values.append(w)
    return values


@pytest.mark.parametrize(
    ("name", "momentum", "beta"),
    [
        ("sgd", None, 0.0),
        ("sgd", 0.9, 0.9),  # FedAvgM
        ("adam", None, 0.9),
        ("adam", 0.5, 0.5),
        ("yogi", None, 0.9),
        ("adagrad", None, 0.0),
        ("adagrad", 0.8, 0.8),
    ],
)
def test_steps_computed_by_hand(name: str, momentum: float | None, beta: float) -> None:
    given = {} if momentum is None else {"momentum": momentum}
    epsilon = {} if name == "sgd" else {"epsilon": EPSILON}
    settings = TrainSettings(server_optimizer={"rule": name, "lr": LR, **given, **epsilon})
    server, values = ServerState(torch.ones(2)), []
    for delta in DELTAS:
        aggregated = server.parameters + delta
        updates = {n: ClientUpdate(aggregated + shift, 10) for n, shift in enumerate((-0.25, 0.25))}
        server = server_update(ft.fedavg(), server, updates, settings).state
        values.append(server.parameters.tolist())
    expected = by_hand(name, beta)
    torch.testing.assert_close(torch.tensor(values), torch.tensor([[w, w] for w in expected]))
    kept = {"optimizer.momentum"} | ({"optimizer.second_moment"} if name != "sgd" else set())
    assert server.to_tensors().keys() == {"parameters"} | kept


@pytest.mark.parametrize("name", COMPONENTS["optimizer"])
def test_an_optimizer_of_the_method_is_that_of_the_run(name: str) -> None:
    settings = {"lr": LR, "momentum": 0.5} | ({} if name == "sgd" else {"epsilon": EPSILON})
    method = ft.fedavg(optimizer={"rule": name, **settings})
    of_run = TrainSettings(server_optimizer={"rule": name, **settings})
    start = torch.ones(2)
    servers = [initial_server(method, Parts.plain(start), 2), ServerState(start)]
    for delta in DELTAS:
        updates = {n: ClientUpdate(servers[0].parameters + delta, 10) for n in range(2)}
        servers[0] = server_update(method, servers[0], updates, TrainSettings()).state
        servers[1] = server_update(ft.fedavg(), servers[1], updates, of_run).state
    a, b = (server.to_tensors() for server in servers)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[key], b[key]) for key in a)
    both = server_update(method, servers[0], updates, TrainSettings(server_optimizer={"rule": "sgd", "lr": 3.0})).state
    alone = server_update(method, servers[0], updates, TrainSettings()).state
    assert torch.equal(both.parameters, alone.parameters)  # the method's own comes first


def test_a_first_step_of_size_one_without_momentum_is_the_aggregate() -> None:
    fed = plain_loop.federation()
    recipe = {"rounds": 2, "epochs": 1, "lr": 0.05}
    none, sgd = (
        plain_loop.last_round([ft.fedavg()], fed, ft.models.logistic, **recipe, **settings).state.shared["fedavg"]
        for settings in ({}, {"server_optimizer": "sgd"})
    )
    torch.testing.assert_close(none, sgd, rtol=1e-5, atol=1e-7)


def test_server_optimisers_follow_any_aggregation_rule_and_are_kept_by_method() -> None:
    settings = TrainSettings(server_optimizer={"rule": "sgd", "lr": 2.0})
    updates = {n: ClientUpdate(torch.tensor([value]), 1) for n, value in enumerate((1.0, 2.0, 100.0))}
    state = server_update(ft.fedavg(aggregator="median"), ServerState(torch.zeros(1)), updates, settings).state
    assert state.parameters.tolist() == [4.0]  # 0 + 2 · (median − 0)
    last = plain_loop.last_round(
        [ft.fedavg(), ft.fedavg(aggregator="median", name="median")], plain_loop.federation(), ft.models.logistic,
        rounds=2, epochs=1, lr=0.05, server_optimizer={"rule": "adam", "lr": 0.01},
    )  # fmt: skip
    mean, median = (last.state.server[name].slot("optimizer") for name in ("fedavg", "median"))
    for name in ("momentum", "second_moment"):
        assert not torch.equal(mean[name], median[name])


def test_an_optimizer_of_the_run_that_no_method_takes_is_refused() -> None:
    fed, recipe = plain_loop.federation(), {"rounds": 1, "epochs": 1, "server_optimizer": "adam", "workers": 0}
    own = ft.fedavg(optimizer="sgd")
    with pytest.raises(ft.InputError, match="server_optimizer = 'adam' has no effect: every method has an optimizer"):
        ft.run([own], fed, ft.models.logistic, **recipe)
    result = ft.run([own, ft.fedprox()], fed, ft.models.logistic, **recipe)
    assert list(result) == ["fedavg", "fedprox"]


def test_what_the_server_keeps_does_not_reach_the_clients_jobs() -> None:
    slots = {"optimizer": {"momentum": torch.ones(3)}, "audit": {"distances": torch.ones(3)}}
    server = ServerState(torch.zeros(3), slots=slots)
    jobs = plan(
        ft.fedavg(), server, ClientState(), parts=Parts.plain(torch.zeros(3)), settings=TrainSettings(), round=1
    )
    assert isinstance(jobs["shared"], LocalJob)
    tensors = [value for value in vars(jobs["shared"]).values() if isinstance(value, torch.Tensor)]
    assert all(value is server.parameters for value in tensors)
