"""What fedtilt adds to a round on Flower, beyond the training itself and Flower's start of a process per message.

    python examples/flower_overhead.py [HIDDEN]

One site and the server of a perceptron 784-HIDDEN-HIDDEN-10, without a network: what the site does to read w, to file
its personal model (synced to disk) and to say w_n; what the server does to check it, settle 10 such models and
checkpoint.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import fedtilt as ft
from fedtilt.flower.messages import from_arrays, shapes_of, to_arrays
from fedtilt.flower.run_folder import Ledger
from fedtilt.flower.site_states import Locker
from fedtilt.flower.task import Task
from fedtilt.models import flat
from fedtilt.rounds.round import invalid_reason, server_update


def milliseconds(work: Callable[[], object], repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - begun)
    return 1000 * best


def main(hidden: int) -> None:
    task = Task(spec="digits", model=ft.models.mlp((1, 28, 28), 10, hidden=(hidden, hidden)))
    job = task.job({"method": "fedtilt"})
    frame = task.frame(job)
    model = task.initial(job, frame)
    w, shapes = flat(model), shapes_of(model)
    models = {n: w + 0.01 * torch.randn_like(w) for n in range(10)}
    samples = dict.fromkeys(models, 100)
    with tempfile.TemporaryDirectory() as folder:
        locker = Locker(Path(folder), "0" * 16)
        ledger = Ledger(Path(folder) / "run", job, frame, model)
        ledger.begin(w, lambda _: None)
        arrays = to_arrays(model, w)
        costs = {
            "site: read w, check it": milliseconds(lambda: from_arrays(arrays, shapes)),
            "site: file the personal model": milliseconds(lambda: locker.keep(1, 0, w)),
            "site: say w_n": milliseconds(lambda: to_arrays(model, w)),
            "server: read and check a reply": milliseconds(lambda: invalid_reason(from_arrays(arrays, shapes), w)),
            "server: settle 10 models": milliseconds(lambda: server_update(job.method, w, models, samples)),
            "server: checkpoint": milliseconds(lambda: ledger.settled(1, w)),
        }
    print(f"{len(w):,} parameters ({4 * len(w) / 2**20:.1f} MB)")
    for what, cost in costs.items():
        print(f"{what:<34}{cost:8.1f} ms")
    print(f"{'a round of one site':<34}{sum(costs.values()):8.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
