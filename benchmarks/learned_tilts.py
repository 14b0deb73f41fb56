"""Learned tilts against a grid: does a client that moves its own tilts reach the grid's Pareto front?

    python -m benchmarks.learned_tilts               # digits and a small MNIST; some minutes
    python -m benchmarks.learned_tilts --rounds 4 --seeds 1

R is differentiable in its tilts: with the tilt weights p of the samples of a class k,

    d R_k / d lam = (Σ p · l − R_k) / lam,

and the same one level up for tau. A step of SGD moves v by −lr · grad R(v; tau, lam), so the validation loss after the
step has a derivative by the tilts. Each client takes it once per epoch, and moves its own tau and lam by Adam. The rest
is FedTilt: shared and personal models with these tilts. The grid is trained by `ft.run` on the same federations; the
control is one setting of it in the same plain loop, which draws other batches and initial models.
"""

import argparse
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import fedtilt as ft
from benchmarks.measure import write_result
from fedtilt.evaluation.metrics import Metrics, measure
from fedtilt.runs.tuning.decision import pareto_front
from fedtilt.runs.tuning.objectives import CLASSIFICATION, OBJECTIVES
from fedtilt.seeds import choose, key

TAUS, LAMS = (0.0, 1.0, 10.0), (-2.0, -0.5, 0.0, 1.0)
BOUNDS = (-5.0, 50.0)  # of a learned tilt
TILT_RATE = 0.2  # of Adam
_SMALL = 1e-3  # a tilt closer to 0 is moved away from it, since the formula divides by it

Parameters = dict[str, Tensor]


class Setting(NamedTuple):
    """One federation."""

    data: str
    outliers: str
    clients: int = 20
    participation: float = 0.25
    epochs: int = 5
    batch_size: int = 10
    lr: float = 0.05
    mu: float = 0.01

    @property
    def control(self) -> tuple[float, float]:
        """The tau and lam of the control: good ones of the grid."""
        return (0.0, -2.0) if self.outliers == "flips" else (0.0, 0.0)


SETTINGS = tuple(Setting(data, outliers) for data in ("digits", "mnist") for outliers in ("none", "flips"))
METRICS = ("accuracy", "client_fairness", "class_fairness")


def federation(setting: Setting, seed: int) -> ft.Federation:
    """Clients with two classes, and validation data without outliers."""
    return ft.Federation.build(
        ft.data.load(setting.data), clients=setting.clients, classes_per_client=2, max_train=100, validation=0.2,
        outliers=setting.outliers, seed=seed,
    )  # fmt: skip


def tilted_risk(losses: Tensor, labels: Tensor, tau: Tensor, lam: Tensor) -> Tensor:
    """R(tau, lam) in plain tensor operations, twice differentiable in everything."""
    tau, lam = (torch.where(t.abs() < _SMALL, t + 2 * _SMALL, t) for t in (tau, lam))
    risks, sizes = [], []
    for k in labels.unique():
        of_class = losses[labels == k]
        risks.append((torch.logsumexp(lam * of_class, 0) - math.log(len(of_class))) / lam)
        sizes.append(len(of_class) / len(losses))
    return torch.logsumexp(tau * torch.stack(risks) + torch.tensor(sizes).log(), 0) / tau


