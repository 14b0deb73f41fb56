"""Tables of real sites as tensors in files, for machines without the packages that read tables."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedtilt.data import Dataset, load
from fedtilt.data.published.entry import data_folder

_NAMES = ("class_names", "client_names", "group_names")


def path_of(name: str, seed: int, folder: str | None, split: str = "random") -> Path:
    """The file of a table, split by this seed."""
    return data_folder(folder) / "prepared" / f"{name}-{split}-seed-{seed}.safetensors"


def prepare(name: str, seed: int, folder: str | None, split: str = "random") -> Path:
    """Read a table with its packages and write its tensors; the path of the file."""
    data, path = load(name, seed=seed, split=split), path_of(name, seed, folder, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{key}_{side}": _small(getattr(data, f"{key}_{side}"))
        for key in ("x", "y", "client") for side in ("train", "test")
    }  # fmt: skip
    if data.split_group_train is not None:  # validation rows are still to be drawn
        tensors["split_group_train"] = _small(data.split_group_train)
    for side in ("train", "test"):
        for group, codes in (getattr(data, f"group_{side}") or {}).items():
            tensors[f"group_{side}.{group}"] = _small(codes)
    save_file(tensors, path, {key: json.dumps(getattr(data, key)) for key in _NAMES})
    return path


def read_table(name: str, seed: int, folder: str | None, split: str = "random") -> Dataset:
    """A table of real sites, split by this seed: from its prepared file if there is one, else by its packages."""
    path = path_of(name, seed, folder, split)
    if not path.exists():
        return load(name, seed=seed, split=split)
    with safe_open(path, "pt") as file:
        names = {key: json.loads(text) for key, text in file.metadata().items()}
        tensors: dict[str, Any] = {key: _large(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
    groups: dict[str, Any] = {"group_train": {}, "group_test": {}}
    for key in [key for key in tensors if key.startswith("group_")]:
        side, _, group = key.partition(".")
        groups[side][group] = tensors.pop(key)
    return Dataset(
        name=name, classes=len(names["class_names"]), split=split, test_drawn=True, **names, **tensors, **groups
    )


def _small(tensor: Tensor) -> Tensor:
    """Numbers of classes, clients and groups in two bytes."""
    return tensor.contiguous() if tensor.is_floating_point() else tensor.short()


def _large(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_floating_point() else tensor.long()
