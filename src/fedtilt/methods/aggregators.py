"""Aggregators: the rules by which the server makes one model of the clients' models, (C, P) → (P,)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtilt.checks import number
from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.math import fair, robust
from fedtilt.math.aggregate import mean, solvable, tilted
from fedtilt.math.client_models import DISTANCES
from fedtilt.methods.component import Component, ServerRound, Slot


@dataclass(frozen=True)
class Aggregator(Component):
    """A server rule; a subclass has `aggregate`, and `init` if it remembers anything."""

    kind: ClassVar[str] = "aggregator"
    takes_weights: ClassVar[bool] = False  # whether it uses the weights of clients
    is_robust: ClassVar[bool] = False  # whether a minority of bad clients moves its result by a bounded length
    needs_losses: ClassVar[bool] = False  # whether clients declare the loss of the model that they receive
    by_blocks: ClassVar[bool] = False  # whether it works on `BlockedModels`, a block of columns at a time
    by_coordinate: ClassVar[bool] = (
        True  # whether a rotation of the models changes its result: not by lengths and angles
    )

    def needed_models(self, bad: int) -> int:
        """How many models it needs if this many of them may be bad."""
        return 2 * bad + 1

    def init(self, parameters: Tensor, population: int) -> Slot:
        """The slot of the server before the first round, for a model (P,) and this many clients."""
        return {}

    def aggregate(self, models: Any, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        """The aggregated model (P,) of the clients' models (C, P), and the next slot."""
        return self._combine(models, round), slot

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        """The aggregated model of a rule without state; see `fedtilt.math`."""
        raise InputError(f"aggregator {self.label!r} has no aggregate(models, round, slot); write one")

    def combine_messages(self, messages: Tensor, round: ServerRound) -> Tensor:
        """One message (M,) of those of the clients (C, M): by the rule if it is robust, else their mean."""
        if not self.is_robust:
            return messages.mean(0)
        around = replace(round, received=torch.zeros_like(messages[0]), root=None, weights=None)
        return self.aggregate(messages, around, self.init(messages[0], round.population))[0]


@dataclass(frozen=True)
class Tolerant(Aggregator):
    """A rule that tolerates a share of bad clients."""

    is_robust: ClassVar[bool] = True
    function: ClassVar[Callable[..., Tensor]]  # of the models and the share
    bad_share: float = setting(0.1, "share of bad clients that it tolerates", ge=0, lt=0.5)

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        return type(self).function(models, round.bad_count(self.bad_share) / len(models))


@dataclass(frozen=True)
class Clipped(Aggregator):
    """A rule that clips updates to a length."""

    is_robust: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = False
    function: ClassVar[Callable[..., Tensor]]  # of the models, the received one and the radius
    radius: float | None = setting(
        None, "largest length of an update; default: the median length of the round", gt=0, example=1.0
    )

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        return type(self).function(models, round.received, self.radius)

    def combine_messages(self, messages: Tensor, round: ServerRound) -> Tensor:
        """With the median length: the radius is of updates."""
        return type(self).function(messages, torch.zeros_like(messages[0]), None)


def _steps(value: Any) -> tuple[int, float]:
    """The number of gradient steps, and their size."""
    try:
        count, size = (number(part, "steps") for part in value)
        if count.is_integer() and count >= 1 and 0 < size < math.inf:
            return int(count), size
    except (InputError, TypeError, ValueError):  # not numbers, not iterable, not two
        pass
    raise InputError(f"steps are (count ≥ 1, size > 0), got {value!r}")


