"""A method of your own, second way: how clients count on the server, with state of its own.

Weights by exponentiated gradient: a client's weight grows with its loss, and remembers earlier rounds. The state is a
slot of the server: it is checkpointed, resumed and deployed with the model. In a spec:

    [[methods]]
    name = "online"
    weighting = { rule = "own_server_rule:OnlineWeights", step = 0.5 }
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.methods import ServerRound, Slot, Weighting, setting


@dataclass(frozen=True)
class OnlineWeights(Weighting):
    """Weights that follow the clients' losses, w_n ∝ exp(step · Σ over rounds of loss_n)."""

    needs_losses: ClassVar[bool] = True  # clients declare the loss of the model that they receive
    step: float = setting(0.1, "how much one round changes the weights", gt=0)

    def init(self, population: int) -> Slot:
        return {"regret": torch.zeros(population, dtype=torch.float64)}

    def weights(self, round: ServerRound, slot: Slot) -> tuple[Tensor, Slot]:
        regret = slot["regret"].clone()
        regret[round.clients] += round.losses - round.losses.mean()
        return torch.softmax(self.step * regret[round.clients], 0), {"regret": regret}


if __name__ == "__main__":
    fed = ft.Federation.build(ft.data.load("digits"), clients=20, outliers="none", seed=0)
    methods = [ft.fedavg(), ft.fedavg(weighting=OnlineWeights(0.5), name="online")]
    result = ft.run(methods, fed, ft.models.mlp, rounds=20, participation=0.5, epochs=2, lr=0.05, progress=False)
    for name in ("fedavg", "online"):
        r = result[name]
        print(f"{name:6}  accuracy {r.accuracy:.1f} %, worst 10 % of clients {r.metrics.worst:.1f} %")