class LearnedTilts:
    """FedTilt in a plain loop, with tilts that every client learns or, as a control, with fixed ones."""

    def __init__(
        self, setting: Setting, clients: ft.Federation, seed: int, fixed: tuple[float, float] | None = None
    ) -> None:
        self._setting, self._federation, self._seed, self._learns = setting, clients, seed, fixed is None
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._net = model(clients.input_shape, clients.classes)
        self._shared = {name: p.detach().clone() for name, p in self._net.named_parameters()}
        self._personal: dict[int, Parameters] = {}
        start = torch.tensor(fixed or (0.0, 0.0))  # tau, lam
        self.tilts = {n: start.clone().requires_grad_() for n in range(clients.clients)}
        self._optimizers = {n: torch.optim.Adam([tilts], lr=TILT_RATE) for n, tilts in self.tilts.items()}

    def _loss(self, parameters: Parameters, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(self._net, parameters, (x,)), y, reduction="none")

    def _step(self, theta: Parameters, anchor: Parameters | None, x: Tensor, y: Tensor, tilts: Tensor) -> Parameters:
        """A step of SGD on R and, with an anchor, the proximal term; differentiable in the tilts."""
        leaves = {name: p.detach().requires_grad_() for name, p in theta.items()}
        risk = tilted_risk(self._loss(leaves, x, y), y, tilts[0], tilts[1])
        gradients = torch.autograd.grad(risk, list(leaves.values()), create_graph=tilts.requires_grad)
        moved = {}
        for (name, p), gradient in zip(leaves.items(), gradients, strict=True):
            pull = 0.0 if anchor is None else self._setting.mu * (p.detach() - anchor[name])
            moved[name] = p.detach() - self._setting.lr * (gradient + pull)
        return moved

    def _learn(self, client: int, theta: Parameters, x: Tensor, y: Tensor) -> None:
        """Move the tilts of a client by the gradient of its validation loss after one step."""
        x_validation, y_validation = self._federation.validation(client)
        moved = self._step(theta, self._shared, x, y, self.tilts[client])
        self._optimizers[client].zero_grad()
        self._loss(moved, x_validation, y_validation).mean().backward()
        if torch.isfinite(self.tilts[client].grad).all():  # type: ignore[union-attr]
            self._optimizers[client].step()
            self.tilts[client].data.clamp_(*BOUNDS)

    def round(self, number: int) -> None:
        """One round of the selected clients."""
        count = max(1, round(self._setting.participation * self._setting.clients))
        selected = choose(key(self._seed, "selection", round=number), self._setting.clients, count)
        models = []
        for client in selected:
            x, y = self._federation.train(client, seed=self._seed, round=number)
            w, v = dict(self._shared), self._personal.get(client, dict(self._shared))
            for epoch in range(self._setting.epochs):
                order = torch.randperm(len(y), generator=torch.Generator().manual_seed(number * 1000 + epoch))
                batches = order.split(self._setting.batch_size)
                for batch in batches:
                    fixed = self.tilts[client].detach()
                    w = self._step(w, None, x[batch], y[batch], fixed)
                    v = self._step(v, self._shared, x[batch], y[batch], fixed)
                if self._learns:
                    self._learn(client, v, x[batches[0]], y[batches[0]])
            self._personal[client] = v
            models.append(w)
        self._shared = {name: torch.stack([m[name] for m in models]).mean(0) for name in self._shared}

    def measure(self) -> Metrics:
        """The personal models on test data; a client that never took part has the shared model."""
        clients, classes = self._federation.clients, self._federation.classes
        correct, total = torch.zeros(clients, classes, dtype=torch.long), self._federation.class_counts("test")
        for client in range(clients):
            x, y = self._federation.test(client)
            with torch.no_grad():
                logits = functional_call(self._net, self._personal.get(client, self._shared), (x,))
            correct[client] = torch.bincount(y[logits.argmax(1) == y], minlength=classes)
        return measure(correct, total)


model = functools.partial(ft.models.mlp, hidden=(64,))


def values(metrics: Metrics) -> dict[str, float]:
    """The three objectives."""
    return dict(zip(METRICS, (metrics.accuracy, metrics.client_fairness, metrics.client_data_fairness[0]), strict=True))


def compare(setting: Setting, seed: int, rounds: int) -> dict[str, Any]:
    """Learned tilts and the grid on one federation."""
    clients = federation(setting, seed)
    methods = [ft.fedtilt(tau, lam, mu=setting.mu, name=f"tau={tau:g} lam={lam:g}") for tau in TAUS for lam in LAMS]
    result = ft.run(
        methods, clients, model, rounds=rounds, participation=setting.participation, epochs=setting.epochs,
        batch_size=setting.batch_size, lr=setting.lr, seed=seed, eval_every=rounds,
    )  # fmt: skip
    learned, control = LearnedTilts(setting, clients, seed), LearnedTilts(setting, clients, seed, setting.control)
    for number in range(1, rounds + 1):
        learned.round(number)
        control.round(number)
    tilts = torch.stack(list(learned.tilts.values())).detach()
    return {
        "grid": {name: values(found.metrics) for name, found in result.items()},
        "learned": values(learned.measure()),
        "control": values(control.measure()),
        "tilts": {"tau": tilts[:, 0].tolist(), "lam": tilts[:, 1].tolist()},
    }


def mean(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    objectives = [OBJECTIVES[CLASSIFICATION][name] for name in METRICS]
    cases = []
    for setting in SETTINGS:
        rows = [compare(setting, seed, options.rounds) for seed in range(options.seeds)]
        points = {name: mean([row["grid"][name] for row in rows]) for name in rows[0]["grid"]}
        points |= {name: mean([row[name] for row in rows]) for name in ("learned", "control")}
        front = pareto_front(points, objectives, objectives[0])
        best = max(
            (name for name in points if name not in ("learned", "control")), key=lambda name: points[name]["accuracy"]
        )
        lam = sum(sum(row["tilts"]["lam"]) for row in rows) / (setting.clients * len(rows))
        tau = sum(sum(row["tilts"]["tau"]) for row in rows) / (setting.clients * len(rows))
        print(
            f"{setting.data}, {setting.outliers}, {options.seeds} seeds: learned tau {tau:.2f}, lam {lam:.2f} (means)"
        )
        for name in dict.fromkeys(["learned", "control", best, *front]):
            on_front = "on the Pareto front" if name in front else "dominated"
            text = ", ".join(f"{key} {points[name][key]:.2f}" for key in METRICS)
            print(f"  {name}: {text}: {on_front}", flush=True)
        cases.append({**setting._asdict(), "points": points, "front": front, "rows": rows})
    write_result("learned-tilts", {"rounds": options.rounds, "cases": cases})


if __name__ == "__main__":
    main()
