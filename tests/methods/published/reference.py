"""A federation in plain PyTorch: what one client does, and how the server makes one model, for a method's test."""

import copy
import functools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fedtilt as ft
from fedtilt import seeds
from fedtilt.models import parameters_to_vector, with_weights

CLIENTS, ROUNDS, STEPS, LR = 3, 4, 2, 0.05
FED = ft.Federation.build(
    ft.data.load("digits"), clients=CLIENTS, partition="dirichlet", alpha=1.0, max_train=40, seed=1
)
MODEL = functools.partial(ft.models.mlp, hidden=(6,))
RECIPE = {"rounds": ROUNDS, "epochs": STEPS, "batch_size": 1000, "lr": LR, "participation": 0.67}
RECIPE |= {"workers": 0, "backend": "autograd"}  # all samples in one batch: their order is no matter


def simulated(method: ft.Method, **settings: object) -> ft.Round:
    *_, last = ft.simulate([method], FED, MODEL, **(RECIPE | settings))
    return last


@functools.cache
def rounds() -> list[tuple[int, list[int]]]:
    """The rounds, and the two of three clients that take part."""
    found = [(r.number, r.selected) for r in ft.simulate([ft.fedavg()], FED, MODEL, **RECIPE)]
    assert max(sum(n in selected for _, selected in found) for n in range(CLIENTS)) > 2  # one is there often
    return found


def descend(parameters: Sequence[Tensor], loss: Tensor, lr: float = LR) -> None:
    """A step of gradient descent."""
    grads = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for p, grad in zip(parameters, grads, strict=True):
            p -= lr * grad


class Reference:
    """FedAvg; every method changes one of its steps."""

    def __init__(self) -> None:
        self.net = ft.models.build(MODEL, FED.input_shape, FED.classes, seeds.key(0, "init"))
        self.w = parameters_to_vector(self.net)
        self.kept: dict[object, object] = {}
        self.personal: dict[int, Tensor] = {}

    def client(self, n: int, net: nn.Sequential, x: Tensor, y: Tensor) -> nn.Module:
        """A client's round from the received model: the model that it sends."""
        for _ in range(STEPS):
            descend([*net.parameters()], F.cross_entropy(net(x), y))
        return net

    def server(self, models: Tensor, clients: list[int], number: int) -> Tensor:
        """The next shared model."""
        return models.mean(0)

    def run(self) -> "Reference":
        for number, selected in rounds():
            received = with_weights(self.net, self.w)
            models = []
            for n in selected:
                x, y = FED.train(n, seed=0, round=number)
                models.append(parameters_to_vector(self.client(n, copy.deepcopy(received), x, y)))
            self.w = self.server(torch.stack(models), selected, number)
        return self


def check(method: ft.Method, reference: Reference, **settings: object) -> ft.Round:
    """Compare the shared model and all personal models with those of the reference."""
    last = simulated(method, **settings)
    reference.run()
    close(last.state.shared[method.name], reference.w)
    assert method.has_personal == bool(reference.personal)
    for n, theta in reference.personal.items():
        close(parameters_to_vector(last.model(method.name, n)), theta)
    return last


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def shared(method: ft.Method, **settings: object) -> Tensor:
    return simulated(method, **settings).state.shared[method.name]
