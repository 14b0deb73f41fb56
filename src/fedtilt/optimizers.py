"""Optimisers on the clients, with the meaning and defaults of `torch.optim`; their state is new in every round.

The gradient is that of the loss plus the proximal term. It is clipped before the optimiser takes it.
"""

from dataclasses import dataclass
from typing import ClassVar

from fedtilt.config.named import NamedSettings
from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Optimizer(NamedSettings):
    """What all optimisers have; the learning rate is that of the run, or of the method."""

    momentum: ClassVar[float] = 0.0
    nesterov: ClassVar[bool] = False
    weight_decay: float = setting(0.0, "weight decay", ge=0)
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


@dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, arXiv 1711.05101)."""

    rule: ClassVar[str] = "adamw"


OPTIMIZERS: dict[str, type[Optimizer]] = {cls.rule: cls for cls in (SGD, Adam, AdamW)}
