"""The named sets of tensors that a method keeps between rounds: which they are, and how they start.

server   parameters (S,); buffers (B,) if they are averaged; the vectors (S,) of a correction; AFL's client_weights (N,)
client   local (L,), the local parameters of its shared model, and its buffers (B,); personal (T,), its personal model,
         and personal_buffers (B,); the vectors (S,) of a correction; momentum (S,), the moving average of its updates
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.methods import CORRECTIONS, Method
from fedtilt.parts import Parts, Tensors


def initial_server(method: Method, parts: Parts, clients: int) -> dict[str, Tensor]:
    """What the server starts with.

    Args:
        method: the method
        parts: the parts of the model and its initial values
        clients: how many clients there are
    """
    server = parts.keeping(method.local).initial_server()
    if method.correction != "none":
        zeros = torch.zeros_like(server["parameters"])
        server |= dict.fromkeys(CORRECTIONS[method.correction].server_keeps, zeros)
    if method.weighting == "afl":
        server["client_weights"] = torch.full((clients,), 1 / clients, dtype=torch.float64)
    return server


def client_state_like(method: Method, parts: Parts) -> dict[str, Tensor]:
    """Tensors with the names, shapes and types of what a client keeps after a round."""
    parts = parts.keeping(method.local)
    model, buffers = parts.initial, parts.initial_buffers
    kept = {"local": parts.local(model), "buffers": buffers if parts.keeps_buffers else None}
    if method.personal:
        kept |= {"personal": model, "personal_buffers": buffers if parts.trains_buffers else None}
    if method.client_momentum:
        kept["momentum"] = torch.zeros(parts.shared_size)
    return {name: tensor for name, tensor in kept.items() if tensor is not None} | _correction_vectors(method, parts)


def _correction_vectors(method: Method, parts: Parts) -> dict[str, Tensor]:
    if method.correction == "none":
        return {}
    return dict.fromkeys(CORRECTIONS[method.correction].client_keeps, torch.zeros(parts.shared_size))


def correction_state(method: Method, parts: Parts, client_state: Tensors) -> Tensors:
    """The vectors of the method's correction that a client keeps; in its first round, zeros."""
    initial = _correction_vectors(method, parts)
    if client_state:
        check_state(client_state, initial, f"what a client keeps for method {method.name!r}")
    return {name: client_state.get(name, zeros) for name, zeros in initial.items()}


class VectorsSent(NamedTuple):
    """The names of the vectors (S,) that travel beside the model."""

    by_server: tuple[str, ...] = ()
    by_clients: tuple[str, ...] = ()


def vectors_sent(method: Method) -> VectorsSent:
    """The vectors of the method's correction that travel."""
    if method.correction == "none":
        return VectorsSent()
    correction = CORRECTIONS[method.correction]
    return VectorsSent(correction.server_sends, correction.client_sends)


def check_state(state: Tensors, needed: Tensors, what: str) -> None:
    """Refuse a state without a tensor that the method needs, such as that of an earlier version."""
    for name, tensor in needed.items():
        if name not in state:
            raise InputError(f"{what} has no {name!r}; it is of another method or version: start again in a new folder")
        if state[name].shape != tensor.shape:
            raise InputError(
                f"{name!r} of {what} has shape {tuple(state[name].shape)} instead of {tuple(tensor.shape)}; it is of "
                "another method or model: start again in a new folder"
            )
