"""What travels beside the model: one client of four lies in it, and the others keep their accuracy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.server import server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.engine.state import initial_server
from fedtilt.methods import ClientResult, ServerRound, Training
from fedtilt.methods.component import Slot
from fedtilt.methods.training import ClientBatches
from fedtilt.parts import Parts
from fedtilt.simulation import simulator
from fedtilt.simulation.simulator import Simulator

BAD = 1
KRUM = {"rule": "multi_krum", "bad_share": 0.25}
Lie = Callable[[ClientUpdate, Tensor], ClientUpdate]


def messages(factor: float) -> Lie:
    def lie(update: ClientUpdate, w: Tensor) -> ClientUpdate:
        sent = {slot: {name: factor * t for name, t in tensors.items()} for slot, tensors in update.sent.items()}
        return update._replace(sent=sent)

    return lie


def model(factor: float) -> Lie:
    return lambda u, w: u._replace(parameters=w + factor * (u.parameters - w))


def loss(value: float) -> Lie:
    return lambda u, w: u._replace(declared={**u.declared, "loss": value})


def accuracy(
    monkeypatch: pytest.MonkeyPatch, method: ft.Method, lie: Lie | None, screen: float, classes: int = 10
) -> float:
    """Of the three honest clients, in %, after twelve rounds."""

    def poison(self: Simulator, clients: dict, number: int) -> tuple:  # type: ignore[type-arg]
        sent, *others = train(self, clients, number)
        if lie is not None:
            w = clients[BAD].plans[method.name]["shared"].start
            sent[method.name][BAD] = lie(sent[method.name][BAD], w)
        return sent, *others

    division = {"partition": "iid"} if classes == 10 else {"classes_per_client": classes}
    federation = ft.Federation.build(ft.data.load("digits"), clients=4, **division)
    train = Simulator.train_clients
    with monkeypatch.context() as patch:
        patch.setattr(Simulator, "train_clients", poison)
        *_, last = ft.simulate(
            [method], federation, ft.models.logistic, rounds=12, participation=1.0, epochs=2, lr=0.05, screen=screen,
            workers=0,
        )  # fmt: skip
    good = [n for n in range(4) if n != BAD]
    return 100 * float(last.counts[method.name].shared[good].sum() / last.total[good].sum())


@pytest.mark.parametrize(
    ("method", "lie", "screen"),
    [
        pytest.param(ft.methods.scaffold(), messages(-10), 3.0, id="scaffold, screened"),
        pytest.param(ft.methods.scaffold(), messages(-2.9), 3.0, id="scaffold, screened, within the length"),
        pytest.param(ft.methods.scaffold(aggregator="median"), messages(-10), 0.0, id="scaffold, median"),
        pytest.param(ft.methods.scaffold(aggregator=KRUM), messages(-10), 0.0, id="scaffold, multi_krum"),
        pytest.param(ft.methods.feddyn(aggregator="median"), model(-10), 0.0, id="feddyn, median"),
        pytest.param(ft.methods.feddyn(), model(-10), 3.0, id="feddyn, screened"),
    ],
)
def test_a_lie_to_a_correction_costs_little(
    monkeypatch: pytest.MonkeyPatch, method: ft.Method, lie: Lie, screen: float
) -> None:
    honest, attacked = (accuracy(monkeypatch, method, each, screen) for each in (None, lie))
    assert attacked > honest - 3


@pytest.mark.parametrize("method", [ft.methods.afl(), ft.methods.term_clients()])
def test_a_loss_of_1e30_does_not_decide_the_weights(monkeypatch: pytest.MonkeyPatch, method: ft.Method) -> None:
    honest, attacked = (accuracy(monkeypatch, method, each, 3.0, classes=5) for each in (None, loss(1e30)))
    assert attacked > honest - 3


def test_attackers_of_a_simulation_forge_what_components_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SCAFFOLD a sign flip is in the control too: what a client sends is forged as a whole."""
    seen: dict[int, ClientUpdate] = {}
    honest: dict[int, ClientUpdate] = {}

    def record(method: ft.Method, server: object, updates: dict, *rest: object, **keywords: object) -> object:  # type: ignore[type-arg]
        seen.update(updates)
        return server_update(method, server, updates, *rest, **keywords)  # type: ignore[arg-type]

    federation = ft.Federation.build(ft.data.load("digits"), clients=4, partition="iid", max_train=20)
    attack = ft.Attack(kind="sign_flip", strength=2.0, clients=("1",))
    monkeypatch.setattr(simulator, "server_update", record)
    for given in (None, attack):
        seen.clear()
        list(
            ft.simulate(
                [ft.methods.scaffold()], federation, ft.models.logistic, rounds=1, participation=1.0, epochs=1,
                attack=given, workers=0,
            )
        )  # fmt: skip
        honest = honest or dict(seen)
    forged, own = (updates[1].sent["correction"]["control"] for updates in (seen, honest))
    torch.testing.assert_close(forged, -2 * own)
    assert torch.equal(seen[0].sent["correction"]["control"], honest[0].sent["correction"]["control"])


@dataclass(frozen=True)
class MeanOfMessages(Training):
    """A user's own training, which sends a number and takes the plain mean of all on the server."""

    def init_server(self, model: nn.Module, population: int) -> Slot:
        return {"mean": torch.zeros(2)}

    def sends(self, model: nn.Module) -> Slot:
        return {"number": torch.zeros(2)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        return ClientResult(model, sends={"number": torch.ones(2)})

    def server_step(self, sent: Mapping[str, Tensor], round: ServerRound, slot: Slot) -> Slot:
        return {"mean": sent["number"].mean(0)}


@dataclass(frozen=True)
class Trusting(MeanOfMessages):
    messages: ClassVar[str] = "trusted"


@pytest.mark.parametrize(
    ("aggregator", "screen", "most"),
    [("mean", None, 1e30), ("mean", 3.0, 1.0), ("median", None, 1.0), (KRUM, None, 1.0)],
)
def test_a_component_of_the_users_own_is_covered(aggregator: object, screen: float | None, most: float) -> None:
    method = ft.Method(name="m", training=MeanOfMessages(), aggregator=aggregator)
    sent = [1.0, 1.0, 1.0, 4e30]
    updates = {
        n: ClientUpdate(torch.full((2,), 1.0 + n / 10), 1, sent={"training": {"number": torch.full((2,), value)}})
        for n, value in enumerate(sent)
    }
    server = initial_server(method, Parts.plain(torch.zeros(2)), 4, nn.Linear(1, 1))
    after = server_update(method, server, updates, TrainSettings(screen=screen)).state
    assert after.slot("training")["mean"].tolist() == pytest.approx([most] * 2, rel=1e-6)


def test_trusted_messages_are_refused_beside_a_robust_rule() -> None:
    ft.Method(name="m", training=Trusting())
    with pytest.raises(ft.InputError, match=r"trusts what clients send, so aggregator 'median' protects from none"):
        ft.Method(name="m", training=Trusting(), aggregator="median")
