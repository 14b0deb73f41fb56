"""Federated training written out with PyTorch alone, to compare the simulator with."""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import seeds

BATCH = 10
Loss = Callable[[Tensor, Tensor], Tensor]  # (outputs, labels) → one number
MakeOptimizer = Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]


def federation(clients: int = 3, samples: int = 40) -> ft.Federation:
    """Clients with the same number of samples, so that all batches have ten."""
    return ft.Federation.build(ft.data.load("digits"), clients=clients, partition="iid", max_train=samples, seed=1)


def initial(fed: ft.Federation, source: Callable[..., nn.Module]) -> nn.Module:
    """The model that a run starts from."""
    return ft.models.build(source, fed.input_shape, fed.classes, seeds.key(0, "init"))


def batches(
    fed: ft.Federation, client: int, number: int, epochs: int, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of a client in a round, in the order of the simulator."""
    x, y = fed.train(client, seed=seed, round=number)
    for order in seeds.permutations(seeds.key(seed, "order", round=number, client=client), epochs, len(y)):
        for rows in order.split(BATCH):
            yield x[rows], y[rows]


def train(
    net: nn.Module, data: Iterator[tuple[Tensor, Tensor]], make_optimizer: MakeOptimizer, *,
    loss: Loss = F.cross_entropy, clip_norm: float | None = None, prox: float = 0.0,
    anchor: Sequence[Tensor] = (),
) -> None:  # fmt: skip
    """Train the parameters of a module that require gradients, in place."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    optimizer = make_optimizer(parameters)
    for x, y in data:
        optimizer.zero_grad()
        total = loss(net(x), y)
        if prox:
            total = total + prox / 2 * sum((p - a).square().sum() for p, a in zip(parameters, anchor, strict=True))
        total.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()


def mean(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The average of state dicts."""
    return {name: torch.stack([state[name].float() for state in states]).mean(0) for name in states[0]}


def last_round(methods: Sequence[ft.Method], fed: ft.Federation, model: object, **settings: object) -> ft.Round:
    """The last round of a simulation with these settings, by the autograd loop unless they say otherwise."""
    defaults = {"participation": 1.0, "batch_size": BATCH, "backend": "autograd", "workers": 0, "eval_every": 1}
    *_, last = ft.simulate(methods, fed, model, **(defaults | settings))
    return last
