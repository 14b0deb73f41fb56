"""Server optimisers: the aggregated model as a step of SGD with momentum, Adagrad, Adam or Yogi.

Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv 2003.00295, Algorithm 2: with Δ = aggregated − received,

    m ← β₁ m + (1 − β₁) Δ                                  for sgd, m ← β₁ m + Δ (Hsu et al., arXiv 1909.06335)
    v ← v + Δ²                                             adagrad
    v ← β₂ v + (1 − β₂) Δ²                                 adam
    v ← v − (1 − β₂) Δ² sign(v − Δ²)                       yogi
    w ← w + lr · m / (√v + ε)                              for sgd, w + lr · m

v starts at ε², the least that the paper allows, and there is no bias correction.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.methods.component import Component, Slot

_BETA_2 = 0.99


@dataclass(frozen=True)
class ServerOptimizer(Component):
    """Takes aggregated − received as a step; a subclass has `step`."""

    kind: ClassVar[str] = "optimizer"

    def init(self, parameters: Tensor) -> Slot:
        """The slot of the server before the first round."""
        return {}

    def step(self, received: Tensor, aggregated: Tensor, slot: Slot) -> tuple[Tensor, Slot]:
        """The next shared parameters, and the next slot."""
        raise InputError(f"optimizer {self.label!r} has no step(received, aggregated, slot); write one")


@dataclass(frozen=True)
class Sgd(ServerOptimizer):
    """SGD with momentum (Hsu et al., 2019, arXiv 1909.06335); lr = 1 without momentum is no optimiser at all."""

    rule: ClassVar[str] = "sgd"
    lr: float = setting(1.0, "its learning rate", gt=0)
    momentum: float = setting(0.0, "its momentum", ge=0, lt=1)

    def init(self, parameters: Tensor) -> Slot:
        """No momentum."""
        return {"momentum": torch.zeros_like(parameters)}

    def step(self, received: Tensor, aggregated: Tensor, slot: Slot) -> tuple[Tensor, Slot]:
        """M ← β₁ m + Δ, w ← w + lr · m."""
        momentum = self.momentum * slot["momentum"] + (aggregated - received)
        return received + self.lr * momentum, {"momentum": momentum}


@dataclass(frozen=True)
class _Adaptive(ServerOptimizer):
    lr: float = setting(1.0, "its learning rate", gt=0)
    momentum: float = setting(0.9, "its momentum", ge=0, lt=1)
    epsilon: float = setting(0.001, "what is added to the root of the second moment", gt=0)

    def init(self, parameters: Tensor) -> Slot:
        """No momentum, and the least second moment."""
        return {
            "momentum": torch.zeros_like(parameters), "second_moment": torch.full_like(parameters, self.epsilon**2),
        }  # fmt: skip

    def step(self, received: Tensor, aggregated: Tensor, slot: Slot) -> tuple[Tensor, Slot]:
        """A step along the momentum, by the root of the second moment."""
        delta = aggregated - received
        momentum = self.momentum * slot["momentum"] + (1 - self.momentum) * delta
        second = self._second_moment(slot["second_moment"], delta.square())
        parameters = received + self.lr * momentum / (second.sqrt() + self.epsilon)
        return parameters, {"momentum": momentum, "second_moment": second}

    def _second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        raise InputError(f"optimizer {self.label!r} has no second moment")


@dataclass(frozen=True)
class Adam(_Adaptive):
    """FedAdam (Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv 2003.00295)."""

    rule: ClassVar[str] = "adam"

    def _second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        return _BETA_2 * second + (1 - _BETA_2) * square


@dataclass(frozen=True)
class Yogi(_Adaptive):
    """FedYogi (Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv 2003.00295)."""

    rule: ClassVar[str] = "yogi"

    def _second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        return second - (1 - _BETA_2) * square * (second - square).sign()


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """FedAdagrad (Reddi et al., Adaptive Federated Optimization, ICLR 2021, arXiv 2003.00295)."""

    rule: ClassVar[str] = "adagrad"
    momentum: float = setting(0.0, "its momentum", ge=0, lt=1)

    def _second_moment(self, second: Tensor, square: Tensor) -> Tensor:
        return second + square
