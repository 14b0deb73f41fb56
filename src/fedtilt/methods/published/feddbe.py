"""FedDBE: every client adds a mean of its own to the features, so that the shared ones need no bias of any client."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.methods.component import ServerRound, Slot
from fedtilt.methods.features import check_features, evaluated, last_linear, with_features
from fedtilt.methods.method import Method
from fedtilt.methods.presets import compose, preset
from fedtilt.methods.training import ClientBatches, ClientResult, Training


@dataclass(frozen=True)
class FedDbe(Training):
    """FedDBE's client: the features z plus a personal mean, and a pull of the mean of z to one that all agree on.

        loss(head(z + own)) + kappa/2 · mean((running mean of z − agreed mean)²)

    The agreed mean is that of the clients of the first round after it, by their samples; in that round they train
    without either. The personal model has the personal mean in the bias of its last layer.

    Zhang et al., Eliminating Domain Bias for Federated Learning in Representation Space, NeurIPS 2023, arXiv
    2311.14975.
    """

    rule: ClassVar[str] = "feddbe"
    has_personal: ClassVar[bool] = True
    kappa: float = setting(50.0, "weight of the pull to the mean of features that all agree on", ge=0)
    momentum: float = setting(1.0, "share of a batch in the running mean", gt=0, le=1)

    def init_client(self, model: nn.Module) -> Slot:
        """The personal mean (F,)."""
        head = last_linear(model, self.rule)
        if head.bias is None:
            raise InputError(f"{self.rule!r} needs a last layer with a bias; it has none")
        return {"mean": torch.zeros(head.in_features)}

    def init_server(self, model: nn.Module, population: int) -> Slot:
        """The agreed mean, and whether there is one."""
        return {"mean": torch.zeros(last_linear(model, self.rule).in_features), "agreed": torch.zeros(1)}

    def sends(self, model: nn.Module) -> Slot:
        """The mean of a client's features (F,); after the first round, 0."""
        return self.init_client(model)

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        """All steps with the personal mean, which learns too."""
        own, is_agreed = nn.Parameter(slot["mean"]), bool(received["agreed"].item())
        step = batches.stepper([*model.parameters(), *([own] if is_agreed else [])])
        running = torch.zeros_like(slot["mean"])
        for batch in batches.steps:
            features, outputs = with_features(model, batch.x, self.rule, own if is_agreed else None)
            loss = batch.mean(batches.loss(outputs, batch.y))
            if is_agreed:
                running = (1 - self.momentum) * running.detach() + self.momentum * _mean(features, batch.weights)
                loss = loss + self.kappa / 2 * (running - received["mean"]).square().mean()
            step(loss)
        personal = copy.deepcopy(model)
        head = last_linear(personal, self.rule)
        with torch.no_grad():
            head.bias.add_(head.weight @ own)
        sent = torch.zeros_like(running) if is_agreed else self._all_features_mean(model, batches)
        return ClientResult(model, personal=personal, slot={"mean": own.detach()}, sends={"mean": sent})

    def _all_features_mean(self, model: nn.Module, batches: ClientBatches) -> Tensor:
        features, _ = evaluated(model, batches.x, len(batches.y), self.rule)
        check_features(features, self.rule)
        return _mean(features, batches.weights)

    def server_step(self, sent: Mapping[str, Tensor], round: ServerRound, slot: Slot) -> Slot:
        """The agreed mean, once."""
        if slot["agreed"].item():
            return slot
        means = sent["mean"]
        share = torch.ones(len(means)) if round.samples is None else round.samples
        share = (share / share.sum()).to(means)
        return {"mean": (share @ means).to(slot["mean"]), "agreed": torch.ones_like(slot["agreed"])}


def _mean(features: Tensor, weights: Tensor | None) -> Tensor:
    """The mean (F,) of the features of samples (n, F) with these weights."""
    return features.mean(0) if weights is None else weights @ features / weights.sum()


@preset(FedDbe)
def feddbe(kappa: float = 50.0, momentum: float = 1.0, *, name: str = "feddbe", **components: Any) -> Method:
    """FedDBE: FedAvg whose clients keep the bias of their domain in a personal mean that is added to the features."""
    return compose(name, components, training=FedDbe(kappa=kappa, momentum=momentum))
