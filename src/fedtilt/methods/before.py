"""Steps before the aggregator, (C, P) → (M, P): clipping, nearest-neighbour mixing, bucketing."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedtilt import seeds
from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.math import mixing
from fedtilt.methods.component import Component, ServerRound, Slot


class Prepared(NamedTuple):
    """Models for the next step or the aggregator."""

    models: Tensor  # (M, P)
    mixing: Tensor | None  # (M, C): every model is this mean of the clients'; None: row n is still client n
    slot: Slot


@dataclass(frozen=True)
class Before(Component):
    """What happens to the models of a round before the aggregator; a subclass has `apply`."""

    kind: ClassVar[str] = "before"
    takes_weights: ClassVar[bool] = False  # whether the weights of clients still belong to its models
    by_coordinate: ClassVar[bool] = True  # whether a rotation of the models changes its result

    def needed_models(self, models: int) -> int:
        """How many clients it needs to give this many models of which no more are bad."""
        return models

    def init(self, parameters: Tensor, population: int) -> Slot:
        """The slot of the server before the first round, for a model (P,) and this many clients."""
        return {}

    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        """The models after this step."""
        raise InputError(f"the step {self.label!r} has no apply(models, round, slot); write one")


@dataclass(frozen=True)
class Clip(Before):
    """Every update clipped to a length."""

    rule: ClassVar[str] = "clipping"
    by_coordinate: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = True
    radius: float | None = setting(
        None, "largest length of an update; default: the median length of the round", gt=0, example=1.0
    )

    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        """See `fedtilt.math.mixing.clipping`."""
        return Prepared(mixing.clipping(models, round.received, self.radius), None, slot)


@dataclass(frozen=True)
class NNM(Before):
    """Nearest-neighbour mixing: every model becomes the mean of those nearest to it.

    Allouah et al., Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity, AISTATS 2023, arXiv
    2302.01772.
    """

    rule: ClassVar[str] = "nnm"
    by_coordinate: ClassVar[bool] = False
    bad_share: float = setting(0.1, "share of bad clients that it tolerates", ge=0, lt=0.5)

    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        """See `fedtilt.math.mixing.nearest_neighbor_mixing`."""
        weights = mixing.neighbor_weights(models, round.bad_count(self.bad_share) / len(models))
        return Prepared(mixing.mix(models, weights), weights, slot)


@dataclass(frozen=True)
class Bucketing(Before):
    """The means of a few models each, taken in a random order.

    Karimireddy et al., Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022, arXiv 2006.09365.
    """

    rule: ClassVar[str] = "bucketing"
    by_coordinate: ClassVar[bool] = False
    size: int = setting(2, "models in a bucket", ge=1)

    def needed_models(self, models: int) -> int:
        """One bad client makes one bucket bad."""
        return (models - 1) * self.size + 1

    def apply(self, models: Tensor, round: ServerRound, slot: Slot) -> Prepared:
        """See `fedtilt.math.mixing.bucketing`."""
        order = seeds.permutations(seeds.key(round.seed, "bucketing", round=round.round), 1, len(models))[0].tolist()
        weights = mixing.bucket_weights(len(models), self.size, order)
        return Prepared(mixing.mix(models, weights), weights, slot)
