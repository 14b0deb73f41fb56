"""MOON: features that are nearer to those of the received model than to those of the client's last model."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt.config.setting_fields import setting
from fedtilt.methods.component import Slot
from fedtilt.methods.features import last_linear, with_features
from fedtilt.methods.method import Method
from fedtilt.methods.presets import compose, preset
from fedtilt.methods.training import ClientBatches, ClientResult, Training
from fedtilt.models import parameters_to_vector, with_weights
from fedtilt.parts import buffers_to_vector, vector_to_buffers


@dataclass(frozen=True)
class Moon(Training):
    """MOON's client: its loss, and a contrast of its features z with those of the received and of its last model.

        loss − mu · log(exp(cos(z, z_received) / t) / (exp(cos(z, z_received) / t) + exp(cos(z, z_last) / t)))

    In its first round a client has no last model, and there is no contrast.

    Li et al., Model-Contrastive Federated Learning, CVPR 2021, arXiv 2103.16257.
    """

    rule: ClassVar[str] = "moon"
    mu: float = setting(1.0, "weight of the contrast; 0 is FedAvg", ge=0)
    temperature: float = setting(0.5, "temperature of the contrast", gt=0)

    def init_client(self, model: nn.Module) -> Slot:
        """The last model, and whether there is one."""
        last_linear(model, self.rule)
        return {**_state(model), "trained": torch.zeros(1)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        """All steps with the contrast."""
        others = [copy.deepcopy(model), _model(model, slot)] if self.mu and slot["trained"].item() else []
        for other in others:
            other.eval()
        step = batches.stepper(model.parameters())
        for batch in batches.steps:
            features, outputs = with_features(model, batch.x, self.rule)
            losses = batches.loss(outputs, batch.y)
            if others:
                with torch.no_grad():
                    towards = [with_features(other, batch.x, self.rule)[0] for other in others]
                losses = losses + self.mu * self._contrast(features, towards)
            step(batch.mean(losses))
        return ClientResult(model, slot={**_state(model), "trained": torch.ones_like(slot["trained"])})

    def _contrast(self, features: Tensor, towards: list[Tensor]) -> Tensor:
        """Of every sample, (n,)."""
        flat = features.flatten(1)
        likeness = torch.stack([F.cosine_similarity(flat, other.flatten(1)) for other in towards], dim=1)
        return -F.log_softmax(likeness / self.temperature, dim=1)[:, 0]


def _state(model: nn.Module) -> dict[str, Tensor]:
    names = [name for name, _ in model.named_buffers()]
    buffers = {"buffers": buffers_to_vector(model, names)} if names else {}
    return {"parameters": parameters_to_vector(model), **buffers}


def _model(like: nn.Module, slot: Slot) -> nn.Module:
    names = [name for name, _ in like.named_buffers()]
    buffers = vector_to_buffers(like, names, slot["buffers"]) if names else {}
    return with_weights(like, slot["parameters"], buffers)


@preset(Moon)
def moon(mu: float = 1.0, temperature: float = 0.5, *, name: str = "moon", **components: Any) -> Method:
    """MOON: FedAvg whose clients keep their features near those of the received model, and off those of their last."""
    return compose(name, components, training=Moon(mu=mu, temperature=temperature))
