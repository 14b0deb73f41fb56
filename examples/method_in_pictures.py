"""What lam, tau, q and mu do: five figures and their values, from runs that take half a minute.

python examples/method_in_pictures.py [FOLDER [FIGURE...]]
"""

import functools
import math
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from line_chart import line_chart
from patients import write_patients

import fedtilt as ft
from fedtilt.errors import InputWarning

SEEDS = (0, 1)
small_mlp = functools.partial(ft.models.mlp, hidden=(64, 64))


def mean(values: Sequence[float]) -> float:
    """The mean, over seeds or clients."""
    return sum(values) / len(values)


def accuracies(result: ft.Result, by: str) -> dict[str, list[float]]:
    """The accuracy on all test samples of each class or client, of every method."""
    counts = result.to_pandas().groupby([by, "method"], sort=False)[["correct", "samples"]].sum()
    table = (100 * counts["correct"] / counts["samples"]).unstack(by)
    return {name: table.loc[list(result), name].tolist() for name in table}


def weights() -> str:
    """The weight of each of five samples in the gradient of a tilted mean: the derivative by its loss."""
    lines = {}
    for tilt in (2.0, 0.0, -2.0):
        losses = torch.tensor([0.1, 0.5, 1.0, 2.0, 4.0], requires_grad=True)
        ft.tilted_mean(losses, tilt).backward()
        assert losses.grad is not None
        lines[f"tilt {tilt:g}"] = (100 * losses.grad).tolist()
    return line_chart("What a tilt does", "loss of the sample", "weight in %", ["0.1", "0.5", "1", "2", "4"], lines)


def lam() -> str:
    """Accuracy with clean and with wrong labels."""
    values = (-5, -2, -1, 0, 1, 5)
    lines = {}
    for kind, name in (("none", "clean labels"), ("flips", "30 % wrong labels")):
        over_seeds = []
        for seed in SEEDS:
            federation = ft.Federation.build(
                ft.data.load("digits"), clients=20, max_train=60, outliers=kind, seed=seed
            )  # fmt: skip
            result = ft.run(
                [ft.fedtilt(tau=0, lam=value, name=f"lam {value}") for value in values],
                federation, small_mlp, rounds=40, participation=0.25, lr=0.1, seed=seed, eval_every=40,
            )  # fmt: skip
            over_seeds.append([method.accuracy for method in result.values()])
        lines[name] = [mean(column) for column in zip(*over_seeds, strict=True)]
    return line_chart("lam < 0 ignores wrong labels", "lam", "accuracy in %", [str(v) for v in values], lines)


def tau() -> str:
    """Accuracy on a rare and on a frequent class, over three hospitals."""
    values = (0, 1, 2, 5, 10, 20)
    with tempfile.TemporaryDirectory() as folder:
        write_patients(Path(folder) / "patients.csv", rows=3000)
        data = ft.data.table(Path(folder) / "patients.csv", target="diagnosis", client="hospital", drop=["patient"])
    result = ft.run(
        [ft.fedtilt(tau=value, lam=0, mu=0.1, name=f"tau {value}") for value in values],
        ft.Federation.build(data), ft.models.logistic, rounds=20, participation=1.0, epochs=5, lr=0.05, eval_every=20,
    )  # fmt: skip
    lines = {f"{name} patients": line for name, line in accuracies(result, "class_name").items()}
    return line_chart("tau > 0 raises the worst class", "tau", "accuracy in %", [str(v) for v in values], lines)


def client(samples: int, angle: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes in the plane, beside each other in the direction of an angle."""
    y = torch.arange(samples) % 2
    direction = torch.tensor([math.cos(angle), math.sin(angle)])
    return torch.randn(samples, 2) + 2 * y[:, None] * direction, y


def q() -> str:
    """Accuracy of the shared model on nine clients that are alike, and on one that differs."""
    values = (-1, 0, 0.3, 1, 3, 10)
    torch.manual_seed(0)
    clients = {str(number): client(300, 0.0) for number in range(9)} | {"other": client(300, 1.5)}
    result = ft.run(
        [ft.fedtilt(tau=0, lam=0, q=value, mu=math.inf, name=f"q {value:g}") for value in values],
        ft.Federation.from_clients(clients), ft.models.logistic,
        rounds=20, participation=1.0, epochs=5, lr=0.05, eval_every=20,
    )  # fmt: skip
    by_client = accuracies(result, "client_name")
    other = by_client.pop("other")
    lines = {
        "nine alike clients": [mean(column) for column in zip(*by_client.values(), strict=True)],
        "the other client": other,
    }
    return line_chart("q > 0 raises the worst client", "q", "accuracy in %", [f"{v:g}" for v in values], lines)


def mu() -> str:
    """Accuracy of personal models of clients with twenty samples each, and of the shared model."""
    values = (0, 0.01, 0.1, 0.3, 1, 3, 10)
    personal, shared = [], []
    for seed in SEEDS:
        federation = ft.Federation.build(
            ft.data.load("digits"), clients=20, partition="dirichlet", alpha=0.3, max_train=20, seed=seed
        )
        result = ft.run(
            [ft.ditto(mu=value, name=f"mu {value:g}") for value in values],
            federation, small_mlp, rounds=40, participation=0.25, lr=0.05, seed=seed, eval_every=40,
        )  # fmt: skip
        personal.append([method.accuracy for method in result.values()])
        shared.append([method.summary.shared.accuracy for method in result.values()])
    lines = {
        "personal models": [mean(column) for column in zip(*personal, strict=True)],
        "shared model": [mean(column) for column in zip(*shared, strict=True)],
    }
    return line_chart("mu joins a client to the others", "mu", "accuracy in %", [f"{v:g}" for v in values], lines)


def main(folder: Path, names: Sequence[str] = ()) -> None:
    """Draw the figures with these names into the folder, or all."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in (weights, lam, tau, q, mu):
        if names and figure.__name__ not in names:
            continue
        (folder / f"{figure.__name__}.svg").write_text(figure(), "utf-8")
        print(f"wrote {folder / figure.__name__}.svg")


if __name__ == "__main__":
    warnings.simplefilter("ignore", InputWarning)  # clients with few samples are on purpose
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "method"), sys.argv[2:])
