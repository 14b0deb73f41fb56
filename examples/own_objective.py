"""A method of your own, first way: what a client minimises, from the losses of a batch.

CVaR (Rockafellar and Uryasev, 2000): the mean of the worst share of a batch. Run it here, or name it in a spec:

    [[methods]]
    name = "cvar"
    objective = { rule = "own_objective:CVaR", share = 0.3 }
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.methods import Objective, setting


@dataclass(frozen=True)
class CVaR(Objective):
    """The mean of the worst share of the losses."""

    share: float = setting(0.5, "the share of the samples that count", gt=0, le=1)

    def __call__(self, losses: Tensor, groups: Tensor, weights: Tensor) -> Tensor:
        # the k largest losses of the samples that count; the value itself is not looked at, so that it can be stacked
        ranked = torch.where(weights > 0, losses, -torch.inf).argsort(descending=True)
        rank = torch.empty_like(ranked).scatter(0, ranked, torch.arange(len(losses), device=losses.device))
        worst = (rank < (self.share * weights.sum()).ceil()) & (weights > 0)
        return torch.where(worst, losses, 0.0).sum() / worst.sum()


if __name__ == "__main__":
    fed = ft.Federation.build(ft.data.load("digits"), clients=20, outliers="none", seed=0)
    methods = [ft.fedavg(), ft.fedavg(objective=CVaR(0.3), name="cvar")]
    result = ft.run(methods, fed, ft.models.mlp, rounds=20, participation=0.5, epochs=2, lr=0.05, progress=False)
    for name in ("fedavg", "cvar"):
        r = result[name]
        print(f"{name:6}  accuracy {r.accuracy:.1f} %, worst 10 % of clients {r.metrics.worst:.1f} %")
