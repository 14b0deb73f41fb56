"""The search for the worst strength: the coordinates of the span against the aggregation of whole models."""

import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.attacks.forged_updates import damage_of, forged_update, worst_strength
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.server import RoundRule
from fedtilt.engine.settings import TrainSettings
from fedtilt.methods import COMPONENTS, ServerRound
from fedtilt.methods.aggregators import Bulyan, Tilted
from fedtilt.methods.before import Clip
from fedtilt.state import ServerState

CLIENTS, PARAMETERS = 11, 300
IS_BAD = [client in (2, 7) for client in range(CLIENTS)]


def component(kind: str, rule: str) -> object:
    """A built-in component that tolerates the bad clients, if it tolerates any."""
    cls = COMPONENTS[kind][rule]
    return cls(bad_share=2 / CLIENTS) if "bad_share" in cls.__dataclass_fields__ else cls()


def method(aggregator: str = "mean", *before: object) -> ft.Method:
    steps = [component("before", step) if isinstance(step, str) else step for step in before]
    return ft.fedavg(aggregator=component("aggregator", aggregator), before=steps)


METHODS = {
    **{name: method(name) for name in COMPONENTS["aggregator"]},
    **{f"{step}, {rule}": method(rule, step) for step in COMPONENTS["before"]
       for rule in ("geometric_median", "trimmed_mean")},
    **{f"clipping, nnm, {rule}": method(rule, Clip(9.0), "nnm")
       for rule in ("geometric_median", "trimmed_mean", "median", "krum")},
    "bulyan": ft.fedavg(aggregator=Bulyan(0.1)),
    "tilted q=0.01": ft.fedtilt(tau=0, lam=0, q=0.01),
    "tilted q=-0.01": ft.fedtilt(tau=0, lam=0, q=-0.01),
    "tilted l2": ft.fedavg(aggregator=Tilted(distance="l2")),
    "tilted l1": ft.fedavg(aggregator=Tilted(distance="l1")),
    "tilted l1 with steps": ft.fedavg(aggregator=Tilted(q=0.01, distance="l1", steps=(3, 0.1))),
}  # fmt: skip


def rule_of(method: ft.Method, received: Tensor, clients: int = CLIENTS, root: Tensor | None = None) -> RoundRule:
    """The rule of a round with updates of these clients, whose losses differ."""
    losses = torch.linspace(0.1, 2, clients).tolist()
    updates = {n: ClientUpdate(received, 1, declared={"loss": losses[n]}) for n in range(clients)}
    settings, server = TrainSettings(lr=0.1), ServerState(received)
    asked = ServerRound(received=received, selected=clients, population=clients, root=root)
    return RoundRule.of(method, server, asked, updates, settings)[0]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["alie", "ipm"])
@pytest.mark.parametrize("name", METHODS)
def test_damage_is_that_of_whole_models(name: str, kind: str) -> None:
    received, shift = 5 * normal(0, PARAMETERS), normal(1, PARAMETERS)
    known = shift + 0.7 * normal(2, CLIENTS - sum(IS_BAD), PARAMETERS)
    rule = rule_of(METHODS[name], received, root=received + shift)
    base = forged_update(kind, shift, known, 0.0)
    direction = forged_update(kind, shift, known, 1.0) - base
    damage = damage_of(rule, known, IS_BAD, base, direction)
    models = torch.empty(CLIENTS, PARAMETERS)
    models[~torch.tensor(IS_BAD)] = received + known
    for strength in (0.0, 0.3, 1.7, 40.0):
        models[IS_BAD] = received + forged_update(kind, shift, known, strength)
        expected = (rule.aggregate(models)[0] - received - known.mean(0)).norm()
        assert damage(strength) == pytest.approx(expected.item(), rel=1e-3, abs=1e-4)


def test_attackers_alone_forge_from_their_own_updates() -> None:
    received, own = torch.zeros(4), normal(0, 3, 4)
    rule = rule_of(method(), received, clients=3)
    damage = damage_of(rule, own, [True] * 3, torch.zeros(4), -own.mean(0))
    assert damage(2.0) == pytest.approx(3 * own.mean(0).norm().item(), rel=1e-5)


@pytest.mark.parametrize("aggregator", ["trimmed_mean", "geometric_median"])
def test_equal_updates_of_zero_leave_nothing_to_damage(aggregator: str) -> None:
    zero = torch.zeros(5)
    rule = rule_of(method(aggregator), zero)
    assert damage_of(rule, torch.zeros(9, 5), IS_BAD, zero, zero)(10.0) == 0


def test_the_line_search_of_byzfl() -> None:
    tried = []

    def damage(strength: float) -> float:
        tried.append(round(strength, 6))
        return -abs(strength - 31)

    assert worst_strength(damage) == pytest.approx(30 + 40 * 0.8**14)  # it never steps back
    assert tried[:6] == [0, 10, 30, 70, 62, 55.6]  # doubled while it helps, then shorter
    assert len(tried) == 20
