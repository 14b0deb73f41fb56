"""What `ft.tune` recommends, on test data, and what a search costs.

    python -m benchmarks.tuning             # recommendations, ten minutes on two cores; continues where it stopped
    python -m benchmarks.tuning --cost [--device cuda]

Recommendations: on every seed, a search on validation data starts from a default and recommends a setting; both are
compared on test data. The seeds divide the same data again: ± describes them, and is no test. The defaults are plain
ones (no tilts) and tuned ones, for which "keep yours" is the right answer.

Cost: the seconds of a search over 64 settings with successive halving, over those of one run to the end, which is timed
before and after the search. The federation has the paper's 100 clients of MNIST and 50 rounds, and on a CPU at most 300
samples per client, so that it takes three minutes; the evaluation of more settings weighs more then, not less.
"""

import functools
import json
import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

import fedtilt as ft
from benchmarks.cases import Case, make_case_parser, run_cases
from benchmarks.measure import time_call
from benchmarks.options import require_cuda, result_file, save_result

TILTS = {"tau": [0, 1, 10], "lam": [-2, -0.5, 0, 1]}
RATES = {"lam": ft.Range(-3, 1), "lr": ft.Range(0.01, 0.3), "mu": ft.Range(0.01, 1)}


class Start(NamedTuple):
    """A default, and what is varied to improve it."""

    data: str
    outliers: str
    default: ft.Method
    over: dict[str, Any]
    by: str
    trials: int = 64

    @property
    def name(self) -> str:
        default = f"tau {self.default.objective.tau:g}, lam {self.default.objective.lam:g}"
        return f"{self.data}, {self.outliers}, by {self.by}, from {default}"


