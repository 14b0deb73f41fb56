"""A model's inputs: one tensor of samples, or several by name, such as `input_ids` and `attention_mask`."""

from typing import cast

import torch
from torch import Tensor

Inputs = Tensor | dict[str, Tensor]
Shape = tuple[int, ...] | dict[str, tuple[int, ...]]


def named_tensors(x: Inputs, name: str) -> dict[str, Tensor]:
    """The tensors, by the name that an error message gives them.

    >>> list(named_tensors({"input_ids": torch.zeros(2, 5)}, "x_train"))
    ["x_train['input_ids']"]
    """
    return {f"{name}[{key!r}]": tensor for key, tensor in x.items()} if isinstance(x, dict) else {name: x}


def sample_count(x: Inputs) -> int:
    """The number of samples."""
    return len(next(iter(named_tensors(x, "x").values())))


def byte_count(x: Inputs) -> int:
    """The bytes of all samples."""
    return sum(tensor.nbytes for tensor in (x.values() if isinstance(x, dict) else (x,)))


def take(x: Inputs, rows: Tensor | slice) -> Inputs:
    """The samples of these rows."""
    return {key: tensor[rows] for key, tensor in x.items()} if isinstance(x, dict) else x[rows]


def split(x: Inputs, sizes: list[int] | int) -> list[Inputs]:
    """Views of these numbers of samples, one after the other; with a single number, the last may have fewer."""
    if not isinstance(x, dict):
        return list(x.split(sizes))
    return [dict(zip(x, parts, strict=True)) for parts in zip(*(t.split(sizes) for t in x.values()), strict=True)]


def to_device(x: Inputs, device: torch.device | str) -> Inputs:
    """The same samples on another device."""
    return {key: tensor.to(device) for key, tensor in x.items()} if isinstance(x, dict) else x.to(device)


def concatenate(parts: list[Inputs]) -> Inputs:
    """The samples of all parts, one part after the other; of a single part, the part itself."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], dict):
        return {key: torch.cat([cast(dict[str, Tensor], part)[key] for part in parts]) for key in parts[0]}
    return torch.cat(cast(list[Tensor], parts))


def sample_shape(x: Inputs) -> Shape:
    """The shape of one sample.

    >>> sample_shape(torch.zeros(7, 1, 28, 28)), sample_shape({"input_ids": torch.zeros(7, 16)})
    ((1, 28, 28), {'input_ids': (16,)})
    """
    return {key: tuple(tensor.shape[1:]) for key, tensor in x.items()} if isinstance(x, dict) else tuple(x.shape[1:])
