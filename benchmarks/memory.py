"""Resident memory while 10,000 clients train, 100 per round, for 200 rounds: it must not grow with the rounds."""

from pathlib import Path

import numpy as np
import torch

import fedtilt as ft
from benchmarks.options import make_result_parser, save_result
from fedtilt.engine.client_states import ClientStates


def resident_mib() -> float:
    """Resident memory of this process in MiB."""
    fields = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    n, rounds = (200, 8) if arguments.quick else (arguments.clients, arguments.rounds)
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(4 * n, 16, generator=rng), torch.arange(4 * n) % 4
    data = ft.data.Dataset(
        name="random", x_train=x, y_train=y, x_test=x[: 2 * n], y_test=y[: 2 * n], classes=4, class_names=tuple("abcd"),
        image=False, client_train=None, client_test=None, client_names=None,
    )  # fmt: skip
    federation = ft.Federation.build(data, clients=n, partition="iid")

    def small_mlp(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return ft.models.mlp(input_shape, classes, hidden=(64,))

    settings = {"participation": 100 / n, "epochs": 1, "lr": 0.1, "rounds": rounds, "eval_every": 20}
    trace, client_states = [], ClientStates(None, limit_bytes=2 * 2**20)
    for r in ft.simulate([ft.ditto()], federation, small_mlp, client_states=client_states, **settings):
        trace.append(resident_mib())
        model_mib = r.state.shared["ditto"].nbytes / 2**20
    warmup = len(trace) // 4
    slope = float(np.polyfit(range(warmup, len(trace)), trace[warmup:], 1)[0])
    print(f"{n} clients, 100 per round, {rounds} rounds of a model of {model_mib * 1024:.0f} KiB:")
    print(f"  resident {trace[warmup]:.0f} MiB after {warmup} rounds, {trace[-1]:.0f} MiB at the end")
    share = slope / (100 * model_mib)
    print(f"  slope {slope * 1024:+.1f} KiB per round = {share:+.3f} of the size of a round's personal models")
    save_result(
        arguments,
        "memory",
        {"clients": n, "trace_mib": trace, "slope_mib_per_round": slope, "personal_models": len(client_states)},
    )


if __name__ == "__main__":
    main()