@dataclass(frozen=True)
class Tilted(Aggregator):
    """The model that minimises 1/q · log of the mean of exp(q · distance): FedTilt's; q = 0 is the mean.

    Zhang et al., FedTilt: Towards Multi-Level Fairness-Preserving and Robust Federated Learning, arXiv 2503.13537.
    """

    rule: ClassVar[str] = "tilted"
    takes_weights: ClassVar[bool] = True
    q: float = setting(0.0, "tilt over the clients, by the distances to their models", inf=True)
    distance: str = setting("squared_l2", "between a client's model and the shared one", choices=DISTANCES)
    steps: tuple[int, float] | None = setting(
        None, "(E_2, eta_3): gradient steps of this size; default: the exact optimum",
        allowed="[count ≥ 1, size > 0]", example=[5, 0.1], convert=_steps,
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is None and not solvable(self.distance, self.q):
            raise InputError(
                f"distance {self.distance!r} with q = {self.q:g} has no direct solution; give steps = [count, size], "
                "or another distance or q"
            )

    @property
    def by_blocks(self) -> bool:  # type: ignore[override]
        """Not with gradient steps."""
        return self.steps is None

    @property
    def by_coordinate(self) -> bool:  # type: ignore[override]
        """With L1."""
        return self.distance == "l1"

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        return tilted(models, self.q, self.distance, weights=round.weights, start=round.received, steps=self.steps)


@dataclass(frozen=True)
class Mean(Aggregator):
    """The weighted mean of the models."""

    rule: ClassVar[str] = "mean"
    takes_weights: ClassVar[bool] = True
    by_blocks: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = False

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        return mean(models, round.weights)


@dataclass(frozen=True)
class Median(Aggregator):
    """The coordinate-wise median.

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, arXiv 1803.01498.
    """

    rule: ClassVar[str] = "median"
    is_robust: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True
    by_blocks: ClassVar[bool] = True

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        return robust.median(models, round.weights)


@dataclass(frozen=True)
class GeometricMedian(Aggregator):
    """The model with the least sum of L2 distances to the clients' models.

    Pillutla et al., Robust Aggregation for Federated Learning, IEEE TSP 2022, arXiv 1912.13445.
    """

    rule: ClassVar[str] = "geometric_median"
    is_robust: ClassVar[bool] = True
    takes_weights: ClassVar[bool] = True
    by_blocks: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = False

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        return robust.geometric_median(models, round.weights)


@dataclass(frozen=True)
class TrimmedMean(Tolerant):
    """The coordinate-wise mean without the share `bad_share` of the values at each end.

    Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018, arXiv 1803.01498.
    """

    rule: ClassVar[str] = "trimmed_mean"
    by_blocks: ClassVar[bool] = True
    function = staticmethod(robust.trimmed_mean)


@dataclass(frozen=True)
class Krum(Tolerant):
    """The model closest to its nearest neighbours.

    Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017, arXiv
    1703.02757.
    """

    rule: ClassVar[str] = "krum"
    by_blocks: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = False
    function = staticmethod(robust.krum)

    def needed_models(self, bad: int) -> int:
        """2f + 3."""
        return 2 * bad + 3


@dataclass(frozen=True)
class MultiKrum(Tolerant):
    """The mean of all models but those that Krum ranks last.

    Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017, arXiv
    1703.02757.
    """

    rule: ClassVar[str] = "multi_krum"
    by_coordinate: ClassVar[bool] = False
    function = staticmethod(robust.multi_krum)


@dataclass(frozen=True)
class Bulyan(Tolerant):
    """The coordinate-wise mean of the values nearest to the median, among the models that Krum ranks first.

    El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018, arXiv 1802.07927.
    """

    rule: ClassVar[str] = "bulyan"
    function = staticmethod(robust.bulyan)

    def needed_models(self, bad: int) -> int:
        """4f + 3."""
        return 4 * bad + 3


@dataclass(frozen=True)
class NormClipped(Clipped):
    """The mean of the updates, each clipped to a length.

    Sun et al., Can You Really Backdoor Federated Learning?, 2019, arXiv 1911.07963.
    """

    rule: ClassVar[str] = "norm_clipped"
    function = staticmethod(robust.norm_clipped)


@dataclass(frozen=True)
class CenteredClipping(Clipped):
    """Clipped means around a centre that moves: v ← v + mean of the clipped w_n − v.

    Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML 2021, arXiv 2012.10333.
    """

    rule: ClassVar[str] = "centered_clipping"
    function = staticmethod(robust.centered_clipping)


@dataclass(frozen=True)
class Rooted(Aggregator):
    """A rule that compares updates with that of a clean root set on the server."""

    is_robust: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = False
    root_samples: int = setting(100, "clean samples on the server, which trains on them in every round", ge=1)

    def combine_messages(self, messages: Tensor, round: ServerRound) -> Tensor:
        """Their geometric median: the root set gives no message to compare with."""
        return robust.geometric_median(messages)


@dataclass(frozen=True)
class FLTrust(Rooted):
    """The updates weighted by their agreement with that of a clean root set on the server.

    Cao et al., FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping, NDSS 2021, arXiv 2012.13995.
    """

    rule: ClassVar[str] = "fltrust"

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        assert round.root is not None
        return robust.fltrust(models, round.received, round.root)


@dataclass(frozen=True)
class RootSelected(Rooted):
    """The updates whose sum agrees best with that of a clean root set on the server, which replaces the others."""

    rule: ClassVar[str] = "root_selected"
    bad_share: float = setting(0.1, "share of bad clients that it tolerates", ge=0, lt=0.5)

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        assert round.root is not None
        return robust.root_selected(models, round.received, round.root, round.bad_count(self.bad_share) / len(models))


@dataclass(frozen=True)
class QFfl(Aggregator):
    """q-FedAvg, the solver of q-FFL: clients with a larger loss move the shared model more; 0 is the mean.

    Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, arXiv 1905.10497.
    """

    rule: ClassVar[str] = "q_ffl"
    needs_losses: ClassVar[bool] = True
    by_coordinate: ClassVar[bool] = False
    exponent: float = setting(1.0, "exponent of the clients' losses", ge=0)

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        assert round.losses is not None
        return fair.q_ffl(models, round.received, round.losses, self.exponent, round.lr)


@dataclass(frozen=True)
class FedMgda(Aggregator):
    """FedMGDA+: updates of one length, combined so that no client loses.

    Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022, arXiv 2006.11489.
    """

    rule: ClassVar[str] = "fedmgda"
    by_coordinate: ClassVar[bool] = False
    bound: float = setting(0.1, "how much the weights of clients may differ from equal ones", ge=0, le=1)
    length: float = setting(1.0, "length of the update of every client", gt=0)

    def _combine(self, models: Any, round: ServerRound) -> Tensor:
        return fair.fedmgda(models, round.received, self.bound, self.length)
