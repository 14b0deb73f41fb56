"""Published methods by their papers' updates, with PyTorch alone: what one client does, and what the server does.

Every client takes gradient steps on all its samples, so that the order of samples does not matter.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt.models import with_weights

Objective = Callable[[Tensor, Tensor], Tensor]  # losses and labels of a client's samples → one number


def tilted(values: Tensor, tilt: float, weights: Tensor | None = None) -> Tensor:
    """1/t · log of the mean of exp(t · values); t = 0 is the mean."""
    weights = torch.ones_like(values) if weights is None else weights
    share = weights / weights.sum()
    return (share * values).sum() if tilt == 0 else (share * (tilt * values).exp()).sum().log() / tilt


def two_levels(tau: float, lam: float) -> Objective:
    """FedTilt's R: tilt lam over the samples of a class, tau over the classes, which count by their sizes."""

    def objective(losses: Tensor, labels: Tensor) -> Tensor:
        classes, sizes = labels.unique(return_counts=True)
        return tilted(torch.stack([tilted(losses[labels == k], lam) for k in classes]), tau, sizes.double())

    return objective


@dataclass
class PlainMethod:
    """FedAvg; every other method changes one of its steps."""

    federation: ft.Federation
    net: nn.Module
    start: Tensor
    lr: float
    steps: int
    objective: Objective = lambda losses, labels: losses.mean()
    prox: float = 0.0
    shared: slice = field(default_factory=lambda: slice(None))  # what travels; the rest stays on its client
    vectors: dict[object, Tensor] = field(default_factory=dict)  # what the server and clients keep
    personal: dict[int, Tensor] = field(default_factory=dict)

    def loss(self, theta: Tensor, n: int, number: int) -> Tensor:
        """The objective of a client's samples."""
        return self._loss_of(with_weights(self.net, theta, {}), n, number)

    def gradient(self, theta: Tensor, n: int, number: int) -> Tensor:
        net = with_weights(self.net, theta, {})
        grads = torch.autograd.grad(self._loss_of(net, n, number), list(net.parameters()))
        return torch.cat([g.flatten() for g in grads])

    def _loss_of(self, net: nn.Module, n: int, number: int) -> Tensor:
        x, y = self.federation.train(n, seed=0, round=number)
        return self.objective(F.cross_entropy(net(x), y, reduction="none").double(), y)

    def descend(
        self, theta: Tensor, n: int, number: int, *, prox: float = 0.0, anchor: Tensor | None = None,
        drift: Tensor | float = 0.0,
    ) -> Tensor:  # fmt: skip
        for _ in range(self.steps):
            pull = 0.0 if anchor is None else prox * (theta - anchor)
            theta = theta - self.lr * (self.gradient(theta, n, number) + pull + drift)
        return theta

    def client(self, w: Tensor, n: int, number: int) -> Tensor:
        """A client's round: its shared model."""
        return self.descend(w, n, number, prox=self.prox, anchor=w)

    def server(self, w: Tensor, models: dict[int, Tensor], number: int) -> Tensor:
        """The aggregated model."""
        return torch.stack([*models.values()]).mean(0)

    def full(self, w: Tensor, n: int) -> Tensor:
        """The model of a client: the shared parameters with its own."""
        theta = self.vectors.get(("local", n), self.start).clone()
        theta[self.shared] = w
        return theta


@dataclass
class Personal(PlainMethod):
    mu: float = 0.0
    personal_start: str = "last"

    def client(self, w: Tensor, n: int, number: int) -> Tensor:
        first = self.start if self.personal_start == "initial" else w
        v = w if self.personal_start == "received" else self.personal.get(n, first)
        self.personal[n] = self.descend(v, n, number, prox=self.mu, anchor=w)
        return super().client(w, n, number)


