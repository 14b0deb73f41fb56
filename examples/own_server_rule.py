"""A method of your own, second way: how clients count on the server, with state of its own.

Weights by exponentiated gradient: a client's weight grows with its loss, and remembers earlier rounds. The state is a
slot of the server: it is checkpointed, resumed and deployed with the model. In a spec:

    [[methods]]
    name = "online"
    weighting = { rule = "own_server_rule:OnlineWeights", step = 0.5 }
"""

from dataclasses import dataclass
from statistics import mean
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


def main() -> None:
    """Print means over three seeds: with all clients in a round, those that the shared model serves worst gain."""
    methods = [ft.fedavg(), ft.fedavg(weighting=OnlineWeights(0.5), name="online")]
    recipe = {"rounds": 20, "participation": 1.0, "epochs": 2, "lr": 0.05, "eval_every": 20, "progress": False}
    results = []
    for seed in range(3):
        fed = ft.Federation.build(ft.data.load("digits"), clients=10, partition="dirichlet", alpha=0.3, seed=seed)
        results.append(ft.run(methods, fed, ft.models.mlp, seed=seed, **recipe))
    for name in ("fedavg", "online"):
        accuracy, worst = mean(r[name].accuracy for r in results), mean(r[name].metrics.worst for r in results)
        print(f"{name:6}  accuracy {accuracy:.1f} %, worst 10 % of clients {worst:.1f} %")


if __name__ == "__main__":
    main()
