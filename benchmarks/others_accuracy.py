"""The accuracy of pfl's CIFAR-10 benchmark on CIFAR-10 itself: ours, and pfl's with the same clients and samples.

    PYTHONPATH=src python -m benchmarks.others_accuracy --out accuracy.json            # ours, TF32 and bfloat16
    PYTHONPATH=src python -m benchmarks.others_accuracy --pfl 5 --out accuracy-pfl.json  # pfl in five processes
    PYTHONPATH=src python -m benchmarks.others_accuracy --quick                        # on the CPU, random images

The shared model is tested on all 10,000 test images every 50 rounds. A seed gives the division, the initial model and
the selected clients; ours and pfl's have the same division, and draw the rest in their own ways. pfl divides the
clients of a round among its processes, which is faster and gives the same sums.
"""

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

import fedtilt as ft
from benchmarks.options import make_result_parser, save_result
from benchmarks.others_cases import CASES, Case, quick, random_data
from benchmarks.others_peers import as_input, run_pfl

RANK = "PFL_WORKER_RANK"
EVERY = 50  # rounds between two tests
CASE = CASES["pfl-cifar10"]


def load(options: argparse.Namespace) -> tuple[Case, ft.data.Dataset]:
    """The case and CIFAR-10; with --quick, random images."""
    case = quick(CASE) if options.quick else replace(CASE, rounds=options.rounds)
    return case, random_data(case) if options.quick else ft.data.load("cifar10")


def measure_ours(case: Case, data: ft.data.Dataset, precision: str, seed: int) -> Iterator[tuple[int, float]]:
    """Rounds and accuracies in percent."""
    federation = ft.Federation.build(data, clients=case.clients, partition="iid", seed=seed)
    torch.manual_seed(seed)
    model = case.model()
    tester = Tester(data, case.device)
    for round in ft.simulate(
        [ft.fedavg()], federation, model, rounds=case.rounds, participation=case.selected / case.clients, seed=seed,
        epochs=case.epochs, batch_size=case.batch_size, lr=case.lr, eval_every=EVERY, device=case.device,
        precision=precision,
    ):  # fmt: skip
        if round.number % EVERY == 0 or round.number == case.rounds:
            parameters = round.state.server["fedavg"].parameters
            nn.utils.vector_to_parameters(parameters.cpu(), model.cpu().parameters())
            yield round.number, tester(model.to(case.device))


class Tester:
    """The accuracy of a model on all test images, in percent."""

    def __init__(self, data: ft.data.Dataset, device: str) -> None:
        assert isinstance(data.x_test, Tensor)
        self._x, self._y = as_input(data.x_test).to(device), data.y_test.to(device)

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> float:
        was_training = model.training
        model.eval()
        right = sum(
            int((model(x).argmax(1) == y).sum()) for x, y in zip(self._x.split(1000), self._y.split(1000), strict=True)
        )
        model.train(was_training)
        return 100 * right / len(self._y)


def start_pfl_processes(count: int) -> None:
    """Run this program with the same options in pfl's processes, which it finds by these variables."""
    addresses = {"PFL_WORKER_ADDRESSES": ",".join(free_address() for _ in range(count))}
    environments = [os.environ | addresses | {RANK: str(rank)} for rank in range(count)]
    command = [sys.executable, "-m", "benchmarks.others_accuracy", *sys.argv[1:]]
    processes = [subprocess.Popen(command, env=environment) for environment in environments]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(1)


def run_pfl_process(rank: int, options: argparse.Namespace) -> None:
    """One of pfl's processes; the first one tests the model and writes the result."""
    case, data = load(options)
    if case.device == "cuda":
        os.environ["PFL_PYTORCH_DEVICE"] = "cuda:0"
    # NCCL does not take two processes on one GPU
    start_group = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, **settings: start_group("gloo", **settings)
    federation = ft.Federation.build(data, clients=case.clients, partition="iid", seed=options.seed[0])
    settings: dict[str, Any] = {"seed": 0, "round": 1, "device": case.device}
    users = [cast("tuple[Tensor, Tensor]", federation.train(client, **settings)) for client in range(case.clients)]
    tester, row = Tester(data, case.device), make_row(f"pfl, {options.pfl} processes", options.seed[0])
    start = time.perf_counter()

    def test(number: int, net: nn.Module) -> None:
        if rank == 0 and ((number + 1) % EVERY == 0 or number + 1 == case.rounds):
            add(row, number + 1, tester(net), time.perf_counter() - start)
            save_result(options, "others-accuracy", {"rows": [row]}, case.device)

    run_pfl(case, users, case.rounds, test, options.seed[0])


def make_row(implementation: str, seed: int) -> dict[str, Any]:
    """A row without rounds."""
    return {"implementation": implementation, "seed": seed, "rounds": [], "accuracy": [], "seconds": []}


def add(row: dict[str, Any], number: int, accuracy: float, seconds: float) -> None:
    """Note and print a test."""
    for key, value in (("rounds", number), ("accuracy", accuracy), ("seconds", seconds)):
        row[key].append(value)
    print(
        f"{row['implementation']}, seed {row['seed']}, round {number}: {accuracy:.2f} % ({seconds:.0f} s)", flush=True
    )


def free_address() -> str:
    """An address on this machine at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--seed", action="append", type=int, help="one or more (0)")
    parser.add_argument("--precision", action="append", choices=("float32", "tf32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=CASE.rounds)
    parser.add_argument("--pfl", type=int, metavar="PROCESSES", help="pfl in place of ours, in this many processes")
    options = parser.parse_args()
    options.seed = options.seed or [0]
    if options.pfl:
        run_pfl_process(int(os.environ[RANK]), options) if RANK in os.environ else start_pfl_processes(options.pfl)
        return
    case, data = load(options)
    rows: list[dict[str, Any]] = []
    for seed in options.seed:
        for precision in options.precision or (["float32"] if options.quick else ["tf32", "bfloat16"]):
            rows.append(make_row(f"fedtilt, {precision}", seed))
            start = time.perf_counter()
            for number, accuracy in measure_ours(case, data, precision, seed):
                add(rows[-1], number, accuracy, time.perf_counter() - start)
            save_result(options, "others-accuracy", {"rows": rows}, case.device)


if __name__ == "__main__":
    main()
