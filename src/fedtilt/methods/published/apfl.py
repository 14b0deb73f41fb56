"""APFL: every client mixes a model of its own with the shared one, and learns how much of each."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedtilt.config.setting_fields import setting
from fedtilt.methods.component import Slot
from fedtilt.methods.method import Method
from fedtilt.methods.presets import compose, preset
from fedtilt.methods.training import ClientBatch, ClientBatches, ClientResult, Training
from fedtilt.models import logits, parameters_to_vector, trained_parameters, with_weights


@dataclass(frozen=True)
class Apfl(Training):
    """APFL's client: w for all, v of its own, and the mixture alpha · v + (1 − alpha) · w, which is its personal model.

        w ← w − lr · ∇f(w),   v ← v − lr · alpha · ∇f(mixture),   alpha ← alpha − lr · ⟨v − w, ∇f(mixture)⟩

    alpha moves once a round, before the steps, and stays in [0, 1]. In its first round a client has v = w.

    Deng et al., Adaptive Personalized Federated Learning, 2020, arXiv 2003.13461.
    """

    rule: ClassVar[str] = "apfl"
    has_personal: ClassVar[bool] = True
    alpha: float = setting(
        0.5, "share of a client's own model in its first round; 0 is FedAvg, 1 local training", ge=0, le=1
    )
    adaptive: bool = setting(True, "whether clients learn their shares", allowed="true or false")

    def init_client(self, model: nn.Module) -> Slot:
        """V, alpha, and whether the client has trained."""
        own = torch.zeros_like(parameters_to_vector(model))
        return {"own": own, "alpha": torch.full((1,), self.alpha), "trained": torch.zeros(1)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        """Steps of both models on every batch."""
        own = with_weights(model, slot["own"]) if slot["trained"].item() else copy.deepcopy(model)
        mixed, alpha = copy.deepcopy(model), slot["alpha"].squeeze()
        if self.adaptive:
            self._mix(mixed, own, model, alpha)
            gradient = torch.cat([g.reshape(-1) for g in self._gradients(mixed, batches, batches.steps[0])])
            apart = parameters_to_vector(own) - parameters_to_vector(model)
            alpha = (alpha - batches.lr * (apart @ gradient)).clamp(0, 1)
        step, own_step = batches.stepper(model.parameters()), batches.stepper(own.parameters())
        for batch in batches.steps:
            self._mix(mixed, own, model, alpha)
            gradients = self._gradients(mixed, batches, batch)
            step(batch.mean(batches.loss(logits(model, batch.x).float(), batch.y)))
            pairs = zip(trained_parameters(own).values(), gradients, strict=True)
            own_step(torch.stack([(p * g).sum() for p, g in pairs]).sum() * alpha)  # its gradient is alpha · g
        self._mix(mixed, own, model, alpha)
        kept = {"own": parameters_to_vector(own), "alpha": alpha[None], "trained": torch.ones_like(slot["trained"])}
        return ClientResult(model, personal=mixed, slot=kept)

    @staticmethod
    def _gradients(mixed: nn.Module, batches: ClientBatches, batch: ClientBatch) -> tuple[Tensor, ...]:
        loss = batch.mean(batches.loss(logits(mixed, batch.x).float(), batch.y))
        return torch.autograd.grad(loss, [*trained_parameters(mixed).values()], materialize_grads=True)

    @staticmethod
    def _mix(mixed: nn.Module, own: nn.Module, shared: nn.Module, alpha: Tensor) -> None:
        """Set the parameters of the mixture."""
        parts = (trained_parameters(net).values() for net in (mixed, own, shared))
        with torch.no_grad():
            for m, v, w in zip(*parts, strict=True):
                m.copy_(alpha * v + (1 - alpha) * w)


@preset(Apfl)
def apfl(alpha: float = 0.5, adaptive: bool = True, *, name: str = "apfl", **components: Any) -> Method:
    """APFL: FedAvg, and a personal mixture of the shared model and one of the client's own, with a learned share."""
    return compose(name, components, training=Apfl(alpha=alpha, adaptive=adaptive))
