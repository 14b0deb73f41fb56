"""The server trains on its root set as a client does: on its groups and weights, and with what a client remembers."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.engine.client import ClientUpdate, finish, plan
from fedtilt.engine.prepare import PreparedRun, prepare
from fedtilt.engine.root_set import RootUpdate
from fedtilt.engine.server import server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import initial_server
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor, one_thread
from fedtilt.methods.aggregators import FLTrust
from fedtilt.state import ClientState, ServerState
from tests.cross_products.cases import DATA, MODEL
from tests.runs.test_language import Causal, small_mlp, texts

RULE = FLTrust(12)
NOISY = {"outliers": "flips", "outlier_rate": 0.5}


def divided(data: ft.data.Dataset = DATA, **settings: object) -> ft.Federation:
    return ft.Federation.build(data, clients=4, partition="iid", max_train=20, seed=1, **settings)


def grouped() -> ft.Federation:
    """Digits with groups and weights."""
    n, m = len(DATA.y_train), len(DATA.y_test)
    return divided(
        dataclasses.replace(
            DATA, group_train={"sex": torch.arange(n) % 3}, group_test={"sex": torch.arange(m) % 3},
            group_names={"sex": ("a", "b", "c")}, weight_train=0.5 + torch.arange(n) % 4, weight_test=torch.ones(m),
        )
    )  # fmt: skip


def numbers() -> ft.Federation:
    x = torch.randn(4, 15, 4, generator=torch.Generator().manual_seed(0))
    return ft.Federation.from_clients([(each, 30 + 10 * each[:, 0]) for each in x], task="regression")


def language() -> ft.Federation:
    return ft.Federation.from_clients(texts(4), task="language")


class Normalised(nn.Module):
    """With BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.ReLU())
        self.head = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


CASES: dict[str, tuple[ft.Method, Callable[[], ft.Federation], object]] = {
    "groups and weights": (ft.fedtilt(tau=3.0, lam=1.0, aggregator=RULE), grouped, MODEL),
    "numbers": (ft.fedtilt(tau=1.0, lam=0.5, aggregator=RULE), numbers, small_mlp),
    "language": (ft.fedavg(aggregator=RULE), language, Causal),
    "scaffold": (ft.methods.scaffold(aggregator=RULE), divided, MODEL),
    "feddyn, outliers": (ft.methods.feddyn(0.5, aggregator=RULE), lambda: divided(**NOISY), MODEL),
    "fedper": (ft.methods.fedper(aggregator=RULE), divided, MODEL),
    "pfedme, momentum": (ft.methods.pfedme(2.0, 2, aggregator=RULE, client_momentum=0.5), divided, MODEL),
    "moon": (ft.methods.moon(aggregator=RULE), divided, MODEL),
    "feddbe": (ft.methods.feddbe(aggregator=RULE), divided, MODEL),
    "buffers": (ft.methods.ditto(0.1, aggregator=RULE), divided, Normalised),
}


def client_round(
    prepared: PreparedRun, method: ft.Method, server: ServerState, state: ClientState, round: int
) -> tuple[Tensor, ClientState]:
    """What a further client with these clean samples sends and keeps."""
    root = prepared.roots[method.name]
    federation = dataclasses.replace(  # the clients and one more, without outliers
        prepared.federation, outliers=ft.data.Outliers(),
        train_index=[*prepared.federation.train_index, root.federation.train_index[-1]],
    )  # fmt: skip
    client, given = 4, {"parts": prepared.parts, "settings": prepared.settings, "net": prepared.net}
    jobs = plan(method, server, state, round=round, group=federation.group, **given)
    training = ClientTraining(federation, prepared.net, prepared.backend.name, BatchSettings.of(prepared.settings))
    executor = InProcessExecutor(training, prepared.device, "float32")
    ((_, results),) = executor.train(round, {client: list(jobs.values())})
    trained = dict(zip(jobs, results, strict=True))
    samples = federation.train_size(client)
    update, state = finish(method, jobs, trained, state, rows=12, samples=samples, **given)
    return update.parameters, state


@pytest.mark.parametrize("case", CASES)
def test_the_server_trains_as_a_client_with_these_samples_does(case: str) -> None:
    method, federation, model = CASES[case]
    settings = TrainSettings(rounds=3, participation=1.0, epochs=2, batch_size=5, lr=0.05, workers=0)
    prepared = prepare([method], federation(), model, settings)  # type: ignore[arg-type]
    server, state = initial_server(method, prepared.parts, 4, prepared.net), ClientState()
    for round in (1, 2):
        with one_thread(prepared.device):  # as in a run
            found = prepared.roots[method.name].train(
                method, server, net=prepared.net, parts=prepared.parts, settings=prepared.settings,
                backend=prepared.backend.name, round=round,
            )  # fmt: skip
        parameters, state = client_round(prepared, method, server, state, round)
        assert torch.equal(found.parameters, parameters)
        assert not torch.equal(found.parameters, server.parameters)
        kept = dataclasses.replace(state, personal=None, personal_buffers=None).to_tensors()
        assert {*found.slot} == {*kept}
        assert all(torch.equal(found.slot[name], tensor) for name, tensor in kept.items())
        server = dataclasses.replace(server, parameters=parameters).with_slots({"root": found.slot})


def test_a_root_model_that_is_not_finite_is_refused() -> None:
    method, received = ft.methods.fedavg(aggregator=RULE), torch.zeros(3)
    updates = {client: ClientUpdate(torch.full((3,), client + 1.0), 1) for client in range(3)}

    def update(root: torch.Tensor) -> torch.Tensor:
        return server_update(
            method, ServerState(received), updates, TrainSettings(), root=RootUpdate(root, {}), check=lambda: None
        ).state.parameters

    assert update(torch.ones(3)).isfinite().all()
    with pytest.raises(ft.InputError, match="is not finite"):
        update(torch.tensor([1.0, torch.nan, 1.0]))


def test_what_the_server_keeps_of_its_root_set_is_declared_and_resumed() -> None:
    ft.testing.check_method(ft.methods.scaffold(aggregator=RULE, name="both"))
