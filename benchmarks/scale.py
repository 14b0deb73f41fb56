"""The cost of a round as it grows: more clients, more settings in one call, a wider model. FedTilt trains w and v.

Every size trains for a few rounds after a warm-up, and the best round counts. On a CPU the sizes alternate, so that a
slow moment affects all of them; on a GPU, which keeps the CUDA graphs of few sizes at a time, the rounds of one size
follow each other. A constant cost per step (one mini-batch of one model) means that cost grows with the work alone.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import fedtilt as ft
from benchmarks.measure import available_cores, step_operations, time_call
from benchmarks.options import make_result_parser, require_cuda, save_result


@dataclass(frozen=True, kw_only=True)
class Size:
    """One point of a curve."""

    clients: int = 10  # per round
    settings: int = 1
    width: int = 200  # of both hidden layers
    samples: int = 200

    @property
    def steps(self) -> int:
        """Steps of a round: one epoch in batches of ten, two models for every client and setting."""
        return self.clients * self.settings * 2 * (self.samples // 10)


CURVES: dict[str, tuple[str, list[Size]]] = {
    "clients": ("clients per round", [Size(clients=n) for n in (10, 30, 100, 300, 1000)]),
    "settings": ("settings in one call", [Size(settings=n) for n in (1, 2, 4, 8, 16, 32, 64)]),
    "width": ("width of the two hidden layers", [Size(width=n) for n in (25, 50, 100, 200, 400, 800, 1600)]),
}


@functools.cache
def random_federation(clients: int, samples: int) -> ft.Federation:
    """Clients with random images: the content does not change the cost."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * samples, 1, 28, 28), generator=rng, dtype=torch.uint8)
    y = torch.arange(clients * samples) % 10
    data = ft.data.Dataset(
        name="random", x_train=x, y_train=y, x_test=x[:clients], y_test=y[:clients], classes=10, image=True
    )
    return ft.Federation.build(data, clients=clients, partition="iid")


def rounds_of(size: Size, device: str) -> Iterator[ft.Round]:
    """Rounds of one size; the settings differ in tau, so that no two models are identical and trained once."""
    methods = [ft.fedtilt(tau=1 + i / 8, lam=1, name=f"tau {1 + i / 8:g}") for i in range(size.settings)]

    def net(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return ft.models.mlp(input_shape, classes, hidden=(size.width, size.width))

    return ft.simulate(
        methods, random_federation(size.clients, size.samples), net, rounds=10**6, participation=1.0, epochs=1,
        eval_every=10**6, device=device,
    )  # fmt: skip


def measure_curve(sizes: list[Size], repeats: int, device: str) -> list[dict[str, Any]]:
    """Seconds per round and microseconds per step of every size."""
    best = dict.fromkeys(sizes, float("inf"))
    rounds = {size: rounds_of(size, device) for size in sizes}

    def train_round(size: Size) -> None:
        next(rounds[size])
        if device == "cuda":
            torch.cuda.synchronize()

    for group in [[size] for size in sizes] if device == "cuda" else [sizes]:
        for size in group:
            train_round(size)  # warm-up: start workers, compile
        for size in group * repeats:
            best[size] = min(best[size], time_call(lambda size=size: train_round(size)))
        for size in group:
            rounds[size].close()
    return [
        {
            "clients": size.clients, "settings": size.settings, "width": size.width, "steps": size.steps,
            "seconds": seconds, "microseconds_per_step": seconds / size.steps * 1e6,
            "operations": size.steps * step_operations(
                ft.models.mlp(hidden=(size.width, size.width)), (1, 28, 28), 10
            ),
        }
        for size, seconds in best.items()
    ]  # fmt: skip


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds of every size")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        require_cuda("--device cuda")
    torch.set_num_threads(available_cores())
    curves = {}
    for name, (label, sizes) in CURVES.items():
        if arguments.quick:
            sizes = [replace(size, samples=20) for size in sizes[:3]]
        points = measure_curve(sizes, 1 if arguments.quick else arguments.repeats, arguments.device)
        curves[name] = {"label": label, "points": points}
        print(f"{label} ({arguments.device}):")
        for point in points:
            per_step = f"{point['microseconds_per_step']:9.1f} us per step"
            print(f"  {point[name]:5d}  {point['seconds']:8.3f} s per round  {per_step}")
    kind = "scale" if arguments.device == "cpu" else "scale-cuda"
    save_result(arguments, kind, {"curves": curves}, arguments.device)


if __name__ == "__main__":
    main()
