"""Shared by the benchmarks: take turns, keep the best, write JSON."""

import json
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch


def best_of(contenders: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The shortest time of each, in seconds; they take turns, so that a slow moment hits all alike."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(turns):
        for name, work in contenders.items():
            begun = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - begun)
    return best


def write(name: str, results: Mapping[str, object]) -> None:
    folder = Path(__file__).parent.parent / "bench-results"
    folder.mkdir(exist_ok=True)
    machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    (folder / f"{name}.json").write_text(json.dumps(dict(results) | machine, indent=2) + "\n")
