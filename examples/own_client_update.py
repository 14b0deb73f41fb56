"""A method of your own, third way: the whole update of a client in plain PyTorch.

Every client keeps the model that it trained last, and starts its next round between that and the shared one. What it
keeps is a slot of the client, which never leaves it. In a spec:

    [[methods]]
    name = "memory"
    training = { rule = "own_client_update:Memory", share = 0.3 }
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import fedtilt as ft
from fedtilt.methods import ClientBatches, ClientResult, Slot, Training, setting


@dataclass(frozen=True)
class Memory(Training):
    """A client starts at (1 − share) · received + share · its last model, and is evaluated on its own model."""

    has_personal: ClassVar[bool] = True
    share: float = setting(0.3, "of the last model of the client", ge=0, le=1)

    def init_client(self, model: nn.Module) -> Slot:
        return {"last": parameters_to_vector(model.parameters()).detach(), "rounds": torch.zeros(1)}

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        if slot["rounds"] > 0:
            start = torch.lerp(parameters_to_vector(model.parameters()), slot["last"], self.share)
            vector_to_parameters(start.detach(), model.parameters())
        step = batches.stepper(model.parameters())  # with the optimiser and the learning rate of the run
        for batch in batches.steps:
            step(batch.mean(batches.loss(model(batch.x), batch.y)))
        last = parameters_to_vector(model.parameters()).detach()
        return ClientResult(model, personal=model, slot={"last": last, "rounds": slot["rounds"] + 1})


if __name__ == "__main__":
    fed = ft.Federation.build(ft.data.load("digits"), clients=20, outliers="none", seed=0)
    methods = [ft.fedavg(), ft.Method(name="memory", training=Memory(0.5))]
    result = ft.run(methods, fed, ft.models.mlp, rounds=20, participation=0.5, epochs=2, lr=0.05, progress=False)
    for name in ("fedavg", "memory"):
        r = result[name]
        print(f"{name:6}  accuracy {r.accuracy:.1f} %, worst 10 % of clients {r.metrics.worst:.1f} %")
