"""Checkpoints of 10,000 personal models: the time of one, and the memory of a run folder over many rounds."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.memory import resident_mib
from benchmarks.options import make_result_parser, save_result
from fedtilt.engine.client_states import FederationState
from fedtilt.state import ClientState, ServerState
from fedtilt.storage.run_folder import RunFolder


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--parameters", type=int, default=8_970, help="of a model; the digits MLP has 8,970")
    parser.add_argument("--rounds", type=int, default=2000, help="with 100 clients each, and a checkpoint every 10")
    arguments = parser.parse_args()
    clients, rounds = (200, 40) if arguments.quick else (arguments.clients, arguments.rounds)
    rng, shared = np.random.default_rng(0), torch.randn(arguments.parameters)
    seconds, trace = [], []
    with tempfile.TemporaryDirectory(dir=".") as folder:  # not in memory, where /tmp may be
        run_folder = RunFolder(Path(folder) / "seed-0")

        def train(round: int, clients: list[int]) -> None:
            for client in clients:
                run_folder.client_states.put(("ditto", client), round, ClientState(personal=shared + client))

        def checkpoint(round: int) -> None:
            state = FederationState(round, {"ditto": ServerState(shared)}, run_folder.client_states)
            run_folder.checkpoint(state)

        for round in (1, 2, 3):
            train(round, list(range(clients)))
            start = time.perf_counter()
            checkpoint(round)
            seconds.append(time.perf_counter() - start)
        for round in range(4, 4 + rounds):
            train(round, rng.choice(clients, 100, replace=False).tolist())
            if round % 10 == 0:
                checkpoint(round)
                trace.append(resident_mib())
    half = trace[len(trace) // 2 :]
    slope = float(np.polyfit(range(len(half)), half, 1)[0]) / 10
    print(f"{clients:,} personal models of {arguments.parameters:,} parameters, all new: {min(seconds):.2f} s")
    print(f"resident {half[0]:.0f} MiB, then {half[-1]:.0f} MiB: {slope * 1024:+.1f} KiB per round")
    save_result(arguments, "checkpoints", {"seconds": seconds, "trace_mib": trace, "slope_mib_per_round": slope})


if __name__ == "__main__":
    main()
