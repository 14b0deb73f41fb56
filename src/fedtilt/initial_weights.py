"""Weights to start from: a safetensors file or a module."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedtilt.errors import InputError, InputWarning
from fedtilt.files import read_tensors


def load_initial_weights(net: nn.Module, source: str | nn.Module) -> None:
    """Copy parameters and buffers by name into the model.

    Tensors that the source lacks, such as a new head, keep their values, and an `InputWarning` names them. Tensors that
    the model lacks, and other shapes, raise InputError.

    Args:
        net: the model that a run starts from
        source: the path of a safetensors file, or a module
    """
    tensors = read_tensors(Path(source)) if isinstance(source, str) else dict(source.state_dict())
    what = f"init = {source!r}" if isinstance(source, str) else f"init, a {type(source).__name__},"
    state = net.state_dict()
    _check(what, state, tensors)
    loaded = {state[name].data_ptr() for name in tensors}  # tied parameters have several names
    kept = [name for name, value in state.items() if name not in tensors and value.data_ptr() not in loaded]
    with torch.no_grad():
        net.load_state_dict(tensors, strict=False)
    if kept:
        named = _list([name for name in state if name in tensors])
        warnings.warn(
            f"{what} has {len(tensors)} of {len(state)} tensors of the model: {named}; "
            f"{_list(kept)} keep{'s' * (len(kept) == 1)} the values of a new model",
            InputWarning,
            stacklevel=2,
        )


def _check(what: str, state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raise InputError for weights of another model, with the first tensor that does not fit."""
    unknown = [name for name in tensors if name not in state]
    if not tensors or len(unknown) == len(tensors):
        raise InputError(
            f"{what} is of another model: it has {_list(unknown, 3) or 'no tensors'}, and the model has "
            f"{_list(list(state), 3)}; give weights of the model that is trained"
        )
    if unknown:
        raise InputError(f"{what} has {_list(unknown, 3)}, which the model lacks; remove what is not of this model")
    for name, tensor in tensors.items():
        if tensor.shape != state[name].shape:
            raise InputError(
                f"{what}: {name!r} has shape {tuple(tensor.shape)}, and the model's has {tuple(state[name].shape)}; "
                "remove it from these weights to start it anew"
            )
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise InputError(f"{what}: {name!r} has values that are not finite; give weights of a trained model")


def _list(names: Sequence[str], most: int = 8) -> str:
    """Names in quotes, at most `most` of them.

    >>> _list(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(map(repr, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
