"""The states that a method starts with, what its components declare to send, and whether a state is of this method."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.methods import Method
from fedtilt.methods.aggregators import Rooted
from fedtilt.methods.component import check_declared
from fedtilt.parts import Parts
from fedtilt.state import ClientState, ServerState, Slot

Shapes = Mapping[str, Mapping[str, tuple[int, ...]]]  # slot → name → shape


def initial_server(method: Method, parts: Parts, clients: int, net: nn.Module | None = None) -> ServerState:
    """What the server of this many clients starts with; the model `net` is for a method with `training`."""
    server = parts.keeping(method.local_names).initial_server()
    parameters = server.parameters
    slots: dict[str, Slot] = {
        "weighting": method.weighting.init(clients),
        **{f"before.{i}": step.init(parameters, clients) for i, step in enumerate(method.before)},
        "aggregator": method.aggregator.init(parameters, clients),
    }
    if method.correction is not None:
        slots["correction"] = dict.fromkeys(method.correction.server_vectors, torch.zeros_like(parameters))
    if method.optimizer is not None:
        slots["optimizer"] = method.optimizer.init(parameters)
    if method.training is not None and net is not None:
        slots["training"] = method.training.init_server(net, clients)
    components = method.components() | {"root": method.aggregator}
    if isinstance(method.aggregator, Rooted):  # the server is a client of its root set
        slots["root"] = client_state_like(method, parts, net, personal=False).to_tensors()
    for slot, tensors in slots.items():
        tensors = check_declared(components[slot], "the slot of the server", tensors)
        # copies: a checkpoint takes no two tensors with the same memory
        slots[slot] = {name: tensor.clone() for name, tensor in tensors.items()}
    return server.with_slots(slots)


def initial_slots(method: Method, parts: Parts, net: nn.Module | None = None) -> dict[str, Slot]:
    """What the components of a client remember before its first round."""
    size = parts.keeping(method.local_names).shared_size
    slots: dict[str, Slot] = {}
    if method.correction is not None and method.correction.client_vectors:
        slots["correction"] = dict.fromkeys(method.correction.client_vectors, torch.zeros(size))
    if method.client_momentum:
        slots["client_momentum"] = {"average": torch.zeros(size)}
    if method.training is not None and net is not None:
        slot = method.training.init_client(net)
        slots["training"] = check_declared(method.training, "the slot of a client", slot, torch.float32)
    return slots


def client_state_like(
    method: Method, parts: Parts, net: nn.Module | None = None, *, personal: bool = True
) -> ClientState:
    """Tensors with the names, shapes and types of a client's state after a round, initially; or without `personal`."""
    parts = parts.keeping(method.local_names)
    model, buffers = parts.initial, parts.initial_buffers
    personal &= method.has_personal
    return ClientState(
        local=parts.local(model),
        buffers=buffers if parts.keeps_buffers else None,
        personal=model if personal else None,
        personal_buffers=buffers if personal and parts.trains_buffers else None,
        slots=initial_slots(method, parts, net),
    )


def client_slot(
    method: Method, parts: Parts, client_state: ClientState, slot: str, device: torch.device,
    net: nn.Module | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """A client's slot on a device; in its first round, the initial one."""
    initial = initial_slots(method, parts, net).get(slot, {})
    found = initial
    if not client_state.is_empty:
        found = client_state.slot(slot)
        _check_tensors(found, initial, f"the slot {slot!r} of a client for method {method.name!r}")
    return {name: tensor.to(device) for name, tensor in found.items()}


class Messages(NamedTuple):
    """The tensors that travel beside the model."""

    to_clients: Shapes
    to_server: Shapes


def messages_of(method: Method, parts: Parts, clients: int, net: nn.Module | None = None) -> Messages:
    """What the components of a method declare to send."""
    size = (parts.keeping(method.local_names).shared_size,)
    to_clients: dict[str, dict[str, tuple[int, ...]]] = {}
    to_server: dict[str, dict[str, tuple[int, ...]]] = {}
    if method.correction is not None:
        to_clients["correction"] = dict.fromkeys(method.correction.broadcasts, size)
        to_server["correction"] = dict.fromkeys(method.correction.sends, size)
    if method.training is not None and net is not None:
        of_server = method.training.init_server(net, clients)
        of_client = check_declared(method.training, "what a client sends", method.training.sends(net), torch.float32)
        to_clients["training"] = {name: tuple(tensor.shape) for name, tensor in of_server.items()}
        to_server["training"] = {name: tuple(tensor.shape) for name, tensor in of_client.items()}
    return Messages(to_clients, to_server)


def check_server(method: Method, server: ServerState, needed: ServerState) -> None:
    """Raise if the state of the server lacks a tensor that the method needs, such as that of an earlier version."""
    what = f"the state of the server for method {method.name!r}"
    _check_tensors(server.to_tensors(), needed.to_tensors(), what)


def _check_tensors(found: Slot, needed: Slot, what: str) -> None:
    for name, tensor in needed.items():
        if name not in found:
            raise InputError(f"{what} has no {name!r}; it is of another method or version: start again in a new folder")
        if found[name].shape != tensor.shape:
            raise InputError(
                f"{name!r} of {what} has shape {tuple(found[name].shape)} instead of {tuple(tensor.shape)}; it is of "
                "another method or model: start again in a new folder"
            )
