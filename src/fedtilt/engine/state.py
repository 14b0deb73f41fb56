"""What outlives a round: named tensors of the server and of every client, those of a component in its own slot.

server   parameters (S,); buffers (B,) if they are averaged
client   local (L,), the local parameters of its shared model, and its buffers (B,); personal (T,), its personal model,
         and personal_buffers (B,)
slots    a component's tensors are `slot.name`: correction.control, weighting.weights, optimizer.momentum, …

A component is given `slot_of(state, …)` and returns its next slot, which `with_slot` puts in place of the old one. So
it can neither see nor restore what another one remembers. Checkpoints, messages and reports take these states as they
are.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.methods import Method
from fedtilt.methods.component import Slot, check_declared
from fedtilt.parts import Parts, Tensors


def slot_of(state: Tensors, slot: str) -> dict[str, Tensor]:
    """What a component remembers.

    >>> slot_of({"correction.control": torch.zeros(1), "parameters": torch.ones(1)}, "correction")
    {'control': tensor([0.])}
    """
    prefix = f"{slot}."
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def with_slot(state: Tensors, slot: str, tensors: Slot) -> dict[str, Tensor]:
    """The state with this in place of what the component remembered; everything else is as it was."""
    others = {name: tensor for name, tensor in state.items() if not name.startswith(f"{slot}.")}
    return others | in_slot(slot, tensors)


def in_slot(slot: str, tensors: Slot) -> dict[str, Tensor]:
    """These tensors as entries of a state."""
    return {f"{slot}.{name}": tensor for name, tensor in tensors.items()}


def tensors_on(device: torch.device, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors on this device."""
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def initial_server(method: Method, parts: Parts, clients: int, net: nn.Module | None = None) -> dict[str, Tensor]:
    """What the server starts with; the model `net` is for a method with `training`."""
    server = parts.keeping(method.local_names).initial_server()
    parameters = server["parameters"]
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
    parts_of = method.components()
    for slot, tensors in slots.items():  # copies: a checkpoint takes no two tensors with the same memory
        tensors = check_declared(parts_of[slot], "the slot of the server", tensors)
        server |= in_slot(slot, {name: tensor.clone() for name, tensor in tensors.items()})
    return server


def initial_slots(method: Method, parts: Parts, net: nn.Module | None = None) -> dict[str, Slot]:
    """What the components of a client remember before its first round, by slot."""
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


def client_state_like(method: Method, parts: Parts, net: nn.Module | None = None) -> dict[str, Tensor]:
    """Tensors with the names, shapes and types of a client's state after a round."""
    parts = parts.keeping(method.local_names)
    model, buffers = parts.initial, parts.initial_buffers
    kept = {"local": parts.local(model), "buffers": buffers if parts.keeps_buffers else None}
    if method.has_personal:
        kept |= {"personal": model, "personal_buffers": buffers if parts.trains_buffers else None}
    state = {name: tensor for name, tensor in kept.items() if tensor is not None}
    for slot, tensors in initial_slots(method, parts, net).items():
        state |= in_slot(slot, tensors)
    return state


def client_slot(
    method: Method, parts: Parts, client_state: Tensors, slot: str, net: nn.Module | None = None
) -> dict[str, Tensor]:
    """A client's slot; in its first round, the initial one."""
    initial = initial_slots(method, parts, net).get(slot, {})
    if not client_state:
        return dict(initial)
    check_state(client_state, in_slot(slot, initial), f"the state of a client for method {method.name!r}")
    return slot_of(client_state, slot)


class Messages(NamedTuple):
    """The tensors that travel beside the model, by their name in a state: (name → shape)."""

    to_clients: Mapping[str, tuple[int, ...]]
    to_server: Mapping[str, tuple[int, ...]]


def messages_of(method: Method, parts: Parts, clients: int, net: nn.Module | None = None) -> Messages:
    """What the components of a method declare to send."""
    size = (parts.keeping(method.local_names).shared_size,)
    to_clients: dict[str, tuple[int, ...]] = {}
    to_server: dict[str, tuple[int, ...]] = {}
    if method.correction is not None:
        to_clients |= {f"correction.{name}": size for name in method.correction.broadcasts}
        to_server |= {f"correction.{name}": size for name in method.correction.sends}
    if method.training is not None and net is not None:
        of_server = method.training.init_server(net, clients)
        of_client = check_declared(method.training, "what a client sends", method.training.sends(net), torch.float32)
        to_clients |= {f"training.{name}": tuple(tensor.shape) for name, tensor in of_server.items()}
        to_server |= {f"training.{name}": tuple(tensor.shape) for name, tensor in of_client.items()}
    return Messages(to_clients, to_server)


def check_state(state: Tensors, needed: Tensors, what: str) -> None:
    """Raise if a state lacks a tensor that the method needs, such as that of an earlier version."""
    for name, tensor in needed.items():
        if name not in state:
            raise InputError(f"{what} has no {name!r}; it is of another method or version: start again in a new folder")
        if state[name].shape != tensor.shape:
            raise InputError(
                f"{name!r} of {what} has shape {tuple(state[name].shape)} instead of {tuple(tensor.shape)}; it is of "
                "another method or model: start again in a new folder"
            )
