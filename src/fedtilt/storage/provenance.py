"""What a run was: its settings as JSON, where it ran, and where its seeds lie."""

import dataclasses
import math
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtilt.files import read_json, write_json
from fedtilt.methods import Method
from fedtilt.rounds.settings import TrainSettings, pick_device
from fedtilt.training import native
from fedtilt.version import __version__


def settings_of(methods: Sequence[Method], training: TrainSettings) -> dict[str, Any]:
    """Methods and training as JSON, without the device and the number of workers: a run may go on elsewhere."""
    train = {k: v for k, v in dataclasses.asdict(training).items() if k not in ("device", "workers")}
    return {
        "methods": {m.name: {k: _plain(v) for k, v in dataclasses.asdict(m).items()} for m in methods},
        "train": train,
    }


def _plain(value: Any) -> Any:
    """JSON has no infinities and no tuples."""
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def environment(device: str) -> dict[str, Any]:
    """What else the bits of a run depend on, to be recorded with it."""
    chosen = pick_device(device)
    found = {
        "fedtilt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else f"cpu ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }
    return found if chosen.type == "cuda" else found | {"native kernel": native.made_by()}


def seed_folder(folder: Path, seed: int) -> Path:
    """Where one seed of a run lies."""
    return folder / f"seed-{seed}"


def record_environment(folder: Path, device: str, seeds: Sequence[int], **extra: Any) -> None:
    """Write run.json at the beginning, and add the seeds that come later."""
    path = folder / "run.json"
    if path.exists():
        content = read_json(path)
        content["seeds"] += [seed for seed in seeds if seed not in content["seeds"]]
    else:
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        content = {"started": started, "seeds": list(seeds), "environment": environment(device)} | extra
    write_json(path, content)
