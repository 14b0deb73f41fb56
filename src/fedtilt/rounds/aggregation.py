"""The aggregation rule of a method, applied to the models of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.math.aggregate import AGGREGATORS, PRE_AGGREGATORS, RuleInputs, tilted
from fedtilt.math.client_models import ClientModels
from fedtilt.math.fair import afl_weights, tilted_weights
from fedtilt.methods import Method
from fedtilt.methods.bad_share import tolerated_clients
from fedtilt.parts import Tensors
from fedtilt.rounds.client_update import ClientUpdate


def losses_of(method: Method, updates: Mapping[int, ClientUpdate]) -> Tensor | None:
    """The losses of the received model that clients declare, (C,); None if the method needs none."""
    if not method.needs_losses:
        return None
    return torch.tensor([update.declared["loss"] for update in updates.values()], dtype=torch.float64)


def weights_of_clients(
    method: Method, server: Tensors, updates: Mapping[int, ClientUpdate]
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The weights of a round's clients, (C,), None for equal ones; and what the server keeps of them."""
    losses = losses_of(method, updates)
    if method.weighting == "samples":
        return torch.tensor([update.samples for update in updates.values()], dtype=torch.float64), {}
    if method.weighting == "loss":
        assert losses is not None
        return tilted_weights(losses, method.client_tilt), {}
    if method.weighting == "afl":
        assert losses is not None
        clients = list(updates)
        weights = afl_weights(server["client_weights"], clients, losses, method.weights_lr)
        return weights[clients], {"client_weights": weights}
    return None, {}


def works_by_blocks(method: Method) -> bool:
    """Whether the rule of a method works on models that come in blocks of columns."""
    return method.steps is None if method.aggregator == "tilted" else AGGREGATORS[method.aggregator].by_blocks


@dataclass(frozen=True, kw_only=True)
class RoundRule:
    """The aggregation rule of a method in one round, with all that it uses besides the clients' models."""

    method: Method
    bad: int  # how many of the models may be bad
    given: RuleInputs

    @classmethod
    def of(
        cls,
        method: Method,
        clients: int,
        received: Tensor,
        weights: Tensor | None = None,
        *,
        selected: int,
        seed: int,
        round: int,
        root: Tensor | None = None,
        losses: Tensor | None = None,
        lr: float = 1.0,
    ) -> Self:
        """The rule for this round.

        Args:
            method: the rule and its settings
            clients: how many models there are
            received: the model that the clients received, (P,)
            weights: the clients' weights, (C,); None: equal
            selected: how many clients were asked for a model
            seed: the seed of the run, for the order of buckets
            round: the number of the round
            root: with fltrust, the model that the server trained on its root set
            losses: with q_ffl, the clients' losses of the received model, (C,)
            lr: the clients' learning rate
        """
        order = None
        if "bucketing" in method.pre_aggregators:
            order = seeds.permutations(seeds.key(seed, "bucketing", round=round), 1, clients)[0].tolist()
        given = RuleInputs(
            received, weights, 0.0, method.clip_radius, method.bucket_size, order, root, losses, method.q, lr,
            method.weights_bound, method.update_length,
        )  # fmt: skip
        return cls(method=method, bad=tolerated_clients(method, clients, selected), given=given)

    @property
    def is_by_coordinate(self) -> bool:
        """Whether the rule, after the steps before it, depends on more than lengths and angles."""
        if self.method.aggregator == "tilted":
            return self.method.distance == "l1"
        return AGGREGATORS[self.method.aggregator].by_coordinate

    def relative_to(self, start: Tensor, root: Tensor | None = None) -> Self:
        """The same rule for models in other coordinates, in which these are the received and the root model."""
        return replace(self, given=self.given._replace(start=start, root=root))

    def aggregate(self, models: ClientModels) -> Tensor:
        """The aggregated model (P,) of the clients' models (C, P), in the order of client numbers."""
        models, rule = self.pre_aggregate(models)
        return rule.apply(models)

    def pre_aggregate(self, models: ClientModels) -> tuple[ClientModels, Self]:
        """The models after the steps before the rule, (C or fewer, P), and the rule for them."""
        given = self.given
        for name in self.method.pre_aggregators:
            models, given = PRE_AGGREGATORS[name].apply(models, self._inputs(given, models))
        return models, replace(self, given=given)

    def apply(self, models: ClientModels) -> Tensor:
        """The aggregated model (P,) of models after the steps before the rule."""
        m, start, weights = self.method, self.given.start, self.given.weights
        if weights is not None and not weights.any():  # AFL gives all weight to clients that take no part
            return start.clone()
        if m.aggregator == "tilted":
            return tilted(models, m.q, m.distance, weights=weights, start=start, steps=m.steps)
        return AGGREGATORS[m.aggregator].apply(models, self._inputs(self.given, models))

    def _inputs(self, given: RuleInputs, models: ClientModels) -> RuleInputs:
        return given._replace(bad_share=self.bad / len(models))
