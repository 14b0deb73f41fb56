"""Optimisers on the clients, with the meaning and defaults of `torch.optim`; their state is new in every round.

The gradient is that of the loss plus the proximal term. It is clipped before the optimiser takes it.
"""

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from typing import Any, ClassVar

import torch

from fedtilt.config.named import NamedSettings, make_named, named_settings
from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Optimizer(NamedSettings):
    """What all optimisers have; the learning rate is that of the run, or of the method."""

    weight_decay: ClassVar[float] = 0.0
    momentum: ClassVar[float] = 0.0
    nesterov: ClassVar[bool] = False
    is_of_torch: ClassVar[bool] = False  # whether it is known by name only, and the autograd loop alone takes its steps
    clip_norm: float | None = setting(
        None, "largest L2 norm of the gradient of all trained parameters; longer ones are scaled down", gt=0,
        example=1.0,
    )  # fmt: skip

    @property
    def name(self) -> str:
        """Its name in a spec."""
        return self.rule

    @property
    def is_plain(self) -> bool:
        """Whether a step is θ ← θ − lr · gradient."""
        return self == SGD()

    def describe(self) -> str:
        """Its name, and the settings that differ from their defaults.

        >>> SGD(momentum=0.9).describe()
        'sgd, momentum = 0.9'
        """
        return ", ".join([self.rule, *(f"{key} = {value}" for key, value in self.settings().items())])


@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """SGD, with momentum or without."""

    rule: ClassVar[str] = "sgd"
    weight_decay: float = setting(0.0, "weight decay", ge=0)  # type: ignore[misc]
    momentum: float = setting(0.0, "momentum", ge=0, lt=1)  # type: ignore[misc]
    nesterov: bool = setting(False, "whether the momentum is Nesterov's")  # type: ignore[misc]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise InputError("sgd: nesterov = True has no effect without momentum; leave it out")


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015, arXiv 1412.6980)."""

    rule: ClassVar[str] = "adam"
    weight_decay: float = setting(0.0, "weight decay", ge=0)  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, arXiv 1711.05101)."""

    rule: ClassVar[str] = "adamw"
    weight_decay: float = setting(0.0, "weight decay", ge=0)  # type: ignore[misc]


OPTIMIZERS: dict[str, type[Optimizer]] = {cls.rule: cls for cls in (SGD, Adam, AdamW)}

_PREFIX = "torch.optim."
_NOT_POSSIBLE = {
    "Optimizer": "is the base class of all",
    "LBFGS": "computes the loss several times in a step",
    "SparseAdam": "is for sparse gradients",
}
# arguments that decide how a step is computed, not what it is; the learning rate is that of the run
_NOT_SETTINGS = ("self", "params", "lr", "foreach", "fused", "capturable", "differentiable", "maximize")


def torch_optim(name: str, **settings: Any) -> Optimizer:
    """Any optimiser of `torch.optim`, by its name there; the autograd loop takes its steps.

    >>> torch_optim("RMSprop", alpha=0.9).describe()
    'torch.optim.RMSprop, alpha = 0.9'

    Args:
        name: such as "RMSprop" or "NAdam"
        settings: its arguments, but for the learning rate, which is that of the run; clip_norm too
    """
    cls = _of_torch(name.removeprefix(_PREFIX))
    return make_named(cls, settings, "optimizer", cls.rule)


def optimizer_of(value: Any) -> Optimizer:
    """The optimiser that a value stands for: itself, a name, or a table of its name and settings."""
    name = value.get("name") if isinstance(value, Mapping) else value
    if isinstance(value, Optimizer):
        return value
    if isinstance(name, str) and (name.startswith(_PREFIX) or name in _torch_names()):
        settings = {key: part for key, part in value.items() if key != "name"} if isinstance(value, Mapping) else {}
        return torch_optim(name, **settings)
    return named_settings(value, OPTIMIZERS, "optimizer", ", or one of torch.optim, such as RMSprop")


def _torch_names() -> list[str]:
    classes = {name: cls for name, cls in vars(torch.optim).items() if isinstance(cls, type)}
    return [name for name, cls in classes.items() if issubclass(cls, torch.optim.Optimizer)]


@functools.cache
def _of_torch(name: str) -> type[Optimizer]:
    """The settings of an optimiser of `torch.optim`, from the signature of its class."""
    if name in _NOT_POSSIBLE or name not in _torch_names():
        reason = _NOT_POSSIBLE.get(name, "does not exist")
        names = ", ".join(each for each in _torch_names() if each not in _NOT_POSSIBLE)
        raise InputError(f"optimizer = {_PREFIX + name!r} {reason}; choose one of {names}")
    parameters = inspect.signature(getattr(torch.optim, name)).parameters
    fields = [
        (key, _type_of(p.default), setting(p.default, f"{key} of torch.optim.{name}"))
        for key, p in parameters.items()
        if key not in _NOT_SETTINGS
    ]
    namespace = {
        "rule": _PREFIX + name,
        "is_of_torch": True,
        "__doc__": f"{name} of torch.optim.",
        "__reduce__": lambda self: (optimizer_of, (self.to_value(),)),  # a worker has no class of this name
    }
    return make_dataclass(name, fields, bases=(Optimizer,), namespace=namespace, frozen=True, kw_only=True)


def _type_of(default: object) -> Any:
    """The type of a setting with this default; a number may be a float, and of None nothing is known."""
    if isinstance(default, bool | str):
        return type(default)
    if isinstance(default, tuple) and None not in default:
        return tuple[float, ...]
    return float if isinstance(default, int | float) else Any
