"""Shared by the benchmarks: time functions, count operations, describe the machine, write JSON."""

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


def best_times(functions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The shortest time of each function in seconds; they alternate, so that a slow moment affects all of them."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            best[name] = min(best[name], time_call(function))
    return best


def time_call(function: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def matmul_peak(size: int = 2048, repeats: int = 4) -> float:
    """Float32 operations per second of one large square matrix product on all cores: the machine's practical peak."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)
    seconds = min(time_call(lambda: torch.mm(a, b, out=out)) for _ in range(repeats))
    return 2 * size**3 / seconds


def step_operations(net: nn.Module, shape: Sequence[int], batch_size: int) -> int:
    """Float operations of one training step: the matrix products of linear and convolution layers, nothing else.

    A layer with m multiply-adds per sample costs 2m for its output, 2m for the gradient of its weights and 2m for the
    gradient of its input, which the first layer does not need. Activations, pooling, loss and update are not counted.
    """
    multiply_adds: list[int] = []

    def count(layer: nn.Module, _: Any, out: torch.Tensor) -> None:
        positions = math.prod(out.shape[2:])  # 1 for a linear layer, height · width for a convolution
        multiply_adds.append(layer.weight.numel() * positions)  # type: ignore[union-attr,operator]

    hooks = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    with torch.no_grad():
        net(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return batch_size * (6 * sum(multiply_adds) - 2 * multiply_adds[0])


def machine_info(device: str = "cpu") -> dict[str, Any]:
    """Processor, memory and versions of this machine, and the GPU for a CUDA benchmark."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    info = {
        "processor": _processor(), "cores": available_cores(), "memory_gib": round(memory),
        "system": platform.system(), "python": platform.python_version(), "torch": torch.__version__,
    }  # fmt: skip
    if device == "cuda":
        info |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return info


def _processor() -> str:
    """The processor's name as the system reports it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def write_result(kind: str, result: Mapping[str, Any], *, device: str = "cpu", out: Path | None = None) -> Path:
    """Write a result with its date, version and machine as JSON; return the path."""
    path = out or RESULTS / f"{kind}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kind": kind, **provenance(device), **result}, indent=1) + "\n")
    return path


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Now, the version and the machine."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"date": now, "fedtilt": __version__, "machine": machine_info(device)}
