"""How well the audit ranks wrong labels of several kinds beside cleanlab, and whether its scores are probabilities.

    python -m benchmarks.audit_kinds
    python -m benchmarks.page --record bench-results/audit-kinds.json

Federations of digits, tables of three classes that their columns do not tell apart well, and two federations that
exist. Labels are wrong at random (symmetric), become the next class (pairwise), become the next class where a
combination of the inputs is large (feature), or one class has the code of the next at two clients (systematic).
cleanlab ranks by 5-fold cross-validated probabilities of a logistic regression on the pooled samples. The labels of
real-world federations count as right before errors are planted. The constants of the score were chosen with seeds below
200.
"""

import warnings
from functools import partial

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import cross_val_predict
from torch import Tensor

import fedtilt as ft
from benchmarks.audit import JUDGE, METHODS, cleanlab_scores, load
from benchmarks.cases import Case, make_case_parser, run_cases
from benchmarks.options import require_package, result_file
from benchmarks.page_audit import BINS
from fedtilt.errors import InputWarning

CLASSES = {"digits": 10, "table": 3, "exam": 2, "contraception": 2}
KINDS = ("none", "symmetric", "pairwise", "feature", "systematic")
SETTING = {"rounds": 25, "participation": 0.4, "epochs": 3, "lr": 0.05}
_RATE = 0.15  # of wrong labels, of the first two kinds
Client = tuple[Tensor, Tensor]


def tables(seed: int, clients: int = 10, rows: int = 120) -> list[Client]:
    """Clients whose columns are shifted, and whose labels are drawn from the probabilities of a linear model."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(8, 3, generator=generator)
    found = []
    for _ in range(clients):
        x = torch.randn(rows, 8, generator=generator) + 0.4 * torch.randn(8, generator=generator)
        found.append((x, torch.multinomial((1.5 * x @ weights).softmax(1), 1, generator=generator)[:, 0]))
    return found


def digits(seed: int) -> list[Client]:
    """Twelve clients with unequal classes."""
    federation = ft.Federation.build(load("digits"), clients=12, partition="dirichlet", max_train=90, seed=seed)
    return [federation.train(client, seed=0, round=1) for client in range(12)]  # type: ignore[misc]


def existing(name: str, seed: int) -> list[Client]:
    """The clients of a federation that exists."""
    federation = ft.Federation.build(ft.data.load(name), seed=seed)
    return [federation.train(client, seed=0, round=1) for client in range(federation.clients)]  # type: ignore[misc]


def clients_of(data: str, seed: int) -> list[Client]:
    """The clients of a case, by the name of its data."""
    return {"digits": digits, "table": tables}.get(data, partial(existing, data))(seed)


def with_noise(clients: list[Client], classes: int, kind: str, seed: int) -> list[Tensor]:
    """The labels of every client with errors of this kind."""
    rng, found = np.random.default_rng(seed + 7), []
    for number, (x, y) in enumerate(clients):
        drawn, to = torch.from_numpy(rng.random(len(y))), (y + 1) % classes
        wrong = torch.zeros(len(y), dtype=torch.bool)
        if kind == "symmetric":
            wrong, to = drawn < _RATE, (y + torch.from_numpy(rng.integers(1, classes, len(y)))) % classes
        elif kind == "pairwise":
            wrong = drawn < _RATE
        elif kind == "feature":
            direction = torch.from_numpy(np.random.default_rng(3).normal(size=x[0].numel())).float()
            value = x.flatten(1) @ direction
            wrong = (value > value.quantile(0.8)) & (drawn < 0.7)
        elif kind == "systematic" and number in (1, 4):
            wrong = (y == y.bincount().argmax()) & (drawn < 0.4)
        found.append(torch.where(wrong, to, y))
    return found


def measure(case: Case) -> Case:
    """The ranking of the audit and of cleanlab, and how many labels of every bin of the score are wrong."""
    seed, classes = case["seed"], CLASSES[case["data"]]
    clients = clients_of(case["data"], seed)
    labels = with_noise(clients, classes, case["kind"], seed)
    parts = [((x, y), (x[:4], y[:4])) for (x, _), y in zip(clients, labels, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # test data that is not used; a model that knows little
        federation = ft.Federation.from_clients(parts, class_names=[str(k) for k in range(classes)])
        model = ft.models.mlp if case["data"] == "digits" else ft.models.logistic
        audit = ft.run(
            METHODS[:1], federation, model, seed=seed, eval_every=SETTING["rounds"], audit=True, workers=0, **SETTING
        ).audit(JUDGE)
    took_part = audit.client.unique().tolist()
    wrong = torch.cat([labels[c] != clients[c][1] for c in took_part]).numpy()
    x = torch.cat([clients[c][0].flatten(1) for c in took_part]).numpy()
    score, named = audit.score.numpy(), audit.score.numpy() >= 0.5
    bins = np.digitize(score, BINS[1:-1])
    result = {
        "samples": len(wrong), "wrong": int(wrong.sum()), "named": int(named.sum()),
        "expected": float(score[named].sum()), "hits": int(wrong[named].sum()),
        "bins": [
            [int((bins == b).sum()), float(score[bins == b].sum()), int(wrong[bins == b].sum())]
            for b in range(len(BINS) - 1)
        ],
    }  # fmt: skip
    if wrong.any():
        y = audit.label.numpy()
        regression = LogisticRegression(max_iter=200)
        probabilities = np.zeros((len(y), classes))
        probabilities[:, np.unique(y)] = cross_val_predict(regression, x, y, cv=5, method="predict_proba")
        position = np.empty(len(y))
        position[audit.worst_first.numpy()] = np.arange(len(y))
        quality, _ = cleanlab_scores(y, probabilities)
        result["precision"] = {
            "audit": float(average_precision_score(wrong, -position)),
            "cleanlab": float(average_precision_score(wrong, -quality)),
        }
    return case | result


def main() -> None:
    parser = make_case_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    require_package("cleanlab", 'pip install -e ".[bench]"')
    cases = [
        {"data": data, "kind": kind, "seed": seed}
        for data in CLASSES for kind in KINDS for seed in range(200, 200 + options.seeds)
    ][: 1 if options.quick else None]  # fmt: skip
    with result_file(options, "audit-kinds") as path:
        for case in run_cases("audit-kinds", cases, measure, {"setting": SETTING}, options.jobs, path):
            print(f"{case['data']}, {case['kind']}, seed {case['seed']}: {case.get('precision', '')}", flush=True)


if __name__ == "__main__":
    main()
