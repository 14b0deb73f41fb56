"""The benchmarks by which other simulators compare themselves, run here: ours, and theirs where it installs.

    PYTHONPATH=src python -m benchmarks.others --out others.json                   # those for a GPU
    PYTHONPATH=src python -m benchmarks.others --device cpu --out others-cpu.json  # those for a CPU
    PYTHONPATH=src python -m benchmarks.others --case flute-mnist                  # one of them
    PYTHONPATH=src python -m benchmarks.others --quick                             # all on the CPU, in a small size

Random samples of the sizes that a benchmark has: their content does not change the cost. The first round, which
compiles, is timed by itself; a round is the mean of those that follow, with the evaluations that the benchmark asks
for. pfl (`pip install pfl==0.6.0`) and Flower are run in the same process where they can be imported, with the same
model, samples and recipe; Flower without Ray, as a loop over its client app. Figures that others publish are marked as
such, and were measured on their machines.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch

import fedtilt as ft
from benchmarks.gpu import time_synchronized
from benchmarks.options import make_result_parser, save_result
from benchmarks.others_cases import CASES, Case, quick, random_data
from benchmarks.others_peers import installed_peers, measure_peer

KINDS = {"cuda": "others", "cpu": "others-cpu"}  # of the records


def measure_ours(case: Case, precision: str) -> dict[str, Any]:
    """Seconds of the first round, and of one of those that follow."""
    federation = ft.Federation.build(random_data(case), clients=case.clients, partition="iid")
    torch.manual_seed(0)
    rounds = ft.simulate(
        [case.method()], federation, case.model(), rounds=case.timed + 1, participation=case.selected / case.clients,
        epochs=case.epochs, batch_size=case.batch_size, lr=case.lr, eval_every=min(case.eval_every, case.timed + 1),
        device=case.device, precision=precision, **case.settings,
    )  # fmt: skip
    first: list[ft.Round] = []
    first_seconds = time_synchronized(lambda: first.append(next(rounds)))
    seconds = time_synchronized(lambda: list(rounds))
    backend = first[0].backend.describe()
    return {"first_round_seconds": first_seconds, "round_seconds": seconds / case.timed, "backend": backend}


def measure(name: str, case: Case, precisions: list[str], peers: list[str]) -> list[dict[str, Any]]:
    """A row for every implementation."""
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        f"fedtilt, {precision}": (lambda precision=precision: measure_ours(case, precision)) for precision in precisions
    }
    runs |= {peer: (lambda peer=peer: measure_peer(peer, case)) for peer in peers}
    rows = []
    for label, run in runs.items():
        row: dict[str, Any] = {"case": name, "title": case.title, "implementation": label, "rounds": case.rounds}
        row |= run()
        rows.append(row)
        seconds = row["round_seconds"]
        print(
            f"{name:18s} {label:18s} {1e3 * seconds:10.2f} ms a round, {case.rounds} rounds in "
            f"{seconds * case.rounds:8.1f} s, first round {row['first_round_seconds']:.1f} s",
            flush=True,
        )
    return rows


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these")
    parser.add_argument("--device", choices=list(KINDS), help="the cases for it (default: cuda where there is one)")
    parser.add_argument("--precision", action="append", choices=("float32", "tf32", "bfloat16"), help="on the GPU")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    options: argparse.Namespace = parser.parse_args()
    cases = {name: quick(case) if options.quick else case for name, case in CASES.items()}
    device = options.device or ("cuda" if torch.cuda.is_available() and not options.quick else "cpu")
    cases = {name: cases[name] for name in options.case or cases if cases[name].device == device}
    if missing := set(options.case or ()) - set(cases):
        parser.error(f"not for --device {device}: {', '.join(sorted(missing))}")
    rows: list[dict[str, Any]] = []
    for name, case in cases.items():
        precisions = (options.precision or ["tf32", "bfloat16"]) if device == "cuda" else ["float32"]
        rows += measure(name, case, precisions, [] if options.no_peers else installed_peers(case))
        if case.published:
            print(f"{name:18s} published: {case.published}")
        save_result(options, KINDS[device], {"rows": rows}, device)


if __name__ == "__main__":
    main()
