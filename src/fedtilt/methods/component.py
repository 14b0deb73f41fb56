"""Components: the parts that a method is made of, the user's own as good as the built-in ones.

A component is a frozen dataclass. Its fields are its settings, declared with `setting`, and checked when it is made.
What it remembers between rounds is a slot: a named set of float tensors, of the server or of a client. `init…` starts a
slot, and every step is given the component's own slot and returns it; nothing else reads or writes it. What travels
beside the model is declared, and nothing else leaves a client.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedtilt.config.named import NamedSettings
from fedtilt.errors import InputError
from fedtilt.math.mixing import mix
from fedtilt.math.robust import bad_count
from fedtilt.state import Slot

KINDS = (
    "objective", "personal", "local", "correction", "training", "weighting", "before", "aggregator", "optimizer",
)  # fmt: skip
COMPONENTS: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}  # the built-in classes of every kind by name
BASES: dict[str, Any] = {}  # kind → the class that others of it are subclasses of
# what the server gives a component of the tensors that clients send beside their models; all are checked to be finite
MESSAGES = {
    "aggregated": "bounded by the screening; beside a robust rule, every client's is what the rule makes of all",
    "bounded": "bounded by the screening, client by client",
    "trusted": "as they are sent: not beside a robust rule",
}


@dataclass(frozen=True)
class Component(NamedSettings):
    """A part of a method; a subclass is a frozen dataclass too.

    A built-in one is known by its `rule`, the user's own are named "module:Class".
    """

    key: ClassVar[str] = "rule"
    kind: ClassVar[str] = ""  # the field of `Method` that takes it
    messages: ClassVar[str] = "aggregated"  # one of `MESSAGES`, of a component to which clients send something

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.kind:
            BASES.setdefault(cls.kind, cls)
            if "rule" in vars(cls) and cls.__module__.startswith("fedtilt."):
                COMPONENTS[cls.kind][cls.rule] = cls

    @property
    def source(self) -> Any:
        """Where it is written: its class, or the user's function."""
        return type(self)

    @property
    def label(self) -> str:
        """Its name in messages and records: the rule, or module:name."""
        written = self.source
        return vars(written).get("rule") or f"{written.__module__}:{written.__qualname__}"

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            hash(self)
        except TypeError as error:
            raise InputError(
                f"{describe(self)} has a setting that can change ({error}); expected tuples instead of lists, and what "
                "it remembers in its slot"
            ) from None


@dataclass(frozen=True, kw_only=True)
class ServerRound:
    """What a component on the server may know of a round. Row n of the models is client `clients[n]`."""

    received: Tensor  # (P,) the model that the clients started from
    population: int  # how many clients are part of the run
    selected: int  # how many were asked for an update
    clients: Sequence[int] = ()  # the numbers, < population, of those with an update, ascending
    rejected: int = 0  # how many of these the screening rejected
    round: int = 1
    seed: int = 0
    lr: float = 1.0  # the clients' learning rate
    samples: Tensor | None = None  # (C,) how much their samples count, on the CPU as all (C,)
    losses: Tensor | None = None  # (C,) of the model that they received, if a component needs them
    weights: Tensor | None = None  # (C,) of the clients; None: equal
    root: Tensor | None = None  # (P,) the model that the server trained on its root set
    sent: Mapping[str, Tensor] = field(default_factory=dict)  # what `training` sent beside the models, each (C, …)

    def bad_count(self, bad_share: float) -> int:
        """How many of the models may be bad: this share of the clients that were asked, less those rejected."""
        # of those asked, not of those that replied: the bad ones do reply
        return max(0, bad_count(bad_share, self.selected) - self.rejected)

    def mixed(self, weights: Tensor) -> Self:
        """The same for models mixed with these weights (M, C): a value of every client is mixed too."""
        samples, losses = (None if v is None else mix(v, weights) for v in (self.samples, self.losses))
        return replace(self, samples=samples, losses=losses)


def describe(component: Component) -> str:
    """The component and where it is written, for an error about it."""
    try:
        file = inspect.getfile(component.source)
    except (TypeError, OSError):
        return f"{component.kind} {component.label!r}"
    return f"{component.kind} {component.label!r}" + ("" if is_built_in(component) else f" ({file})")


