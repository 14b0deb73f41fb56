"""The record of a run: its settings as JSON, its environment, and the folders of its seeds."""

import dataclasses
import math
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtilt.config.named import NamedSettings
from fedtilt.devices import pick_device
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.files import read_json, write_json
from fedtilt.methods import Method
from fedtilt.training import native
from fedtilt.version import __version__


def recorded_settings(methods: Sequence[Method], settings: TrainSettings) -> dict[str, Any]:
    """Methods and training settings as JSON, without those of the machine: a run may be resumed on another one."""
    without = ["device", "workers", "stack_size", "cluster", "cluster_timeout", "baselines"]
    without += ["init"]  # where it starts from is part of the fingerprint by its values
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    values["eval_every"] = settings.eval_interval
    train = {name: _to_json(value) for name, value in values.items() if name not in without and value is not None}
    # defaults of methods too: a later version may have others
    return {"methods": {m.name: {"name": m.name, **_to_json(m.to_table(all=True))} for m in methods}, "train": train}


def _to_json(value: Any) -> Any:
    """JSON has no infinities, tuples, functions and tensors."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _to_json(part) for key, part in value.items()}
    if isinstance(value, NamedSettings):
        return _to_json(value.to_table(all=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if callable(value):
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return [_to_json(part) for part in value] if isinstance(value, tuple | list) else value


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names.

    >>> flat_settings({"train": {"lr": 0.1}, "data": "digits"})
    {'train.lr': 0.1, 'data': 'digits'}
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flat_settings(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def environment(device: str) -> dict[str, Any]:
    """Versions and hardware that the bits of a run depend on."""
    picked = pick_device(device)
    record = {
        "fedtilt": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": torch.cuda.get_device_name(picked) if picked.type == "cuda" else f"cpu ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }
    return record if picked.type == "cuda" else record | {"native kernel": native.build_id()}


def seed_folder(folder: Path, seed: int) -> Path:
    """The folder of one seed of a run."""
    return folder / f"seed-{seed}"


def is_started(folder: Path) -> bool:
    """Whether a folder has a run, and not just the first file of one that was killed before it wrote the second."""
    names = ("spec.toml", "search")  # of a run, and of a search from Python
    return (folder / "run.json").exists() and (
        any((folder / name).exists() for name in names) or any(folder.glob("seed-*"))
    )


def check_run_folder(folder: Path) -> None:
    """Raise InputError if a folder is not a run folder."""
    if not folder.exists():
        raise InputError(f"{folder} does not exist; check the path")
    if not (folder / "run.json").exists():
        site = next((path for path in sorted(folder.rglob("report.txt")) if path.parent.name.startswith("site-")), None)
        is_site = f"a site has {site}, and the server the run folder of the federation"
        raise InputError(f"{folder} is not a run folder: {is_site if site else 'it has no run.json'}")
    if not is_started(folder):
        raise InputError(f"{folder} has a run that was stopped before it began; start it again with the same folder")


def read_record(folder: Path) -> dict[str, Any]:
    """run.json: when the run was started, its seeds and its environment."""
    record = read_json(folder / "run.json")
    match record:
        case {"started": str(), "seeds": [int(), *_] as seeds, "environment": dict()}:
            if all(isinstance(seed, int) for seed in seeds):
                return dict(record)
    raise InputError(f"{folder / 'run.json'} is damaged: it has no start, seeds or environment; restore it from a copy")


def record_environment(folder: Path, device: str, seeds: Sequence[int], **extra: Any) -> None:
    """Write run.json for a new run; in an existing one, add the seeds."""
    path = folder / "run.json"
    if is_started(folder):
        content = read_record(folder)
        content["seeds"] += [seed for seed in seeds if seed not in content["seeds"]]
    else:
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        content = {"started": started, "seeds": list(seeds), "environment": environment(device)} | extra
    write_json(path, content)
