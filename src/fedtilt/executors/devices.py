"""The device of a run by its name."""

import torch

from fedtilt.errors import InputError


def pick_device(name: str) -> torch.device:
    """The device of that name; 'auto' is CUDA if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device("cuda" if name == "cuda:all" else name)
    except (RuntimeError, TypeError):
        raise InputError(f"unknown device {name!r}; choose auto, cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {name!r} is not supported; choose auto, cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(f"device {name!r} is not available ({count} CUDA devices); use device 'cpu'")
    return device
