"""Learned tilts against a grid: does a client that moves its own tilts reach the grid's Pareto front?

    python -m benchmarks.learned_tilts [--jobs 16]        # an hour per seed on two cores; goes on where it stopped
    python -m benchmarks.learned_tilts --max-train 100    # ten minutes per seed, with fewer samples per client

The cells are those of the reproduction: MNIST and Fashion-MNIST, each clean and with three kinds of outliers, in the
paper's setting, with 20 % of the training data for validation. R is differentiable in its tilts: with the tilt weights
p of the samples of a class k,

    d R_k / d lam = (Σ p · l − R_k) / lam,

and the same one level up for tau. A step of SGD moves v by −lr · grad R(v; tau, lam), so the validation loss after the
step has a derivative by the tilts. Each client takes it once per epoch, and moves its own tau and lam by Adam. The rest
is FedTilt: the shared and the personal model train with the tilts of the client, on the batches of `ft.run`. The grid
is trained by `ft.run` on the same federations.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

import fedtilt as ft
from benchmarks.cases import Case, make_case_parser, run_cases
from benchmarks.options import result_file
from fedtilt.evaluation.metrics import Metrics, measure
from fedtilt.models import parameters_to_vector, vector_to_parameters
from fedtilt.seeds import choose, key
from fedtilt.training import BACKENDS, Batches, LocalJob, choose_backend, make_batches
from fedtilt.tuning.decision import pareto_front
from fedtilt.tuning.objectives import CLASSIFICATION, OBJECTIVES

DATA, OUTLIERS = ("mnist", "fashion-mnist"), ("none", "corruptions", "gaussian", "flips")
CLIENTS = {"digits": 10}  # of --quick; the others have the paper's 100
GRID = {f"tau {tau:g}, lam {lam:g}": (tau, lam) for tau in (0.0, 1.0, 10.0) for lam in (-2.0, 0.0, 1.0)}
LEARNED = "learned"
METRICS = ("accuracy", "client_fairness", "class_fairness")
PARTICIPATION, EPOCHS, BATCH_SIZE, LR, MU = 0.1, 10, 10, 0.01, 0.01  # the paper's
BOUNDS = (-5.0, 50.0)  # of a learned tilt
TILT_RATE = 0.2  # of Adam
_SMALL = 1e-3  # a tilt closer to 0 is moved away from it, since the formula divides by it


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
    """FedTilt with tilts that every client learns on its validation data.

    Args:
        federation: the clients
        model: builds the model
        seed: of the run, with the meaning that it has for `ft.run`
        start: tau and lam in the first round
        rate: of Adam; 0: all clients keep the tilts of the start
    """

    def __init__(
        self, federation: ft.Federation, model: Any, seed: int, start: tuple[float, float] = (0.0, 0.0),
        rate: float = TILT_RATE,
    ) -> None:  # fmt: skip
        self._federation, self._seed = federation, seed
        self._net = ft.models.build(model, federation.input_shape, federation.classes, key(seed, "init"))
        self.shared = parameters_to_vector(self._net).detach()
        self.personal: dict[int, Tensor] = {}
        self.tilts = {n: torch.tensor(start).requires_grad_() for n in range(federation.clients)}
        self._optimizers = {n: torch.optim.Adam([tilts], lr=rate) for n, tilts in self.tilts.items()}
        self._train = BACKENDS[choose_backend(self._net, [self._job(0, self.shared, 0.0)], "cpu").name]

    def round(self, number: int) -> None:
        """One round of the selected clients."""
        count = max(1, round(PARTICIPATION * self._federation.clients))
        selected = choose(key(self._seed, "selection", round=number), self._federation.clients, count)
        trained = [self._train_client(client, number) for client in selected]
        self.shared = torch.stack(trained).mean(0)

    def _train_client(self, client: int, number: int) -> Tensor:
        """Train the personal model of a client; return its shared model."""
        batches = make_batches(
            *self._federation.train(client, seed=self._seed, round=number), seed=self._seed, round=number,
            client=client, epochs=EPOCHS, batch_size=BATCH_SIZE,
        )  # fmt: skip
        w, v = self.shared, self.personal.get(client, self.shared)
        for epoch in range(EPOCHS):
            one_epoch = dataclasses.replace(batches, order=batches.order[epoch : epoch + 1])
            jobs = [self._job(client, w, 0.0), self._job(client, v, MU)]
            w, v = (trained.parameters for trained in self._train(self._net, jobs, [one_epoch] * 2))
            self._learn(client, v, one_epoch)
        self.personal[client] = v
        return w

    def _job(self, client: int, start: Tensor, prox: float) -> LocalJob:
        tau, lam = self.tilts[client].tolist()
        return LocalJob(start=start, anchor=self.shared, prox=prox, tau=tau, lam=lam, lr=LR)

    def _learn(self, client: int, personal: Tensor, batches: Batches) -> None:
        """Move the tilts of a client by the gradient of its validation loss after one step on the first batch."""
        tilts, (x, y) = self.tilts[client], next(batches.all())
        theta = personal.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(tilted_risk(self._losses(theta, x, y), y, *tilts), theta, create_graph=True)
        stepped = theta.detach() - LR * (gradient + MU * (theta.detach() - self.shared))
        self._optimizers[client].zero_grad()
        (tilts.grad,) = torch.autograd.grad(self._losses(stepped, *self._federation.validation(client)).mean(), tilts)
        if tilts.grad.isfinite().all():
            self._optimizers[client].step()
            tilts.data.clamp_(*BOUNDS)

    def _losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self._logits(theta, x), y, reduction="none")

    def _logits(self, theta: Tensor, x: Tensor) -> Tensor:
        return functional_call(self._net, vector_to_parameters(self._net, theta), (x,))

    def measure(self) -> Metrics:
        """The personal models on test data; a client that never took part has the shared model."""
        clients, classes = self._federation.clients, self._federation.classes
        correct, total = torch.zeros(clients, classes, dtype=torch.long), self._federation.class_counts("test")
        for client in range(clients):
            x, y = self._federation.test(client)
            with torch.no_grad():
                right = self._logits(self.personal.get(client, self.shared), x).argmax(1) == y
            correct[client] = torch.bincount(y[right], minlength=classes)
        return measure(correct, total)


@functools.cache
def load(name: str) -> ft.data.Dataset:
    """A data set, once per process."""
    return ft.data.load(name)


def train(case: Case) -> Case:
    """One setting of the grid, or the learned one, on one cell and seed."""
    federation = ft.Federation.build(
        load(case["data"]), clients=CLIENTS.get(case["data"], 100), classes_per_client=2, max_train=case["max_train"],
        validation=0.2, outliers=case["outliers"], seed=case["seed"],
    )  # fmt: skip
    if case["setting"] == LEARNED:
        learned = LearnedTilts(federation, ft.models.mlp, case["seed"])
        for number in range(1, case["rounds"] + 1):
            learned.round(number)
        tau, lam = torch.stack([learned.tilts[client].detach() for client in learned.personal]).mean(0).tolist()
        return case | values(learned.measure()) | {"tau": tau, "lam": lam}  # means over the clients that took part
    tau, lam = GRID[case["setting"]]
    result = ft.run(
        [ft.fedtilt(tau, lam, mu=MU)], federation, ft.models.mlp, rounds=case["rounds"], participation=PARTICIPATION,
        epochs=EPOCHS, batch_size=BATCH_SIZE, lr=LR, seed=case["seed"], eval_every=case["rounds"], device="cpu",
        workers=0,
    )  # fmt: skip
    return case | values(result["fedtilt"].metrics)


def values(metrics: Metrics) -> dict[str, float]:
    """The three objectives."""
    return dict(zip(METRICS, (metrics.accuracy, metrics.client_fairness, metrics.client_data_fairness[0]), strict=True))


def complete_seeds(cases: Sequence[Case]) -> list[int]:
    """The seeds on which every setting of a cell has been trained."""
    found: dict[int, set[str]] = {}
    for case in cases:
        found.setdefault(case["seed"], set()).add(case["setting"])
    return sorted(seed for seed, settings in found.items() if settings >= {LEARNED, *GRID})


class Cell(NamedTuple):
    """The settings of one data set and kind of outliers, means over the seeds on which all of them were trained."""

    seeds: list[int]
    points: dict[str, dict[str, float]]  # setting → objective → value
    front: list[str]  # the settings on the Pareto front, the most accurate first
    tau: float  # of the learned tilts, mean over clients
    lam: float

    @classmethod
    def of(cls, data: str, outliers: str, cases: Sequence[Case]) -> "Cell | None":
        """The cell of these cases; None if no seed is complete."""
        of_cell = [case for case in cases if (case["data"], case["outliers"]) == (data, outliers)]
        seeds = complete_seeds(of_cell)
        if not seeds:
            return None
        rows = {
            name: [case for case in of_cell if case["setting"] == name and case["seed"] in seeds]
            for name in (LEARNED, *GRID)
        }
        points = {name: {metric: fmean(case[metric] for case in rows[name]) for metric in METRICS} for name in rows}
        objectives = [OBJECTIVES[CLASSIFICATION][name] for name in METRICS]
        tau, lam = (fmean(case[tilt] for case in rows[LEARNED]) for tilt in ("tau", "lam"))
        return cls(seeds, points, pareto_front(points, objectives, objectives[0]), tau, lam)

    @property
    def best(self) -> str:
        """The most accurate setting of the grid."""
        return max(GRID, key=lambda name: self.points[name]["accuracy"])

    @property
    def dominators(self) -> list[str]:
        """The settings of the grid that are at least as good as the learned tilts in every objective."""
        learned = self.points[LEARNED]
        objectives = [OBJECTIVES[CLASSIFICATION][name] for name in METRICS]
        return [
            name for name in GRID if all(o.better(self.points[name][o.name], learned[o.name]) >= 0 for o in objectives)
        ]


def main() -> None:
    parser = make_case_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--max-train", type=int, help="samples per client, with those for validation (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    data_sets, kinds, seeds, rounds = DATA, OUTLIERS, options.seeds, options.rounds
    if options.quick:
        data_sets, kinds, seeds, rounds = ("digits",), OUTLIERS[:1], 1, 1
    header = {"rounds": rounds, "max_train": options.max_train}
    cases = [
        header | {"data": data, "outliers": outliers, "seed": seed, "setting": setting}
        for seed in range(seeds) for data in data_sets for outliers in kinds for setting in (LEARNED, *GRID)
    ]  # fmt: skip
    with result_file(options, "learned-tilts") as path:
        for case in run_cases("learned-tilts", cases, train, header, 1 if options.quick else options.jobs, path):
            what = ", ".join(str(case[name]) for name in ("data", "outliers", "setting"))
            print(f"{what}, seed {case['seed']}: accuracy {case['accuracy']:.2f}", flush=True)
        measured = json.loads(path.read_text())["cases"]
    for data in data_sets:
        for outliers in kinds:
            if cell := Cell.of(data, outliers, measured):
                print(f"{data}, {outliers}, seeds {cell.seeds}: learned tau {cell.tau:.2f}, lam {cell.lam:.2f} (means)")
                for name in dict.fromkeys([LEARNED, cell.best, *cell.front]):
                    text = ", ".join(f"{metric} {cell.points[name][metric]:.2f}" for metric in METRICS)
                    print(f"  {name}: {text}: {'on the Pareto front' if name in cell.front else 'dominated'}")


if __name__ == "__main__":
    main()
