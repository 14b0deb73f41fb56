"""FedAS: the received body is aligned with the client's own features, and clients count by their Fisher information."""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.methods.component import ServerRound, Slot
from fedtilt.methods.features import (
    body_parameters,
    check_labels,
    class_count,
    evaluated,
    last_linear,
    members,
    with_features,
)
from fedtilt.methods.method import Method
from fedtilt.methods.presets import compose, preset
from fedtilt.methods.training import ClientBatches, ClientResult, Training
from fedtilt.methods.weightings import Weighting
from fedtilt.models import logits, trained_parameters

_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class FedAs(Training):
    """FedAS's client: a personal head, and a body that is first aligned with the features that it had before.

    The received body takes steps towards the mean features of every class by the client's last model, one pass over the
    data, and then all parameters train. It sends the body, and the trace of the Fisher information of its model, a sum
    over batches of the squared length of the gradient; the head stays.

    Yang et al., FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024.
    """

    rule: ClassVar[str] = "fedas"
    has_personal: ClassVar[bool] = True
    messages: ClassVar[str] = "bounded"  # the weighting `Fisher` needs them by client
    align_lr: float = setting(0.01, "learning rate of the alignment; 0: there is none", ge=0)

    def init_client(self, model: nn.Module) -> Slot:
        """The head, the mean features (C, F), and how many samples of each class they are of, by their weights."""
        body_parameters(model, self.rule)  # raises for a model without any
        head = last_linear(model, self.rule)
        own = {f"head.{name}": p.detach().clone() for name, p in head.named_parameters()}
        classes = class_count(model, self.rule)
        return {**own, "means": torch.zeros(classes, head.in_features), "counts": torch.zeros(classes)}

    def sends(self, model: nn.Module) -> Slot:
        """The trace of the Fisher information."""
        return {"fisher": torch.zeros(1)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        """Align, train, and measure."""
        check_labels(batches.y, self.rule)
        head = last_linear(model, self.rule)
        shared_head = {name: p.detach().clone() for name, p in head.named_parameters()}
        self._fill(head, {name: slot[f"head.{name}"] for name in shared_head})
        if self.align_lr and slot["counts"].any():
            self._align(model, batches, slot)
        step = batches.stepper(model.parameters())
        for batch in batches.steps:
            step(batch.mean(batches.loss(logits(model, batch.x).float(), batch.y)))
        sent = {"fisher": self._fisher(model, batches)}
        shared = copy.deepcopy(model)
        self._fill(last_linear(shared, self.rule), shared_head)
        own = {f"head.{name}": p.detach() for name, p in head.named_parameters()}
        return ClientResult(shared, personal=model, slot={**own, **self._means(model, batches)}, sends=sent)

    def _align(self, model: nn.Module, batches: ClientBatches, slot: Slot) -> None:
        """One pass: the sum over the classes of a batch of their mean squared distances to the mean features."""
        step = batches.stepper(body_parameters(model, self.rule), self.align_lr)
        for batch in self._pass(batches):
            features, _ = with_features(model, batch.x, self.rule)
            distances = (features - slot["means"][batch.y]).square().mean(1) * (slot["counts"][batch.y] > 0)
            of_class = members(batch.y, len(slot["counts"]), batch.weights)
            step((distances @ of_class / of_class.sum(0).clamp_min(_TINY)).sum())

    @staticmethod
    def _pass(batches: ClientBatches) -> Any:
        return batches.steps[: max(1, len(batches.steps) // batches.epochs)]

    def _means(self, model: nn.Module, batches: ClientBatches) -> dict[str, Tensor]:
        features, outputs = evaluated(model, batches.x, len(batches.y), self.rule)
        of_class = members(batches.y, outputs.shape[1], batches.weights)
        counts = of_class.sum(0)
        return {"means": of_class.T @ features / counts.clamp_min(_TINY)[:, None], "counts": counts}

    def _fisher(self, model: nn.Module, batches: ClientBatches) -> Tensor:
        net = copy.deepcopy(model).eval()
        parameters, trace = [*trained_parameters(net).values()], batches.y.new_zeros(1, dtype=torch.float32)
        for batch in self._pass(batches):
            loss = batch.mean(batches.loss(logits(net, batch.x).float(), batch.y))
            grads = torch.autograd.grad(loss, parameters, materialize_grads=True)
            trace = trace + torch.stack([grad.square().sum() for grad in grads]).sum()
        return trace

    @staticmethod
    def _fill(head: nn.Linear, values: Slot) -> None:
        with torch.no_grad():
            for name, p in head.named_parameters():
                p.copy_(values[name])


@dataclass(frozen=True)
class Fisher(Weighting):
    """The Fisher information that the training sends: a client that has trained little counts little.

    Yang et al., FedAS: Bridging Inconsistency in Personalized Federated Learning, CVPR 2024.
    """

    rule: ClassVar[str] = "fisher"
    claims: ClassVar[str] = "Fisher information"

    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor | None, Slot]:
        """The traces; equal weights where all are 0."""
        if "fisher" not in round.sent:
            raise InputError(f"weighting {self.rule!r} needs a training that sends 'fisher', such as 'fedas'")
        traces = round.sent["fisher"].reshape(len(round.clients)).double().cpu().clamp_min(0)
        return (traces if traces.any() else None), slot


@preset(FedAs)
def fedas(align_lr: float = 0.01, *, name: str = "fedas", **components: Any) -> Method:
    """FedAS: a shared body that clients align with their own features, own heads, weights by Fisher information."""
    components = {"weighting": "fisher"} | components
    return compose(name, components, training=FedAs(align_lr=align_lr))