@dataclass
class TiltedServer(Personal):
    q: float = 0.0

    def server(self, w: Tensor, models: dict[int, Tensor], number: int) -> Tensor:
        """Argmin of 1/q · log of the mean of exp(q · ‖w − w_n‖²), by LBFGS."""
        points = torch.stack([*models.values()]).double()
        x = points.mean(0).clone().requires_grad_()
        solver = torch.optim.LBFGS([x], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            solver.zero_grad()
            value = tilted((points - x).square().sum(1), self.q)
            value.backward()
            return value

        solver.step(closure)
        return x.detach().float()


@dataclass
class Scaffold(PlainMethod):
    def client(self, w: Tensor, n: int, number: int) -> Tensor:
        zero = torch.zeros_like(w)
        c, own = self.vectors.get("c", zero), self.vectors.get(n, zero)
        theta = self.descend(w, n, number, drift=c - own)
        self.vectors[n] = own - c + (w - theta) / (self.steps * self.lr)
        self.vectors["change"] = self.vectors.get("change", zero) + self.vectors[n] - own
        return theta

    def server(self, w: Tensor, models: dict[int, Tensor], number: int) -> Tensor:
        self.vectors["c"] = self.vectors.get("c", torch.zeros_like(w)) + self.vectors.pop("change") / len(
            self.federation.client_names
        )
        return super().server(w, models, number)


@dataclass
class FedDyn(PlainMethod):
    def client(self, w: Tensor, n: int, number: int) -> Tensor:
        own = self.vectors.get(n, torch.zeros_like(w))
        theta = self.descend(w, n, number, prox=self.prox, anchor=w, drift=-own)
        self.vectors[n] = own - self.prox * (theta - w)
        return theta

    def server(self, w: Tensor, models: dict[int, Tensor], number: int) -> Tensor:
        moved = sum(model - w for model in models.values()) / len(self.federation.client_names)
        self.vectors["h"] = self.vectors.get("h", torch.zeros_like(w)) - self.prox * moved
        return super().server(w, models, number) - self.vectors["h"] / self.prox


@dataclass
class ByLoss(PlainMethod):
    """Weights of clients from their losses at the received model."""

    weights: Callable[[list[int], Tensor], Tensor] = lambda clients, losses: torch.softmax(2.0 * losses, 0)

    def server(self, w: Tensor, models: dict[int, Tensor], number: int) -> Tensor:
        share = self.weights(list(models), torch.stack([self.loss(w, n, number) for n in models]).detach())
        return ((share / share.sum())[:, None] * torch.stack([*models.values()])).sum(0).float()


def afl_weights(clients: int, rate: float) -> Callable[[list[int], Tensor], Tensor]:
    """AFL's weights, while none of them leaves the simplex."""
    weights = torch.full((clients,), 1 / clients, dtype=torch.float64)

    def step(selected: list[int], losses: Tensor) -> Tensor:
        weights[selected] += rate * clients / len(selected) * (losses - losses.mean())
        assert weights.min() > 0
        return weights[selected].clone()

    return step


@dataclass
class QFfl(PlainMethod):
    q: float = 1.0

    def server(self, w: Tensor, models: dict[int, Tensor], number: int) -> Tensor:
        losses = [self.loss(w, n, number).detach() for n in models]
        grads = [(w - model) / self.lr for model in models.values()]
        steps = [loss**self.q * g for loss, g in zip(losses, grads, strict=True)]
        lengths = [
            self.q * loss ** (self.q - 1) * g.square().sum() + loss**self.q / self.lr
            for loss, g in zip(losses, grads, strict=True)
        ]
        return (w - sum(steps) / sum(lengths)).float()


@dataclass
class FedMgda(PlainMethod):
    """Two clients of unit updates: λ minimises ‖λ u + (1 − λ) v‖², which is 1/2 by symmetry."""

    def server(self, w: Tensor, models: dict[int, Tensor], number: int) -> Tensor:
        assert len(models) == 2
        return w + sum((model - w) / (model - w).norm() for model in models.values()) / 2


@dataclass
class FedPer(PlainMethod):
    head_steps: int = 0  # FedRep's, on the head alone; then only the body trains

    def client(self, w: Tensor, n: int, number: int) -> Tensor:
        theta, is_shared = self.full(w, n), torch.zeros_like(self.start, dtype=torch.bool)
        is_shared[self.shared] = True
        for step in range(self.head_steps + self.steps):
            g = self.gradient(theta, n, number)
            if self.head_steps:
                g = g.where(is_shared if step >= self.head_steps else ~is_shared, 0.0)
            theta = theta - self.lr * g
        self.vectors["local", n] = theta
        return theta[self.shared]


@dataclass
class PFedMe(PlainMethod):
    mu: float = 2.0
    inner: int = 2

    def client(self, w: Tensor, n: int, number: int) -> Tensor:
        theta, own = w, w
        for _ in range(self.steps):
            for _ in range(self.inner):
                theta = theta - self.lr * (self.gradient(theta, n, number) + self.mu * (theta - own))
            own = own - self.lr * self.mu * (own - theta)
        self.personal[n] = theta
        return own


def prop_fair(bound: float) -> Objective:
    return lambda losses, labels: -torch.log(bound - losses.mean())


def server_step(kind: str, lr: float, beta: float) -> Callable[[Tensor, Tensor], Tensor]:
    """FedOpt's step from the received towards the aggregated model (Reddi et al., Algorithm 2)."""
    state: dict[str, Tensor] = {}

    def step(w: Tensor, aggregated: Tensor) -> Tensor:
        delta = aggregated - w
        if kind == "none":
            return aggregated
        m = beta * state.get("m", torch.zeros_like(w)) + (1 if kind == "sgd" else 1 - beta) * delta
        state["m"] = m
        if kind == "sgd":
            return w + lr * m
        v = state.get("v", torch.full_like(w, 1e-6))
        square = delta**2
        if kind == "adagrad":
            v = v + square
        elif kind == "adam":
            v = 0.99 * v + 0.01 * square
        else:
            v = v - 0.01 * square * torch.sign(v - square)
        state["v"] = v
        return w + lr * m / (v.sqrt() + 1e-3)

    return step


def train(
    method: PlainMethod, rounds: Sequence[tuple[int, list[int]]], step: Callable[[Tensor, Tensor], Tensor], *,
    client_momentum: float = 0.0, decay: float = 1.0,
) -> Tensor:  # fmt: skip
    """The shared parameters after these rounds."""
    w, lr, momenta = method.start[method.shared], method.lr, dict[int, Tensor]()
    for number, selected in rounds:
        method.lr = lr * decay ** (number - 1)
        models = {}
        for n in selected:
            update = method.client(w, n, number) - w
            if client_momentum:
                update = client_momentum * momenta.get(n, 0.0) + (1 - client_momentum) * update
                momenta[n] = update
            models[n] = w + update
        w = step(w, method.server(w, models, number))
        assert math.isfinite(float(w.sum()))
    return w
