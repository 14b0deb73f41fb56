"""FedALA: every client mixes its last model and the received one, element by element, before it trains."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedtilt.config.setting_fields import setting
from fedtilt.data.inputs import take
from fedtilt.methods.component import Slot
from fedtilt.methods.method import Method
from fedtilt.methods.presets import compose, preset
from fedtilt.methods.training import ClientBatches, ClientResult, Training, mean
from fedtilt.models import logits, trained_parameters

_PAST_LOSSES, _MOST_EPOCHS = 10, 100  # until the mixing has converged, the first time


@dataclass(frozen=True)
class FedAla(Training):
    """FedALA's client: its upper layers start at last + weights · (received − last), and the weights in [0, 1] learn.

        weights ← clip(weights − rate · ∇f · (received − last), 0, 1)

    They start at 1 and learn on a random share of the client's samples: the first time until the loss is steady, then
    once over the samples a round. The trained model is the personal one too.

    Zhang et al., FedALA: Adaptive Local Aggregation for Personalized Federated Learning, AAAI 2023, arXiv 2212.01197.
    """

    rule: ClassVar[str] = "fedala"
    has_personal: ClassVar[bool] = True
    layers: int = setting(
        1, "last layers that are mixed, the others start at the received ones; 0: none, which is FedAvg", ge=0
    )
    share: float = setting(0.8, "share of the samples that the weights of the mixture learn from", gt=0, le=1)
    rate: float = setting(1.0, "step of the weights of the mixture", gt=0)
    steady: float = setting(0.1, "standard deviation of the last ten losses at which they have converged", gt=0)

    def init_client(self, model: nn.Module) -> Slot:
        """The upper layers of the last model, their weights, and in how many rounds the client has trained."""
        last = _flat(self._upper(model))
        return {"last": last, "weights": torch.ones_like(last), "rounds": torch.zeros(1)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        """Mix, then train."""
        weights = slot["weights"]
        if self.layers and slot["rounds"].item():
            weights = self._learn(model, batches, slot)
        step = batches.stepper(model.parameters())
        for batch in batches.steps:
            step(batch.mean(batches.loss(logits(model, batch.x).float(), batch.y)))
        last = _flat(self._upper(model)) if self.layers else slot["last"]
        kept = {"last": last, "weights": weights, "rounds": slot["rounds"] + 1}
        return ClientResult(model, personal=model, slot=kept)

    def _learn(self, model: nn.Module, batches: ClientBatches, slot: Slot) -> Tensor:
        """The weights; the upper layers of the model become the mixture."""
        count, size = len(batches.y), len(batches.steps[0].y)
        # two samples or more at once: BatchNorm has no statistics of one
        rows = torch.randperm(count)[: max(2, int(self.share * count))].to(batches.y.device)
        parts = [*rows.split(size)]
        if 1 < size and len(parts[-1]) == 1 < len(parts):
            parts[-2:] = [torch.cat(parts[-2:])]
        last, weights, losses = slot["last"], slot["weights"], list[float]()
        apart = _flat(self._upper(model)) - last
        mixed = copy.deepcopy(model)
        upper = self._upper(mixed)
        _fill(upper, last + apart * weights)
        for _ in range(1 if slot["rounds"].item() > 1 else _MOST_EPOCHS):
            for part in parts:
                sample_weights = None if batches.weights is None else batches.weights[part]
                outputs = logits(mixed, take(batches.x, part)).float()
                loss = mean(batches.loss(outputs, batches.y[part]), sample_weights)
                gradient = _flat(torch.autograd.grad(loss, upper, materialize_grads=True))
                weights = (weights - self.rate * gradient * apart).clamp(0, 1)
                _fill(upper, last + apart * weights)
            losses.append(loss.item())
            if len(losses) > _PAST_LOSSES and torch.tensor(losses[-_PAST_LOSSES:]).std(correction=0) < self.steady:
                break
        _fill(self._upper(model), last + apart * weights)
        return weights

    def _upper(self, model: nn.Module) -> list[nn.Parameter]:
        """The trained parameters of the last layers."""
        trained = trained_parameters(model)
        layers = list(dict.fromkeys(name.rpartition(".")[0] for name in trained))
        chosen = layers[len(layers) - self.layers :] if self.layers < len(layers) else layers
        return [p for name, p in trained.items() if name.rpartition(".")[0] in chosen]


def _flat(tensors: Any) -> Tensor:
    parts = [tensor.detach().reshape(-1) for tensor in tensors]
    return torch.cat(parts) if parts else torch.zeros(0)


def _fill(parameters: list[nn.Parameter], values: Tensor) -> None:
    with torch.no_grad():
        for p, piece in zip(parameters, values.split([p.numel() for p in parameters]), strict=True):
            p.copy_(piece.view_as(p))


@preset(FedAla)
def fedala(
    layers: int = 1, share: float = 0.8, rate: float = 1.0, *, name: str = "fedala", **components: Any
) -> Method:
    """FedALA: clients start each round at a learned mixture of their last model and the received one, by element."""
    return compose(name, components, training=FedAla(layers=layers, share=share, rate=rate))