STARTS = (
    Start("digits", "flips", ft.fedtilt(tau=0, lam=0), TILTS, "accuracy"),
    Start("digits", "flips", ft.fedtilt(tau=0, lam=-2), TILTS, "accuracy"),
    Start("digits", "none", ft.fedtilt(tau=0, lam=0), RATES, "worst", 16),
    Start("table", "flips", ft.fedtilt(tau=0, lam=0), TILTS, "accuracy"),
    Start("table", "none", ft.fedtilt(tau=0, lam=0), TILTS, "worst"),
    Start("mnist", "flips", ft.fedtilt(tau=0, lam=0), TILTS, "accuracy"),
    Start("mnist", "none", ft.fedtilt(tau=0, lam=0), TILTS, "client_fairness"),
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


def federation(start: Start, seed: int) -> ft.Federation:
    """The clients of one seed, with validation data."""
    data, settings = load(start.data), {"outliers": start.outliers, "validation": 0.2, "seed": seed}
    if start.data == "table":
        return ft.Federation.build(data, **settings)
    return ft.Federation.build(data, clients=20, classes_per_client=2, max_train=100, **settings)


def measure(case: Case) -> Case:
    """The recommendation on one seed, and the default and it on test data."""
    start, seed = next(start for start in STARTS if start.name == case["start"]), case["seed"]
    train = {"rounds": case["rounds"], "participation": 0.25, "epochs": 5, "lr": 0.05, "seed": seed, "workers": 0}
    model = functools.partial(ft.models.mlp, hidden=(64,))
    tuning = ft.tune(
        [start.default], federation(start, seed), model, over=start.over, by=start.by, trials=start.trials, **train
    )
    yours, chosen = (tuning.test[name][start.by][0] for name in (tuning.method, tuning.chosen))
    return case | {
        "setting": dict(tuning.setting), "kept": tuning.is_unchanged, "default": yours, "test": chosen,
        "gain": tuning.by.better(chosen, yours), "saving": tuning.saving,
    }  # fmt: skip


class Gain(NamedTuple):
    """What the recommendations from one default gain on test data, over the seeds."""

    mean: float  # points; positive: better than the default
    deviation: float | None  # standard deviation over the seeds; None: one seed has none
    seeds: int
    kept: int  # on this many seeds, the default was kept
    saving: float  # the share of the rounds that halving saves

    @classmethod
    def of(cls, searches: Sequence[Case]) -> "Gain":
        """The gain over the searches from one default, one per seed."""
        gains = [search["gain"] for search in searches]
        return cls(
            mean=fmean(gains),
            deviation=stdev(gains) if len(gains) > 1 else None,
            seeds=len(gains),
            kept=sum(search["kept"] for search in searches),
            saving=fmean(search["saving"] for search in searches),
        )

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" if self.deviation is None else f"{self.mean:+.2f} ± {self.deviation:.2f}"


def gains(cases: Sequence[Case]) -> dict[str, Gain]:
    """The gain from every default that was searched."""
    by_start = {start.name: [case for case in cases if case["start"] == start.name] for start in STARTS}
    return {name: Gain.of(searches) for name, searches in by_start.items() if searches}


def cost(rounds: int, device: str, quick: bool) -> dict[str, Any]:
    """Seconds of 64 settings with halving, four if it has to be quick, and of one run."""
    max_train = {"cpu": 300}.get(device)
    data, clients = (
        ("digits", {"clients": 20, "max_train": 60}) if quick else ("mnist", {"clients": 100, "max_train": max_train})
    )
    federated = ft.Federation.build(ft.data.load(data), validation=0.1, **clients)
    over = {"tau": [0, 0.5, 1, 2, 5, 10, 20, 50], "lam": [-3, -2, -1, -0.5, 0, 0.5, 1, 5]}
    over = {name: values[3:5] if quick else values for name, values in over.items()}
    method, settings = ft.fedtilt(tau=0, lam=0), math.prod(map(len, over.values()))

    def run(rounds: int) -> object:
        return ft.run([method], federated, ft.models.mlp, rounds=rounds, device=device, eval_every=rounds)

    def search(rounds: int) -> object:
        return ft.tune([method], federated, ft.models.mlp, over=over, rounds=rounds, device=device)

    for call in (run, search):  # compiles what has to be compiled: it is kept for later processes
        call(1)
    before, of_search = time_call(lambda: run(rounds)), time_call(lambda: search(rounds))
    one = (before + time_call(lambda: run(rounds))) / 2
    print(f"{settings} settings: {of_search:.1f} s; one run: {one:.1f} s; ratio {of_search / one:.2f}", flush=True)
    return {
        "settings": settings, "data": data, **clients, "rounds": rounds, "device": device, "run": one,
        "search": of_search, "ratio": of_search / one,
    }  # fmt: skip


def main() -> None:
    parser = make_case_parser(__doc__)
    parser.add_argument("--cost", action="store_true", help="the cost in place of the recommendations")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rounds", type=int, help="of a run (default: 16 for recommendations, 50 for the cost)")
    parser.add_argument("--device", default="cpu", help="of the cost")
    options = parser.parse_args()
    if options.cost:
        if options.device == "cuda":
            require_cuda("--device cuda")
        result = cost(2 if options.quick else options.rounds or 50, options.device, options.quick)
        save_result(options, f"tuning-cost-{options.device}", result, options.device)
        return
    starts, seeds, rounds = (STARTS[:1], 1, 2) if options.quick else (STARTS, options.seeds, options.rounds or 16)
    cases = [{"start": s.name, "seed": seed, "rounds": rounds} for seed in range(seeds) for s in starts]
    with result_file(options, "tuning") as path:
        for case in run_cases("tuning", cases, measure, {}, options.jobs, path):
            print(f"{case['start']}, seed {case['seed']}: gain {case['gain']:+.2f}", flush=True)
        measured = [case for case in json.loads(path.read_text())["cases"] if case["rounds"] == rounds]
    for name, gain in gains(measured).items():
        saved = f"kept {gain.kept} of {gain.seeds}, {gain.saving:.0%} fewer rounds"
        print(f"{name}: gain {gain} points on test data, {saved}")


if __name__ == "__main__":
    main()
