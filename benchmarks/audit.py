"""How well the audit finds planted wrong labels, beside cleanlab and plain loss rankings.

    python -m benchmarks.audit --data mnist --seed 0 1 2 --jobs 16  # one data set; continues where it stopped
    python -m benchmarks.page --record bench-results/audit-*.json

Labels are flipped once, before the training. The audit ranks the samples of a federation, in which nothing is pooled.
cleanlab ranks the pooled samples by cross-validated probabilities of the same network; it trains as many epochs as give
the highest held-out accuracy on the labels as they are. Loss rankings use the last shared model of FedAvg and the last
personal models of Ditto. Every ranking is about the same samples: those of clients that took part.
"""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import fedtilt as ft
from benchmarks.cases import Case, make_case_parser, run_cases
from benchmarks.options import require_package, result_file
from fedtilt.errors import InputWarning
from fedtilt.models import logits

FOLDS = 5
JUDGE = "fedtilt"
METHODS = (ft.fedtilt(tau=0.0, lam=-2.0, name=JUDGE), ft.fedavg(), ft.ditto(0.01))
NOISES: dict[str, dict[str, Any]] = {
    "symmetric 20 %": {"outlier_rate": 0.2, "outlier_flip_to": "any"},
    "symmetric 40 %": {"outlier_rate": 0.4, "outlier_flip_to": "any"},
    "pairwise 20 %": {"outlier_rate": 0.2, "outlier_flip_to": "nearest"},
}


@dataclass(frozen=True)
class Setting:
    """A federation and its training; `samples` are the most of a client."""

    clients: int
    samples: int
    participation: float
    rounds: int
    epochs: int
    lr: float
    pooled_epochs: int  # the most that cleanlab's network trains
    partition: str = "classes"

    def federation(self, data: ft.data.Dataset, seed: int, **outliers: Any) -> ft.Federation:
        return ft.Federation.build(
            data, clients=self.clients, partition=self.partition, max_train=self.samples, outliers="flips",
            outlier_redraw="once", seed=seed, **outliers,
        )  # fmt: skip

    def run(self, methods: tuple[ft.Method, ...], federation: ft.Federation, seed: int, **train: Any) -> ft.Result:
        return ft.run(
            methods, federation, ft.models.mlp, rounds=self.rounds, participation=self.participation,
            epochs=self.epochs, lr=self.lr, seed=seed, eval_every=self.rounds, audit=True, workers=0, **train,
        )  # fmt: skip


SETTINGS = {
    "digits": Setting(20, 70, 0.25, 40, 5, 0.05, 40),
    "mnist": Setting(50, 100, 0.2, 30, 5, 0.02, 10),
    "fashion-mnist": Setting(50, 100, 0.2, 30, 5, 0.02, 10),
}


@dataclass(frozen=True)
class AuditedSamples:
    """The training samples of the clients that took part, in the order of the audit."""

    x: Tensor
    y: Tensor  # as they are trained on
    is_flipped: np.ndarray

    @classmethod
    def of(cls, federation: ft.Federation, clients: list[int]) -> "AuditedSamples":
        pairs = [federation.train(client, seed=0, round=1) for client in clients]
        flipped = [federation.outlier_mask(client) for client in clients]
        return cls(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), torch.cat(flipped).numpy())


load = lru_cache(ft.data.load)


def measure(case: Case) -> Case:
    """All rankings of one federation."""
    seed, setting = case["seed"], Setting(**vars(SETTINGS[case["data"]]) | {"partition": case["partition"]})
    federation = setting.federation(load(case["data"]), seed, **NOISES[case["noise"]])
    result = setting.run(METHODS, federation, seed)
    audit = result.audit(JUDGE)
    clients = audit.client.unique().tolist()
    samples = AuditedSamples.of(federation, clients)
    position = torch.empty(len(audit), dtype=torch.int64)
    position[audit.worst_first] = torch.arange(len(audit))
    probabilities, accuracy = cross_validated(samples, federation.classes, setting, seed)
    quality, issues = cleanlab_scores(samples.y.numpy(), probabilities)
    suspicion = {
        "audit": -position.numpy(),
        "cleanlab": -quality,
        "loss, FedAvg": losses(federation, clients, lambda _: result["fedavg"].shared),
        "loss, Ditto": losses(federation, clients, result["ditto"].model),
    }
    return case | {
        "samples": len(audit),
        "flips": int(samples.is_flipped.sum()),
        "cross_validated_accuracy": accuracy,
        "rankings": {name: ranking(samples.is_flipped, values) for name, values in suspicion.items()},
        "found": {
            "audit": found(samples.is_flipped, audit.score.numpy() >= 0.5),
            "cleanlab": found(samples.is_flipped, issues),
        },
    }


