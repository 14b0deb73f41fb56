"""AAggFF: online weights of clients, against the formulas of Algorithms 2 and 3 by a general solver."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.methods import ServerRound, aaggff
from fedtilt.methods.published import AAggFF
from fedtilt.methods.published.aaggff import RESPONSES
from tests.methods.published.reference import CLIENTS, Reference, check, close, shared


class Online(Reference):
    """What both have: losses of the received model, and weights of all clients."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.past = torch.full((CLIENTS,), 1 / CLIENTS).double(), list[tuple[Tensor, Tensor]]()

    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        self.kept[n] = F.cross_entropy(net(x), y).item()
        return super().client(n, net, x, y)

    def server(self, models: Tensor, clients: list[int], number: int) -> Tensor:
        losses = torch.tensor([self.kept[n] for n in clients]).double()
        self.decide(1 - torch.exp(-((losses / losses.mean()) ** 2)), clients, number)
        share = self.p[clients] / self.p[clients].sum()
        return (share[:, None] * models).sum(0).float()

    def decide(self, r: Tensor, clients: list[int], number: int) -> None:
        raise NotImplementedError


class Device(Online):
    def decide(self, r: Tensor, clients: list[int], number: int) -> None:
        share = len(clients) / CLIENTS
        r = r * share
        typical, robust = r.mean(), torch.empty(CLIENTS).double()
        for n in range(CLIENTS):
            taken = n in clients
            robust[n] = (1 - taken / share) * typical + (r[clients.index(n)] / share if taken else 0)
        below = 1 + typical * self.p.sum()
        ones = torch.ones(CLIENTS).double()
        first = -robust / below
        second = typical * torch.outer(ones, self.p) @ (robust - typical * ones) / below**2
        self.past.append((first + second, self.p))
        total = sum(g for g, _ in self.past)
        rate = math.sqrt(math.log(CLIENTS)) / ((2 + share) * math.sqrt(number + 1))
        self.p = (-rate * total).exp() / (-rate * total).exp().sum()


class Silo(Online):
    def decide(self, r: Tensor, clients: list[int], number: int) -> None:
        full = torch.zeros(CLIENTS).double()
        full[clients] = r / CLIENTS
        self.past.append((-full / (1 + self.p @ full), self.p))
        z = torch.zeros(CLIENTS).double().requires_grad_()  # p = softmax(z)
        solver = torch.optim.LBFGS([z], max_iter=2000, tolerance_grad=1e-12, tolerance_change=1e-16)

        def objective() -> Tensor:
            solver.zero_grad()
            p = z.softmax(0)
            value = sum(g @ p + CLIENTS / 8 * (g @ (p - then)) ** 2 for g, then in self.past) + 2 * p @ p
            value.backward()
            return value

        for _ in range(5):
            solver.step(objective)
        self.p = z.detach().softmax(0)


@pytest.mark.parametrize(("scale", "reference"), [("device", Device), ("silo", Silo)])
def test_it_is_the_papers_update(scale: str, reference: type[Online]) -> None:
    plain = reference()
    last = check(aaggff(scale), plain)
    weights = last.state.server["aaggff"].slot("weighting")["weights"]
    close(weights, plain.p)
    assert not torch.allclose(weights, torch.full_like(weights, 1 / CLIENTS), atol=1e-3)
    assert not torch.allclose(last.state.shared["aaggff"], shared(ft.fedavg()), atol=1e-5)


@pytest.mark.parametrize("scale", ["device", "silo"])
@pytest.mark.parametrize("response", RESPONSES)
def test_equal_losses_give_equal_weights_and_larger_ones_larger_weights(scale: str, response: str) -> None:
    rule = AAggFF(scale, response)

    def weights(*losses: float) -> Tensor:
        given = ServerRound(
            received=torch.zeros(1), clients=range(3), population=3, selected=3, losses=torch.tensor(losses).double()
        )
        found, _ = rule.weights(given, rule.init(3))
        assert found is not None
        return found

    torch.testing.assert_close(weights(1.0, 1.0, 1.0), torch.full((3,), 1 / 3).double())
    torch.testing.assert_close(weights(0.0, 0.0, 0.0), torch.full((3,), 1 / 3).double())
    low, middle, high = weights(0.5, 1.0, 2.0).tolist()
    assert low < middle < high
    assert RESPONSES[response](torch.tensor([1e-9, 1e9])).clamp(0, 1).diff() > 0.5


@pytest.mark.parametrize("scale", ["device", "silo"])
def test_many_rounds_keep_weights_on_the_simplex(scale: str) -> None:
    rule, slot = AAggFF(scale), AAggFF(scale).init(20)
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 60):
        clients = torch.randperm(20, generator=generator)[:5].sort().values.tolist()
        losses = torch.rand(5, generator=generator).double() * torch.tensor(clients).double()
        given = ServerRound(
            received=torch.zeros(1), clients=clients, population=20, selected=5, losses=losses, round=number
        )
        weights, slot = rule.weights(given, slot)
        assert weights is not None
        assert (weights >= 0).all()
        assert float(slot["weights"].sum()) == pytest.approx(1)
    assert slot["weights"][10:].sum() > slot["weights"][:10].sum()  # the larger numbers have the larger losses
