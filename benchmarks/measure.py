"""Shared by the benchmarks: take turns, keep the best, count operations, name the machine, write JSON."""

import datetime
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedtilt.version import __version__

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench-results"


def best_of(contenders: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The shortest time of each, in seconds; they take turns, so that a slow moment hits all alike."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(turns):
        for name, work in contenders.items():
            best[name] = min(best[name], timed(work))
    return best


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def matrix_peak(size: int = 2048, repeats: int = 4) -> float:
    """Float32 operations a second of one large square product on all cores: what the machine can do at best."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    seconds = min(timed(lambda: torch.mm(a, b, out=out)) for _ in range(repeats))
    return 2 * size**3 / seconds


def step_operations(net: nn.Module, shape: Sequence[int], batch_size: int) -> int:
    """Float operations of one training step: the products of the linear and convolution layers, nothing else.

    A layer with m multiply-adds a sample costs 2m for its output, 2m for the gradient of its weights and 2m for the
    gradient of its input, which the first layer does not need. Activations, pooling, loss and update are left out.
    """
    macs: list[int] = []

    def count(layer: nn.Module, _: Any, out: torch.Tensor) -> None:
        positions = math.prod(out.shape[2:])  # 1 for a linear layer, height · width for a convolution
        macs.append(layer.weight.numel() * positions)  # type: ignore[union-attr,operator]

    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        net(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return batch_size * (6 * sum(macs) - 2 * macs[0])


def machine(device: str = "cpu") -> dict[str, Any]:
    """Where this is measured."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = {
        "processor": _processor(), "cores": cores(), "memory_gib": round(memory), "system": platform.system(),
        "python": platform.python_version(), "torch": torch.__version__,
    }  # fmt: skip
    if device == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return found


def _processor() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def write(kind: str, results: Mapping[str, Any], *, device: str = "cpu", out: Path | None = None) -> Path:
    """Write what was measured, with the date, the version and the machine, and say where."""
    path = out or RESULTS / f"{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    head = {"kind": kind, "date": now, "fedtilt": __version__, "machine": machine(device)}
    path.write_text(json.dumps(head | dict(results), indent=1) + "\n")
    return path
