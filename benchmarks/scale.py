"""What a round costs as it grows: more clients, more settings in one call, a wider model. FedTilt, w and v trained.

Every size is trained for a few rounds after a warm-up and the best counts. On a CPU, sizes take turns, so that a slow
moment hits all alike; on a GPU, which keeps the graphs of few sizes at a time, each has its turns in a row. The cost of
a step (one mini-batch of one model) is the thing to watch: flat means that nothing is wasted.
"""

import argparse
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from measure import cores, step_operations, timed, write

import fedtilt as ft


@dataclass(frozen=True, kw_only=True)
class Size:
    """One point of a curve."""

    clients: int = 10  # clients of a round
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
def federation(clients: int, samples: int) -> ft.Federation:
    """Random images: what they show does not change the cost."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (clients * samples, 1, 28, 28), generator=rng, dtype=torch.uint8)
    y = torch.arange(clients * samples) % 10
    data = ft.data.Dataset(
        name="random", x_train=x, y_train=y, x_test=x[:clients], y_test=y[:clients], classes=10, image=True
    )
    return ft.Federation.build(data, clients=clients, partition="iid")


def rounds(size: Size, device: str) -> Iterator[ft.Round]:
    """One round after the other; settings differ in tau, so that no lane is the twin of another."""
    methods = [ft.fedtilt(tau=1 + i / 8, lam=1, name=f"tau {1 + i / 8:g}") for i in range(size.settings)]

    def net(input_shape: tuple[int, ...], classes: int) -> torch.nn.Module:
        return ft.models.mlp(input_shape, classes, hidden=(size.width, size.width))

    return ft.simulate(
        methods, federation(size.clients, size.samples), net, rounds=10**6, participation=1.0, epochs=1,
        eval_every=10**6, device=device,
    )  # fmt: skip


def curve(sizes: list[Size], turns: int, device: str) -> list[dict[str, Any]]:
    """Seconds a round and microseconds a step of every size."""
    best = dict.fromkeys(sizes, float("inf"))
    running = {size: rounds(size, device) for size in sizes}

    def once(size: Size) -> None:
        next(running[size])
        if device == "cuda":
            torch.cuda.synchronize()

    for group in [[size] for size in sizes] if device == "cuda" else [sizes]:
        for size in group:
            once(size)  # warm-up: workers, compilation
        for size in group * turns:
            best[size] = min(best[size], timed(lambda size=size: once(size)))
        for size in group:
            running[size].close()
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="three small sizes a curve, one turn: does it run?")
    parser.add_argument("--out", type=Path, help="the JSON file to write, instead of one in bench-results/")
    arguments = parser.parse_args()
    torch.set_num_threads(cores())
    results = {}
    for name, (label, sizes) in CURVES.items():
        if arguments.quick:
            sizes = [replace(size, samples=20) for size in sizes[:3]]
        points = curve(sizes, 1 if arguments.quick else arguments.turns, arguments.device)
        results[name] = {"label": label, "points": points}
        print(f"{label} ({arguments.device}):")
        for point in points:
            step = f"{point['microseconds_per_step']:9.1f} us a step"
            print(f"  {point[name]:5d}  {point['seconds']:8.3f} s a round  {step}")
    kind = "scale" if arguments.device == "cpu" else "scale-cuda"
    write("quick" if arguments.quick else kind, {"curves": results}, device=arguments.device, out=arguments.out)


if __name__ == "__main__":
    main()
