"""Weightings: how clients count on the server."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedtilt.config.setting_fields import setting
from fedtilt.math.fair import afl_weights, tilted_weights
from fedtilt.methods.component import Component, ServerRound, Slot


@dataclass(frozen=True)
class Weighting(Component):
    """The weights of a round's clients; numbers of clients and its slot are on the CPU, wherever models train."""

    kind: ClassVar[str] = "weighting"
    needs_losses: ClassVar[bool] = False  # whether clients declare the loss of the model that they receive
    claims: ClassVar[str] = ""  # what it counts that clients say of themselves, so that attackers may say anything

    def init(self, population: int) -> Slot:
        """The slot of the server before the first round."""
        return {}

    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        """The weights (C,), None for equal ones, and the next slot."""
        return None, slot


@dataclass(frozen=True)
class Equal(Weighting):
    """All the same, as in the paper."""

    rule: ClassVar[str] = "equal"


@dataclass(frozen=True)
class BySamples(Weighting):
    """Their numbers of samples, or the sums of their weights."""

    rule: ClassVar[str] = "samples"
    claims: ClassVar[str] = "samples"

    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        """The numbers of samples."""
        return round.samples, slot


@dataclass(frozen=True)
class ByLoss(Weighting):
    """exp(tilt · loss) of the model that they receive: TERM over clients; 0 is equal, inf the worst client alone.

    Li et al., Tilted Empirical Risk Minimization, ICLR 2021, arXiv 2007.01162.
    """

    rule: ClassVar[str] = "loss"
    needs_losses: ClassVar[bool] = True
    tilt: float = setting(1.0, "tilt over the losses of the clients", inf=True)

    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        """The weights of the gradient of the tilted mean."""
        assert round.losses is not None
        return tilted_weights(round.losses, self.tilt), slot


@dataclass(frozen=True)
class Afl(Weighting):
    """Weights that rise with the loss: towards the best model for the worst mixture of clients.

    Mohri et al., Agnostic Federated Learning, ICML 2019, arXiv 1902.00146.
    """

    rule: ClassVar[str] = "afl"
    needs_losses: ClassVar[bool] = True
    lr: float = setting(0.01, "step of the clients' weights", gt=0)

    def init(self, population: int) -> Slot:
        """Equal weights of all clients."""
        return {"weights": torch.full((population,), 1 / population, dtype=torch.float64)}

    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        """A step along the losses, projected to the simplex."""
        assert round.losses is not None
        clients = list(round.clients)
        weights = afl_weights(slot["weights"], clients, round.losses, self.lr)
        return weights[clients], {"weights": weights}
