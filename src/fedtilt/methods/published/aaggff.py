"""AAggFF: the server decides the weights of clients online, from the losses of the model that they receive."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedtilt.config.setting_fields import setting
from fedtilt.math.fair import shortest_combination
from fedtilt.methods.component import ServerRound, Slot
from fedtilt.methods.method import Method
from fedtilt.methods.presets import compose, preset
from fedtilt.methods.weightings import Weighting

# distributions by which a loss divided by the mean loss becomes a response in [0, 1]
RESPONSES: dict[str, Callable[[Tensor], Tensor]] = {
    "weibull": lambda r: 1 - torch.exp(-r.square()),
    "exponential": lambda r: 1 - torch.exp(-r),
    "frechet": lambda r: torch.exp(-1 / r),
    "normal": lambda r: torch.special.ndtr(r - 1),
    "gumbel": lambda r: torch.exp(-torch.exp(1 - r)),
    "logistic": lambda r: torch.sigmoid(r - 1),
}


@dataclass(frozen=True)
class AAggFF(Weighting):
    """Weights p that would have made Σ log(1 + ⟨p, responses⟩) of the rounds so far large: follow the leader.

    A response is the loss of a client over the mean loss of the round, by a distribution function in [0, 1]. Among
    many clients, of which few take part ("device"), the responses of the others are estimated, and p is
    ∝ exp(−√(log N / (t + 1)) / (2 + C/N) · Σ gradients). Among few ("silo"), p is an online Newton step, the minimum of

        Σ ⟨g, p⟩ + 2 · ‖p‖² + N/8 · Σ ⟨g, p − p_then⟩².

    Hahn et al., Pursuing Overall Welfare in Federated Learning through Sequential Decision Making, ICML 2024, arXiv
    2405.20821.
    """

    rule: ClassVar[str] = "aaggff"
    needs_losses: ClassVar[bool] = True
    scale: str = setting(
        "device",
        "'device' if few of many clients take part in a round, 'silo' for few clients",
        choices=("device", "silo"),
    )
    response: str = setting("weibull", "distribution function of the losses", choices=RESPONSES)

    def init(self, population: int) -> Slot:
        """Equal weights, no gradients; with "silo", the curvature (N, N) too."""
        zero = torch.zeros(population, dtype=torch.float64)
        curvature = {"curvature": torch.zeros(population, population).double()} if self.scale == "silo" else {}
        return {"weights": zero + 1 / population, "gradients": zero, **curvature}

    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        """Those of the round's clients after a step with their losses."""
        assert round.losses is not None
        clients, losses = list(round.clients), round.losses.double().cpu()
        responses = RESPONSES[self.response](losses / losses.mean().clamp_min(torch.finfo(torch.float64).tiny))
        slot = (self._newton if self.scale == "silo" else self._linear)(responses, clients, round, slot)
        return slot["weights"][clients], slot

    @staticmethod
    def _linear(responses: Tensor, clients: list[int], round: ServerRound, slot: Slot) -> Slot:
        """A follow-the-leader step with a linear estimate of the gradient (Algorithm 3)."""
        p, share = slot["weights"], len(clients) / round.population
        bounded = responses * share
        typical = bounded.mean()
        estimate = torch.full_like(p, float(typical))
        estimate[clients] += (bounded - typical) / share  # doubly robust: right on average
        level = 1 + typical
        gradients = slot["gradients"] - estimate / level + typical * (p @ (estimate - typical)) / level**2
        rate = math.sqrt(math.log(round.population) / (round.round + 1)) / (2 + share)
        return {"weights": torch.softmax(-rate * gradients, 0), "gradients": gradients}

    @staticmethod
    def _newton(responses: Tensor, clients: list[int], round: ServerRound, slot: Slot) -> Slot:
        """An online Newton step (Algorithm 2), with responses ≤ 1/N, so alpha = 4 and beta = N/4."""
        p, count = slot["weights"], round.population
        bounded = torch.zeros_like(p)
        bounded[clients] = responses / count
        g = -bounded / (1 + p @ bounded)
        beta = count / 4
        gradients = slot["gradients"] + g - beta * (g @ p) * g
        curvature = slot["curvature"] + g.outer(g)
        # on the simplex ⟨c, p⟩ = pᵀ · (c1ᵀ + 1cᵀ)/2 · p, and a multiple of 11ᵀ is a constant that makes it convex
        matrix = (4 * torch.eye(count, dtype=p.dtype) + beta * curvature) / 2
        matrix = matrix + (gradients[:, None] + gradients) / 2 + gradients.square().sum() / 4
        return {"weights": shortest_combination(matrix), "gradients": gradients, "curvature": curvature}


@preset(AAggFF)
def aaggff(scale: str = "device", response: str = "weibull", *, name: str = "aaggff", **components: Any) -> Method:
    """AAggFF: FedAvg with client weights that the server learns online, to leave no client behind."""
    return compose(name, components, weighting=AAggFF(scale=scale, response=response))
