"""Screening: how often it rejects or bounds honest sites, and what lies of a few sites cost with it.

python -m benchmarks.screening                     # needs Fashion-MNIST; bench-results/screening.json
python -m benchmarks.screening --quick             # one federation, two rounds: seconds
python -m benchmarks.page --record bench-results/screening.json   # record the result and write docs/attacks.md

The thresholds of `fedtilt.attacks.screening` were chosen on `FEDERATIONS`. `HELD_OUT` has other numbers of sites and
seeds, and mostly other data, and was measured once, afterwards.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

import fedtilt as ft
from benchmarks.cases import Case, make_case_parser, run_cases
from benchmarks.markdown import markdown_table
from benchmarks.options import result_file
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.server import ServerUpdate
from fedtilt.flower.deploy.project import write_project
from fedtilt.methods.aggregators import MultiKrum
from fedtilt.simulation import simulator
from fedtilt.spec import federation_of, load

SCREEN = 3.0  # the default of a deployment
SITES = (4, 6, 10)
ROUNDS = 40
TRAIN: dict[str, Any] = {"participation": 1.0, "epochs": 2, "batch_size": 10, "lr": 0.05, "workers": 0}
METHODS = {"fedavg": ft.fedavg, "scaffold": ft.methods.scaffold, "afl": ft.methods.afl}
DIGITS: dict[str, dict[str, Any]] = {
    "digits, iid": {"partition": "iid"},
    "digits, Dirichlet 1": {"partition": "dirichlet", "alpha": 1.0},
    "digits, Dirichlet 0.3": {"partition": "dirichlet", "alpha": 0.3},
    "digits, two classes a site": {"classes_per_client": 2},
}
FASHION: dict[str, dict[str, Any]] = {
    "Fashion-MNIST, iid": {"partition": "iid"},
    "Fashion-MNIST, Dirichlet 0.5": {"partition": "dirichlet", "alpha": 0.5},
    "Fashion-MNIST, three classes a site": {"classes_per_client": 3},
}
FEDERATIONS = ("the project of deploy new", "tumours by size", *DIGITS, "digits, 30 to 600 samples a site")
HELD_OUT = ("digits, Dirichlet 1", "digits, two classes a site", "wines by alcohol", *FASHION)
HELD_OUT_SITES = (5, 8, 12)  # none of SITES: by these, cases are told apart
HELD_OUT_SEEDS = (100, 101)
LIES = ("× 10", "1e30", "× −1", "× −2.9", "labels × 2.9", "SCAFFOLD's control × −10", "AFL's loss 1e30")
POISONED = ("digits, iid", "digits, Dirichlet 1", "digits, two classes a site")


def federation(name: str, sites: int, seed: int) -> ft.Federation:
    """One of `FEDERATIONS` or `HELD_OUT`."""
    if name == FEDERATIONS[0]:
        with tempfile.TemporaryDirectory() as folder:
            write_project(Path(folder) / "project", sites)
            return federation_of(load(Path(folder) / "project/spec.toml"), seed)
    if name in DIGITS:
        return ft.Federation.build(ft.data.load("digits"), clients=sites, seed=seed, **DIGITS[name])
    if name in FASHION:
        data = ft.data.load("fashion-mnist")
        return ft.Federation.build(data, clients=sites, seed=seed, max_train=150, **FASHION[name])
    rng = np.random.default_rng(seed)
    data = {"tumours by size": load_breast_cancer, "wines by alcohol": load_wine}.get(name, load_digits)()
    x = ((data.data - data.data.mean(0)) / data.data.std(0).clip(1e-9)).astype(np.float32)
    if " by " in name:  # by the first column, with noise
        parts = np.array_split(np.argsort(x[:, 0] + rng.normal(0, 0.7, len(x))), sites)
    else:
        sizes = np.geomspace(30, 600, sites)
        sizes = (sizes * min(1, len(x) / sizes.sum())).astype(int).clip(10)
        parts = np.split(rng.permutation(len(x)), np.cumsum(sizes))[:sites]
    return ft.Federation.from_clients([(x[rows], data.target[rows]) for rows in parts])


def lie(kind: str, update: ClientUpdate, w: torch.Tensor) -> ClientUpdate:
    """What a bad site sends in place of its update."""
    step = update.parameters - w
    match kind:
        case "SCAFFOLD's control × −10":
            control = update.sent["correction"]["control"]
            return update._replace(sent={"correction": {"control": -10 * control}})
        case "AFL's loss 1e30":
            return update._replace(declared={"loss": 1e30})
        case "1e30":
            return update._replace(parameters=torch.full_like(w, 1e30))
    factor = {"× 10": 10.0, "× −1": -1.0, "× −2.9": -2.9, "labels × 2.9": 2.9}[kind]
    return update._replace(parameters=w + factor * step)


@contextmanager
def recorded(found: list[ServerUpdate], kind: str | None, bad: Sequence[int]) -> Iterator[None]:
    """Record what the server does, and let the bad sites lie."""
    update, train = simulator.server_update, simulator.Simulator.train_clients

    def record(*arguments: Any, **keywords: Any) -> ServerUpdate:
        found.append(update(*arguments, **keywords))
        return found[-1]

    def poisoned(self: simulator.Simulator, clients: Any, number: int) -> Any:
        sent, *others = train(self, clients, number)
        for (name, updates), site in product(sent.items(), bad if kind else ()):
            assert kind is not None
            updates[site] = lie(kind, updates[site], clients[site].plans[name]["shared"].start)
        return sent, *others

    simulator.server_update, simulator.Simulator.train_clients = record, poisoned  # type: ignore[method-assign]
    try:
        yield
    finally:
        simulator.server_update, simulator.Simulator.train_clients = update, train  # type: ignore[method-assign]


def measure(rounds: int, case: Case) -> Case:
    """An honest case with the shares of site-rounds that are rejected and bounded; one with lies with accuracies."""
    fed = federation(case["federation"], case["sites"], case["seed"])
    if "lie" not in case:
        found: list[ServerUpdate] = []
        model = partial(ft.models.mlp, hidden=(32,))
        with recorded(found, None, ()):
            ft.run(
                [METHODS[case["method"]]()], fed, model, rounds=rounds, seed=case["seed"], screen=SCREEN,
                eval_every=rounds, **TRAIN,
            )  # fmt: skip
        return case | {
            "site_rounds": rounds * case["sites"],
            "rejected": sum(len(each.rejected) for each in found),
            "bounded": sum(len(each.bounded) for each in found),
        }
    bad = {4: [1], 10: [2, 7]}[case["sites"]]
    method = "scaffold" if "SCAFFOLD" in case["lie"] else "afl" if "AFL" in case["lie"] else "fedavg"
    robust = {"aggregator": MultiKrum(len(bad) / case["sites"])}
    takes_weights = method == "afl"
    rules = {"mean": ({}, 0.0), "screened": ({}, SCREEN)}
    rules |= {} if takes_weights else {"multi_krum": (robust, 0.0), "multi_krum, screened": (robust, SCREEN)}
    accuracy = {}
    for rule, (parts, screen) in rules.items():
        for kind in (None, case["lie"]):
            attack = None
            if kind == "labels × 2.9":
                attack = ft.Attack(kind="label_flip", clients=tuple(str(n) for n in bad))
            with recorded([], kind, bad):
                try:
                    result = ft.run(
                        [METHODS[method](name="m", **parts)], fed, ft.models.logistic, rounds=rounds,
                        seed=case["seed"], screen=screen, eval_every=rounds, attack=attack, **TRAIN,
                    )  # fmt: skip
                except ft.InputError:  # it diverged
                    accuracy[f"{rule}, {'lie' if kind else 'honest'}"] = None
                    continue
            good = [n for n in range(case["sites"]) if n not in bad]
            right, total = result["m"].sums[good].sum(), result["m"].total[good].sum()
            accuracy[f"{rule}, {'lie' if kind else 'honest'}"] = round(100 * float(right / total), 1)
    return case | {"accuracy": accuracy}


def false_positives(cases: Sequence[Mapping[str, Any]], sites: Sequence[int] = SITES) -> str:
    """The table of honest federations of these numbers of sites: shares of site-rounds in %."""
    honest = [case for case in cases if "lie" not in case and case["sites"] in sites]
    sites = sorted({case["sites"] for case in honest})
    heads = [f"{n} sites: rejected" for n in sites] + [f"{n} sites: bounded" for n in sites]
    rows = [["honest sites", *heads]]
    for name in dict.fromkeys(case["federation"] for case in honest):
        cells = []
        for key, n in product(("rejected", "bounded"), sites):
            of = [case for case in honest if case["federation"] == name and case["sites"] == n]
            cells.append(f"{100 * sum(c[key] for c in of) / sum(c['site_rounds'] for c in of):.1f} %")
        rows.append([name, *cells])
    return markdown_table(rows)


def poison(cases: Sequence[Mapping[str, Any]]) -> str:
    """The table of lies: accuracy of the other sites in %, and the same without the lie in brackets."""
    lies = [case for case in cases if "lie" in case]
    rules = ("mean", "screened", "multi_krum", "multi_krum, screened")
    rows = [["bad sites", "data", "lie", *rules]]
    keys = dict.fromkeys((case["sites"], case["federation"], case["lie"]) for case in lies)
    for sites, name, kind in keys:
        of = [c["accuracy"] for c in lies if (c["sites"], c["federation"], c["lie"]) == (sites, name, kind)]
        cells = []
        for rule in rules:
            pair = [[a.get(f"{rule}, {each}") for a in of] for each in ("lie", "honest")]
            texts = ["—" if f"{rule}, lie" not in of[0] else _mean(values) for values in pair]
            cells.append(f"{texts[0]} ({texts[1]})" if texts[0] != "—" else "—")
        rows.append([f"{'1 of 4' if sites == 4 else '2 of 10'}", name.removeprefix("digits, "), kind, *cells])
    return markdown_table(rows, text_columns=3)


def _mean(values: Sequence[float | None]) -> str:
    return "diverges" if None in values else f"{fmean(v for v in values if v is not None):.1f}"


def main() -> None:
    parser = make_case_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    rounds, seeds = (2, 1) if options.quick else (ROUNDS, options.seeds)
    names, sites, methods, lies = FEDERATIONS, SITES, METHODS, LIES
    if options.quick:
        names, sites, methods, lies = names[:1], SITES[:1], {"fedavg": ft.fedavg}, LIES[:1]
    cases: list[Case] = [
        {"federation": name, "sites": n, "method": method, "seed": seed}
        for name, n, method, seed in product(names, sites, methods, range(seeds))
    ]
    if not options.quick:
        cases += [
            {"federation": name, "sites": n, "method": method, "seed": seed}
            for name, n, method, seed in product(HELD_OUT, HELD_OUT_SITES, METHODS, HELD_OUT_SEEDS)
        ]
    cases += [
        {"federation": name, "sites": n, "lie": kind, "seed": seed}
        for n, name, kind, seed in product((4, 10), POISONED, lies, range(seeds))
    ]
    header = {"rounds": rounds, "screen": SCREEN, "train": TRAIN}
    with result_file(options, "screening") as path:
        jobs = 1 if options.quick else options.jobs
        for case in run_cases("screening", cases, partial(measure, rounds), header, jobs, path):
            print(case, flush=True)
        measured = json.loads(path.read_text())["cases"]
    print(false_positives(measured), false_positives(measured, HELD_OUT_SITES), poison(measured), sep="\n")


if __name__ == "__main__":
    main()