def ranking(is_flipped: np.ndarray, suspicion: np.ndarray) -> dict[str, float]:
    """AUROC, and precision at the number of flips."""
    worst = np.argsort(-suspicion, kind="stable")[: int(is_flipped.sum())]
    return {"auroc": float(roc_auc_score(is_flipped, suspicion)), "precision": float(is_flipped[worst].mean())}


def found(is_flipped: np.ndarray, named: np.ndarray) -> dict[str, float]:
    """How many samples are named, their precision and their recall."""
    hits = int((is_flipped & named).sum())
    return {
        "named": int(named.sum()),
        "precision": hits / max(1, int(named.sum())),
        "recall": hits / int(is_flipped.sum()),
    }


def losses(federation: ft.Federation, clients: list[int], model_of: Any) -> np.ndarray:
    """The loss of every sample under the model of its client."""
    values = []
    for client in clients:
        x, y = federation.train(client, seed=0, round=1)
        with torch.no_grad():
            values.append(nn.functional.cross_entropy(logits(model_of(client).eval(), x), y, reduction="none"))
    return torch.cat(values).numpy()


def cross_validated(samples: AuditedSamples, classes: int, setting: Setting, seed: int) -> tuple[np.ndarray, float]:
    """Probabilities of the pooled samples by networks that did not see them, and the accuracy on their labels.

    Every fold is a client of a federation without communication: it trains on all other folds.
    """
    fold = torch.randperm(len(samples.y), generator=torch.Generator().manual_seed(seed)) % FOLDS
    parts = [tuple((samples.x[rows], samples.y[rows]) for rows in (fold != k, fold == k)) for k in range(FOLDS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # the folds share their samples
        federation = ft.Federation.from_clients(parts, class_names=[str(k) for k in range(classes)])
    best, probabilities = -1.0, np.zeros((len(samples.y), classes))
    for r in ft.simulate(
        [ft.methods.local()], federation, ft.models.mlp, rounds=setting.pooled_epochs, participation=1.0, epochs=1,
        lr=setting.lr, seed=seed, eval_every=1, workers=0,
    ):  # fmt: skip
        accuracy = r.metrics("local").accuracy
        if accuracy > best:
            best = accuracy
            for k in range(FOLDS):
                with torch.no_grad():
                    outputs = logits(r.model("local", k).eval(), samples.x[fold == k])
                probabilities[(fold == k).numpy()] = outputs.double().softmax(1).numpy()
    return probabilities, best


def cleanlab_scores(labels: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cleanlab's quality of every label (low is bad), and which labels `find_label_issues` names."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    return get_label_quality_scores(labels, probabilities), find_label_issues(labels, probabilities, n_jobs=1)


def main() -> None:
    parser = make_case_parser(__doc__)
    parser.add_argument("--data", choices=SETTINGS, default="digits")
    parser.add_argument("--partition", nargs="+", choices=["classes", "dirichlet", "iid"], default=["classes"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    options = parser.parse_args()
    require_package("cleanlab", 'pip install -e ".[bench]"')
    name = "digits" if options.quick else options.data
    cases = [
        {"data": name, "partition": partition, "noise": noise, "seed": seed}
        for partition in options.partition
        for noise in NOISES
        for seed in options.seed
    ][: 1 if options.quick else None]
    header = {"setting": vars(SETTINGS[name])}
    with result_file(options, f"audit-{name}") as path:
        for case in run_cases(f"audit-{name}", cases, measure, header, options.jobs, path):
            shown = ", ".join(f"{k} {v['auroc']:.4f} / {v['precision']:.3f}" for k, v in case["rankings"].items())
            print(f"{name}, {case['partition']}, {case['noise']}, seed {case['seed']}: {shown}", flush=True)


if __name__ == "__main__":
    main()
