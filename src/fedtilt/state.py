"""What outlives a round: the state of the server and of every client, that of each component in its own slot.

A component is given its slot and returns the next one, so it can neither see nor restore what another one remembers.
Checkpoints, messages, the audit and the screening take these types. In files, a tensor of a slot is `slot.name`:
correction.control, weighting.weights, before.0.centre, …
"""

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Self, TypeVar

import torch
from torch import Tensor

Slot = Mapping[str, Tensor]  # what a component remembers
Value = TypeVar("Value")
_KEY = re.compile(r"(before\.\d+|[^.]+)\.(.+)", re.DOTALL)


def flatten(slots: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """Values of slots as `slot.name`.

    >>> flatten({"before.0": {"centre": 1}, "training": {"net.weight": 2}})
    {'before.0.centre': 1, 'training.net.weight': 2}
    """
    return {f"{slot}.{name}": value for slot, values in slots.items() for name, value in values.items()}


def unflatten(values: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """The inverse of `flatten`; a name without a slot raises ValueError."""
    slots: dict[str, dict[str, Value]] = {}
    for key, value in values.items():
        if (match := _KEY.fullmatch(key)) is None:
            raise ValueError(f"{key!r} is no part of a state")
        slots.setdefault(match[1], {})[match[2]] = value
    return slots


@dataclass(frozen=True, eq=False)
class _State:
    slots: Mapping[str, Slot] = field(default_factory=dict, kw_only=True)

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The inverse of `to_tensors`."""
        own = {each.name: tensors[each.name] for each in fields(cls) if each.name in tensors and each.name != "slots"}
        return cls(**own, slots=unflatten({key: t for key, t in tensors.items() if key not in own}))

    def to_tensors(self) -> dict[str, Tensor]:
        """All tensors by name, for a file."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "slots"}
        return {name: tensor for name, tensor in own.items() if tensor is not None} | flatten(self.slots)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same with the function of every tensor."""
        return self.from_tensors({name: function(tensor) for name, tensor in self.to_tensors().items()})

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return self.map(lambda tensor: tensor.to(device))

    def slot(self, name: str) -> Slot:
        """What a component remembers; empty: nothing."""
        return self.slots.get(name, {})

    def with_slots(self, slots: Mapping[str, Slot]) -> Self:
        """The same with these in place of the slots of these names."""
        return replace(self, slots={**self.slots, **slots})

    def without_slot(self, name: str) -> Self:
        """The same without a slot."""
        return replace(self, slots={slot: tensors for slot, tensors in self.slots.items() if slot != name})


@dataclass(frozen=True, eq=False)
class ServerState(_State):
    """The state of the server for one method, or what it sends of it."""

    parameters: Tensor  # (S,) the shared model
    buffers: Tensor | None = None  # (B,) if they are averaged


@dataclass(frozen=True, eq=False)
class ClientState(_State):
    """The state of a client for one method; empty before its first round."""

    local: Tensor | None = None  # (L,) the local parameters of its shared model
    buffers: Tensor | None = None  # (B,) of its shared model
    personal: Tensor | None = None  # (T,) its personal model
    personal_buffers: Tensor | None = None  # (B,)

    @functools.cached_property
    def is_empty(self) -> bool:
        """Whether the client has nothing to remember, or was never selected."""
        return all(getattr(self, name) is None for name in _OF_CLIENTS) and not any(self.slots.values())


_OF_CLIENTS = [each.name for each in fields(ClientState) if each.name != "slots"]
