"""The time that fedtilt adds to a round on Flower, besides the training and Flower's process start per message.

    python examples/flower_overhead.py [HIDDEN]

One site and the server of a perceptron 784-HIDDEN-HIDDEN-10, without a network. The site reads w, saves its personal
model (synced to disk) and encodes w_n. The server checks w_n, aggregates 10 such models and writes a checkpoint.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import fedtilt as ft
from fedtilt.engine.client import ClientUpdate
from fedtilt.engine.server import server_update
from fedtilt.engine.updates import invalid_updates
from fedtilt.flower import ServerRunFolder, Task
from fedtilt.flower.message_fields import decode_model, encode_model
from fedtilt.flower.site_files import SiteStates
from fedtilt.flower.training_history import TrainingHistory
from fedtilt.state import ClientState


def milliseconds(function: Callable[[], object], repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return 1000 * best


def main(hidden: int) -> None:
    task = Task(spec="digits", model=ft.models.mlp((1, 28, 28), 10, hidden=(hidden, hidden)))
    resolved = task.resolve({"method": "fedtilt"})
    info = task.federation_info(resolved)
    model, parts = task.initial_model(resolved, info)
    server, w = parts.initial_server(), parts.initial
    updates = {n: ClientUpdate(w + 0.01 * torch.randn_like(w), samples=100) for n in range(10)}

    def read_reply() -> dict[int, str]:
        update = ClientUpdate(decode_model(arrays, parts).parameters, samples=100)
        return invalid_updates(resolved.method, {0: update}, server)

    def aggregate() -> object:
        return server_update(resolved.method, server, updates, resolved.settings)

    with tempfile.TemporaryDirectory() as folder:
        states = SiteStates(Path(folder), TrainingHistory.new())
        run_folder = ServerRunFolder(Path(folder) / "run", resolved, info, model, parts)
        run_folder.begin(server, lambda _: None)
        arrays = encode_model(parts, w)
        times = {
            "site: read and check w": milliseconds(lambda: decode_model(arrays, parts)),
            "site: save the personal model": milliseconds(lambda: states.save(1, 0, ClientState(personal=w))),
            "site: encode w_n": milliseconds(lambda: encode_model(parts, w)),
            "server: read and check a reply": milliseconds(read_reply),
            "server: aggregate 10 models": milliseconds(aggregate),
            "server: checkpoint": milliseconds(lambda: run_folder.save_checkpoint(1, server)),
        }
    print(f"{len(w):,} parameters ({4 * len(w) / 2**20:.1f} MB)")
    for step, time_ms in times.items():
        print(f"{step:<34}{time_ms:8.1f} ms")
    print(f"{'a round of one site':<34}{sum(times.values()):8.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
