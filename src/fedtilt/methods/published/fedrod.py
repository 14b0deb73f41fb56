"""FedRoD: a generic head that learns a balanced loss, and a personal head that learns the rest on top of it."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedtilt.config.setting_fields import setting
from fedtilt.methods.component import Slot
from fedtilt.methods.features import check_labels, last_linear, members, with_second_head
from fedtilt.methods.method import Method
from fedtilt.methods.presets import compose, preset
from fedtilt.methods.training import ClientBatches, ClientResult, Training


@dataclass(frozen=True)
class FedRod(Training):
    """FedRoD's client: body and generic head learn by balanced softmax, the personal head by the loss of both heads.

    Balanced softmax adds gamma · log(samples of a class) to the outputs. The personal head learns on features and
    generic outputs that stay as they are; it starts at 0, so the personal model is the body with the sum of both heads.

    Chen, Chao, On Bridging Generic and Personalized Federated Learning for Image Classification, ICLR 2022, arXiv
    2107.00778.
    """

    rule: ClassVar[str] = "fedrod"
    has_personal: ClassVar[bool] = True
    gamma: float = setting(1.0, "exponent of the numbers of samples in the balanced loss; 0: the plain loss", ge=0)

    def init_client(self, model: nn.Module) -> Slot:
        """The personal head."""
        return {name: torch.zeros_like(p.detach()) for name, p in last_linear(model, self.rule).named_parameters()}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        """Both heads on every batch."""
        check_labels(batches.y, self.rule)
        prior = self._prior(batches)
        own = {name: nn.Parameter(tensor) for name, tensor in slot.items()}
        step = batches.stepper([*model.parameters(), *own.values()])
        for batch in batches.steps:
            outputs, both = with_second_head(model, batch.x, self.rule, own["weight"], own.get("bias"))
            step(batch.mean(batches.loss(outputs + prior, batch.y) + batches.loss(both, batch.y)))
        personal = copy.deepcopy(model)
        with torch.no_grad():
            for name, p in last_linear(personal, self.rule).named_parameters():
                p.add_(own[name])
        return ClientResult(model, personal=personal, slot={name: p.detach() for name, p in own.items()})

    def _prior(self, batches: ClientBatches) -> Tensor:
        """Gamma · log(samples of each class); of a class without any, a very low number."""
        counts = members(batches.y, batches.classes, batches.weights).sum(0)
        return self.gamma * counts.clamp_min(torch.finfo(counts.dtype).tiny).log()


@preset(FedRod)
def fedrod(gamma: float = 1.0, *, name: str = "fedrod", **components: Any) -> Method:
    """FedRoD: one model that is good for all, by a balanced loss, and a personal head on top that is good for one."""
    return compose(name, components, training=FedRod(gamma=gamma))
