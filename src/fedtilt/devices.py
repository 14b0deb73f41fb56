"""Devices: the one that a name stands for, and copies to it that do not wait."""

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from fedtilt.errors import InputError

DEVICES = "auto, cpu, cuda, cuda:N or cuda:all"


def device_name(device: object) -> str:
    """The name of a device, also of a `torch.device`; it need not be available."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d+|:all)?", str(device)):
        raise InputError(f"unknown device {str(device)!r}; choose {DEVICES}")
    return str(device)


def pick_device(name: str) -> torch.device:
    """The device of that name; 'auto' is CUDA if there is one."""
    if device_name(name) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device("cuda" if name == "cuda:all" else name)
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InputError(f"device {name!r} is not available ({count} CUDA devices); use device 'cpu'")
    return device


def upload(values: Tensor, device: torch.device | str) -> Tensor:
    """Values of the host on a device; on CUDA, the host does not wait for the work that is queued there."""
    if torch.device(device).type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def as_rows(vectors: Sequence[Tensor]) -> Tensor:
    """Vectors (P,) as the rows of one tensor, which is not copied if they are its rows already; do not change it.

    >>> matrix = torch.zeros(3, 2)
    >>> as_rows(matrix.unbind()).data_ptr() == matrix.data_ptr()
    True
    """
    first, memory = vectors[0], vectors[0].untyped_storage()
    size, begin = first.numel() * first.element_size(), first.data_ptr()
    lie_in_a_row = begin + len(vectors) * size <= memory.data_ptr() + memory.nbytes() and all(
        vector.data_ptr() == begin + i * size
        and vector.shape == first.shape
        and vector.dtype == first.dtype
        and vector.is_contiguous()
        for i, vector in enumerate(vectors)
    )
    if not lie_in_a_row:
        return torch.stack(list(vectors))
    return first.as_strided((len(vectors), *first.shape), (first.numel(), *first.stride()))