def is_built_in(component: Component) -> bool:
    """Whether this is one of ours."""
    return component.source.__module__.startswith("fedtilt.")


def run_step(component: Component, step: str, *given: Any) -> Any:
    """What a step of a component returns; raises InputError if it changed a tensor that it was given."""
    with unchanged(component, step, *given):
        return getattr(component, step)(*given)


@contextlib.contextmanager
def unchanged(component: Component, step: str, *given: Any) -> Iterator[None]:
    """Raise InputError if the user's code changes a tensor of these in place.

    Methods have equal tensors in common, so a change would reach other components and other methods.
    """
    tensors = [] if is_built_in(component) else list(_tensors_in(given))
    versions = [tensor._version for tensor in tensors]
    yield
    if versions != [tensor._version for tensor in tensors]:
        raise InputError(
            f"{describe(component)} changed a tensor in place that {step} was given; expected new tensors, such as "
            "x + 1 instead of x.add_(1)"
        )


def run_slot_step(component: Component, step: str, *given: Any) -> tuple[Any, Any]:
    """The result of a step, and the component's next slot."""
    found = run_step(component, step, *given)
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(
            f"{describe(component)} returned {type(found).__name__} from {step}; expected two things, of which the "
            "last is its next slot"
        )
    return found


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors that a step is given, those inside slots and rounds too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | Mapping) or dataclasses.is_dataclass(value):
        parts = value if isinstance(value, tuple) else (value if isinstance(value, Mapping) else vars(value)).values()
        for part in parts:
            yield from _tensors_in(part)


def check_tensor(component: Component, what: str, value: object, like: Tensor) -> Tensor:
    """Raise InputError if what a component returns is not a finite tensor of this shape, type and device.

    The built-in ones are trusted: a look at the values waits for a GPU.
    """
    found = None
    if is_built_in(component) and isinstance(value, Tensor):
        return value
    if not isinstance(value, Tensor):
        found = f"{type(value).__name__}, not a tensor"
    elif value.shape != like.shape:
        found = f"shape {tuple(value.shape)}"
    elif value.dtype != like.dtype:
        found = f"type {value.dtype}"
    elif value.device != like.device:
        found = f"device {value.device}"
    elif not bool(((value.detach() * 0).sum() == 0).item()):
        found = "values that are not finite"
    if found is not None:
        raise InputError(
            f"{describe(component)} returned {found} as {what}; expected finite numbers of shape {tuple(like.shape)}, "
            f"{like.dtype}, on {like.device}"
        )
    assert isinstance(value, Tensor)
    return value.detach()  # else a state would keep the graphs of all rounds before


def check_slot(component: Component, what: str, slot: object, like: Slot) -> dict[str, Tensor]:
    """Raise InputError if a slot or message does not have the names, shapes and types that the component declared."""
    slot = check_declared(component, what, slot)
    if {*slot} != {*like}:
        raise InputError(
            f"{describe(component)} returned {', '.join(map(repr, slot)) or 'nothing'} as {what}; it declared "
            f"{', '.join(map(repr, like)) or 'nothing'}"
        )
    return {name: check_tensor(component, f"{name!r} of {what}", slot[name], like[name].to(slot[name].device))
            for name in like}  # fmt: skip


def check_declared(component: Component, what: str, slot: object, dtype: torch.dtype | None = None) -> Slot:
    """Raise InputError if a slot is not a dictionary of tensors, of this type if it is given."""
    if not isinstance(slot, Mapping) or not all(isinstance(name, str) and name for name in slot):
        raise InputError(
            f"{describe(component)} returned {type(slot).__name__} as {what}; expected a dictionary of tensors by name"
        )
    for name, value in slot.items():
        if not isinstance(value, Tensor) or value.dtype != (dtype or value.dtype):
            found = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"{describe(component)} returned {found} as {name!r} of {what}; expected a tensor"
                + (f" of {dtype}" if dtype else "")
            )
    return slot
