"""Weights to start from: a safetensors file or a module."""

from pathlib import Path

import torch
from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.files import read_tensors


def load_initial_weights(net: nn.Module, source: str | nn.Module) -> None:
    """Copy parameters and buffers by name into the model; every name must be there, with the same shape.

    Args:
        net: the model that a run starts from
        source: the path of a safetensors file, or a module with the same names
    """
    tensors = read_tensors(Path(source)) if isinstance(source, str) else dict(source.state_dict())
    what = f"init = {source!r}" if isinstance(source, str) else f"init, a {type(source).__name__},"
    state = net.state_dict()
    missing = [name for name in state if name not in tensors]
    unknown = [name for name in tensors if name not in state]
    other = [name for name in state if name in tensors and state[name].shape != tensors[name].shape]
    if missing or unknown or other:
        raise InputError(f"{what} is of another model: {_differences(missing, unknown, other, state, tensors)}")
    with torch.no_grad():
        net.load_state_dict({name: tensors[name] for name in state})


def _differences(
    missing: list[str], unknown: list[str], other: list[str], state: dict[str, Tensor], tensors: dict[str, Tensor]
) -> str:
    """What differs, with the first name of each kind."""
    clauses = []
    if missing:
        clauses.append(f"it lacks {missing[0]!r}" + (f" and {len(missing) - 1} more" if missing[1:] else ""))
    if unknown:
        clauses.append(f"it has {unknown[0]!r}" + (f" and {len(unknown) - 1} more" if unknown[1:] else "") + " besides")
    if other:
        name = other[0]
        clauses.append(f"{name!r} has shape {tuple(tensors[name].shape)} instead of {tuple(state[name].shape)}")
    return "; ".join(clauses) + "; give weights of the model that is trained"
