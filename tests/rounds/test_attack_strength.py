"""The search for the worst strength: the coordinates of the span against the aggregation of whole models."""

import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.math.aggregate import AGGREGATORS, PRE_AGGREGATORS
from fedtilt.rounds.aggregation import RoundRule
from fedtilt.rounds.attack_strength import damage_of, worst_strength
from fedtilt.rounds.forged_updates import forged_update

CLIENTS, PARAMETERS = 11, 300
IS_BAD = [client in (2, 7) for client in range(CLIENTS)]


def method(aggregator: str = "mean", **settings: object) -> ft.Method:
    uses = {*AGGREGATORS[aggregator].settings} if aggregator in AGGREGATORS else set()
    if "bad_share" in uses or "nnm" in settings.get("pre_aggregators", ()):
        settings["bad_share"] = 2 / CLIENTS
    return ft.fedavg(aggregator=aggregator, **settings)


METHODS = {
    **{name: method(name) for name in AGGREGATORS},
    **{f"{step}, {rule}": method(rule, pre_aggregators=[step]) for step in PRE_AGGREGATORS
       for rule in ("geometric_median", "trimmed_mean")},
    **{f"clipping, nnm, {rule}": method(rule, pre_aggregators=["clipping", "nnm"], clip_radius=9.0)
       for rule in ("geometric_median", "trimmed_mean", "median", "krum")},
    "bulyan": ft.fedavg(aggregator="bulyan", bad_share=0.1),
    "tilted q=0.01": ft.fedtilt(tau=0, lam=0, q=0.01),
    "tilted q=-0.01": ft.fedtilt(tau=0, lam=0, q=-0.01),
    "tilted l2": ft.fedtilt(tau=0, lam=0, distance="l2"),
    "tilted l1": ft.fedtilt(tau=0, lam=0, distance="l1"),
    "tilted l1 with steps": ft.fedtilt(tau=0, lam=0, q=0.01, distance="l1", steps=(3, 0.1)),
}  # fmt: skip


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["alie", "ipm"])
@pytest.mark.parametrize("name", METHODS)
def test_damage_is_that_of_whole_models(name: str, kind: str) -> None:
    received, shift = 5 * normal(0, PARAMETERS), normal(1, PARAMETERS)
    known = shift + 0.7 * normal(2, CLIENTS - sum(IS_BAD), PARAMETERS)
    rule = RoundRule.of(
        METHODS[name], CLIENTS, received, selected=CLIENTS, seed=0, round=1, root=received + shift,
        losses=torch.linspace(0.1, 2, CLIENTS), lr=0.1,
    )  # fmt: skip
    base = forged_update(kind, shift, known, 0.0)
    direction = forged_update(kind, shift, known, 1.0) - base
    damage = damage_of(rule, known, IS_BAD, base, direction)
    models = torch.empty(CLIENTS, PARAMETERS)
    models[~torch.tensor(IS_BAD)] = received + known
    for strength in (0.0, 0.3, 1.7, 40.0):
        models[IS_BAD] = received + forged_update(kind, shift, known, strength)
        expected = (rule.aggregate(models) - received - known.mean(0)).norm()
        assert damage(strength) == pytest.approx(expected.item(), rel=1e-3, abs=1e-4)


def test_attackers_alone_forge_from_their_own_updates() -> None:
    received, own = torch.zeros(4), normal(0, 3, 4)
    rule = RoundRule.of(method(), 3, received, selected=3, seed=0, round=1)
    damage = damage_of(rule, own, [True] * 3, torch.zeros(4), -own.mean(0))
    assert damage(2.0) == pytest.approx(3 * own.mean(0).norm().item(), rel=1e-5)


@pytest.mark.parametrize("aggregator", ["trimmed_mean", "geometric_median"])
def test_equal_updates_of_zero_leave_nothing_to_damage(aggregator: str) -> None:
    zero = torch.zeros(5)
    rule = RoundRule.of(method(aggregator), CLIENTS, zero, selected=CLIENTS, seed=0, round=1)
    assert damage_of(rule, torch.zeros(9, 5), IS_BAD, zero, zero)(10.0) == 0


def test_the_line_search_of_byzfl() -> None:
    tried = []

    def damage(strength: float) -> float:
        tried.append(round(strength, 6))
        return -abs(strength - 31)

    assert worst_strength(damage) == pytest.approx(30 + 40 * 0.8**14)  # it never steps back
    assert tried[:6] == [0, 10, 30, 70, 62, 55.6]  # doubled while it helps, then shorter
    assert len(tried) == 20
