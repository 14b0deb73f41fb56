"""A component of the user's own."""

from dataclasses import dataclass

import torch
from torch import nn

from fedtilt.methods import ClientBatches, ClientResult, Training
from fedtilt.methods.component import Slot


@dataclass(frozen=True)
class OneStep(Training):
    """One step of gradient descent on all samples of a client."""

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        """One step."""
        loss = batches.loss(model(batches.x), batches.y).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= batches.lr * gradient
        return ClientResult(model)
