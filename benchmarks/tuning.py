"""What `ft.tune` recommends, on test data, and what a search costs.

    python -m benchmarks.tuning                  # recommendations, then the cost: some ten minutes on two cores
    python -m benchmarks.tuning --only cost --device cuda

Recommendations: on every seed, a search on validation data starts from a default and recommends a setting; both are
compared on test data. The mean gain over the seeds must not be below minus one standard error. The defaults are plain
ones (no tilts) and tuned ones, for which "keep yours" is the right answer.

Cost: the seconds of a search over 64 settings with successive halving, over those of one run to the end.
"""

import argparse
import functools
import math
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any, NamedTuple

import fedtilt as ft
from benchmarks.measure import time_call, write_result

TILTS = {"tau": [0, 1, 10], "lam": [-2, -0.5, 0, 1]}
RATES = {"lam": ft.Range(-3, 1), "lr": ft.Range(0.01, 0.3), "mu": ft.Range(0.01, 1)}


class Case(NamedTuple):
    """A default, and what is varied to improve it."""

    data: str
    outliers: str
    default: ft.Method
    over: dict[str, Any]
    by: str
    trials: int = 64


CASES = (
    Case("digits", "flips", ft.fedtilt(tau=0, lam=0), TILTS, "accuracy"),
    Case("digits", "flips", ft.fedtilt(tau=0, lam=-2), TILTS, "accuracy"),
    Case("digits", "none", ft.fedtilt(tau=0, lam=0), RATES, "worst", 16),
    Case("table", "flips", ft.fedtilt(tau=0, lam=0), TILTS, "accuracy"),
    Case("table", "none", ft.fedtilt(tau=0, lam=0), TILTS, "worst"),
    Case("mnist", "flips", ft.fedtilt(tau=0, lam=0), TILTS, "accuracy"),
    Case("mnist", "none", ft.fedtilt(tau=0, lam=0), TILTS, "client_fairness"),
)


@functools.cache
def load(name: str) -> ft.data.Dataset:
    """A data set of the benchmark; "table" is scikit-learn's breast cancer, with eight clients of similar patients."""
    if name != "table":
        return ft.data.load(name)
    from sklearn.datasets import load_breast_cancer

    rows = load_breast_cancer(as_frame=True).frame
    rows["clinic"] = rows["mean radius"].rank(pct=True).mul(7.999).astype(int).map("clinic {}".format)
    return ft.data.table(rows, target="target", client="clinic", test_share=0.3)


def federation(case: Case, seed: int) -> ft.Federation:
    """The clients of one seed, with validation data."""
    data, settings = load(case.data), {"outliers": case.outliers, "validation": 0.2, "seed": seed}
    if case.data == "table":
        return ft.Federation.build(data, **settings)
    return ft.Federation.build(data, clients=20, classes_per_client=2, max_train=100, **settings)


def recommend(case: Case, seed: int, rounds: int) -> dict[str, Any]:
    """The recommendation on one seed, and the default and it on test data."""
    train = {"rounds": rounds, "participation": 0.25, "epochs": 5, "lr": 0.05, "seed": seed}
    model = functools.partial(ft.models.mlp, hidden=(64,))
    tuning = ft.tune(
        [case.default], federation(case, seed), model, over=case.over, by=case.by, trials=case.trials, **train
    )
    yours, chosen = (tuning.test[name][case.by][0] for name in (tuning.method, tuning.chosen))
    return {
        "seed": seed, "setting": dict(tuning.setting), "kept": tuning.keep_yours, "default": yours, "test": chosen,
        "gain": tuning.by.better(chosen, yours), "saving": tuning.saving,
    }  # fmt: skip


def recommendations(seeds: int, rounds: int) -> list[dict[str, Any]]:
    """Every case on every seed; prints a line for each case."""
    found = []
    for case in CASES:
        rows = [recommend(case, seed, rounds) for seed in range(seeds)]
        gains = [row["gain"] for row in rows]
        error = stdev(gains) / math.sqrt(seeds) if seeds > 1 else math.inf
        holds = fmean(gains) >= -error
        kept = sum(row["kept"] for row in rows)
        default = f"tau {case.default.tau:g}, lam {case.default.lam:g}"
        print(
            f"{case.data}, {case.outliers}, by {case.by}, from {default}: gain on test data {fmean(gains):+.2f} "
            f"± {error:.2f} points, kept {kept} of {seeds}, saved {fmean(row['saving'] for row in rows):.0%} of the "
            f"rounds: {'holds' if holds else 'WORSE'}",
            flush=True,
        )
        found.append({**case._asdict(), "default": default, "over": str(case.over), "rows": rows, "holds": holds})
    return found


def cost(rounds: int, device: str, quick: bool) -> dict[str, Any]:
    """Seconds of 64 settings with halving, and of one run."""
    data = ft.data.load("digits" if quick else "mnist")
    clients = {"clients": 20, "max_train": 60} if quick else {"clients": 100}
    federated = ft.Federation.build(data, validation=0.1, **clients)
    train = {"rounds": rounds, "device": device, "eval_every": rounds}
    over = {"tau": [0, 0.5, 1, 2, 5, 10, 20, 50], "lam": [-3, -2, -1, -0.5, 0, 0.5, 1, 5]}
    method = ft.fedtilt(tau=0, lam=0)
    calls: dict[str, Callable[[], object]] = {
        "run": lambda: ft.run([method], federated, ft.models.mlp, **train),
        "search": lambda: ft.tune([method], federated, ft.models.mlp, over=over, **train),
    }
    calls["run"]()  # compiles what has to be compiled
    seconds = {name: time_call(call) for name, call in calls.items()}
    ratio = seconds["search"] / seconds["run"]
    print(f"64 settings: {seconds['search']:.1f} s; one run: {seconds['run']:.1f} s; ratio {ratio:.2f}", flush=True)
    return {"settings": 64, "rounds": rounds, "device": device, **seconds, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("recommendations", "cost"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, help="of a run (default: 16 for recommendations, 50 for the cost)")
    parser.add_argument("--device", default="cpu", help="of the cost")
    parser.add_argument("--quick", action="store_true", help="the cost on digits instead of MNIST")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    if options.only != "cost":
        result["recommendations"] = recommendations(options.seeds, options.rounds or 16)
    if options.only != "recommendations":
        result["cost"] = cost(options.rounds or 50, options.device, options.quick)
    write_result("tuning", result)


if __name__ == "__main__":
    main()
