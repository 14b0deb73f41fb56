"""The two models and the plain training step in PyTorch, for the implementations that use it."""

import numpy as np
import torch
import torch.nn.functional as F
from protocol import Weights, Workload
from torch import Tensor, nn


def build_model(model: str) -> nn.Sequential:
    """784-200-200-10, or three blocks of convolution, ReLU and pooling with 32, 64 and 128 channels."""
    if model == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
        )
    blocks: list[nn.Module] = []
    for fan_in, fan_out in ((3, 32), (32, 64), (64, 128)):
        blocks += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(2048, 10))


def load_weights(net: nn.Module, weights: Weights) -> None:
    """Copy the weights into the network."""
    net.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})


def copy_weights(net: nn.Module) -> dict[str, np.ndarray]:
    """A copy of the network's weights."""
    return {name: value.numpy().copy() for name, value in net.state_dict().items()}


@torch.no_grad()
def add_prox_gradient(net: nn.Module, anchor: list[Tensor], mu: float) -> None:
    """Add the gradient of mu/2 · ‖θ − anchor‖²."""
    for p, a in zip(net.parameters(), anchor, strict=True):
        assert p.grad is not None
        p.grad.add_(p, alpha=mu).add_(a, alpha=-mu)


def build_optimizer(net: nn.Module, workload: Workload) -> torch.optim.Optimizer:
    """The optimiser of the workload."""
    if workload.optimizer == "adam":
        return torch.optim.Adam(net.parameters(), workload.lr, weight_decay=workload.weight_decay)
    return torch.optim.SGD(net.parameters(), workload.lr, workload.momentum, weight_decay=workload.weight_decay)


def train_locally(
    net: nn.Module, x: Tensor, y: Tensor, workload: Workload, *, mu: float = 0.0, anchor: list[Tensor]
) -> int:
    """Train with autograd and torch.optim; return the number of steps.

    The proximal term is added to the gradient, not to the loss: the same step, without a graph over all parameters.
    """
    optimizer = build_optimizer(net, workload)
    steps = 0
    for _ in range(workload.epochs):
        for rows in torch.randperm(len(y)).split(workload.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            if mu:
                add_prox_gradient(net, anchor, mu)
            optimizer.step()
            steps += 1
    return steps
