"""Perceptrons with a hand-written backward pass; each update is fused into the product that gives the gradient.

A step of a small perceptron is a dozen small products; an autograd graph around them costs more than they do. Here
the gradient of a weight is never a tensor: `W.addmm_(deltaᵀ, h, alpha=−lr)` adds it in place.

For CPUs without a C compiler, and for Windows, where the native backend cannot run: several times as fast as the plain
loop (the row "backend fused" of docs/performance.md).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt.math.tilt import nested_tilt_grad
from fedtilt.models import vector_to_parameters
from fedtilt.training.local_job import Batches, LocalJob
from fedtilt.training.sequential import has_plain_layers


def supports(model: nn.Module) -> bool:
    """Whether the model is an `nn.Sequential` of Flatten, Linear (with bias) and ReLU that ends with a Linear."""
    if type(model) is not nn.Sequential or len(set(model)) < len(model):  # a subclass may compute something else
        return False
    layers = [m for m in model if not isinstance(m, nn.Flatten)]
    flat_first = all(not isinstance(m, nn.Flatten) or (i == 0 and m.start_dim == 1) for i, m in enumerate(model))
    if any(isinstance(m, nn.Linear) and m.bias is None for m in layers):
        return False
    kinds = [type(m) for m in layers]
    if not flat_first or not kinds or kinds != [nn.Linear, nn.ReLU] * (len(kinds) // 2) + [nn.Linear]:
        return False
    return has_plain_layers(model, layers[::2])


def train(model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches]) -> list[Tensor]:
    """Train every job on its batches; returns the trained parameters, (P,) each."""
    with torch.no_grad():
        return [_train_one(model, job, data) for job, data in zip(jobs, batches, strict=True)]


def _train_one(model: nn.Module, job: LocalJob, batches: Batches) -> Tensor:
    theta = job.start.clone()
    layers = _linear_layers(model, theta)
    decay = 1 - job.lr * job.prox  # θ ← decay · θ + (1 − decay) · anchor − lr · grad
    ones = torch.ones(batches.size)
    flat_batches = replace(batches, x=batches.x.flatten(1))
    for x, y in flat_batches.epochs(job.epochs):
        # forward: activations (B, width) of every layer, the input first
        activations = [x]
        for weight, bias in layers[:-1]:
            activations.append(torch.addmm(bias, activations[-1], weight.T).relu_())
        weight, bias = layers[-1]
        log_p = F.log_softmax(torch.addmm(bias, activations[-1], weight.T), dim=1)  # (B, K)

        # dR/dlogits = dR/dloss of each sample times (softmax − one-hot)
        label = y[:, None]
        loss_grad = _loss_grad(-log_p.gather(1, label)[:, 0], y, job)[:, None]
        delta = log_p.exp_().mul_(loss_grad).scatter_add_(1, label, -loss_grad)

        # all deltas before any update: a layer's delta needs the next layer's weights before their update
        deltas = [delta]
        for (weight, _), h in zip(reversed(layers[1:]), reversed(activations[1:]), strict=True):
            deltas.append(torch.ops.aten.threshold_backward(torch.mm(deltas[-1], weight), h, 0))
        for (weight, bias), h, delta in zip(layers, activations, reversed(deltas), strict=True):
            weight.addmm_(delta.T, h, beta=decay, alpha=-job.lr)
            bias.addmv_(delta.T, ones[: len(y)], beta=decay, alpha=-job.lr)
        if job.prox:
            theta.add_(job.anchor, alpha=1 - decay)
    return theta


def _linear_layers(model: nn.Module, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of every linear layer, as views into theta."""
    views = list(vector_to_parameters(model, theta).values())
    return list(pairwise(views))[::2]


def _loss_grad(losses: Tensor, y: Tensor, job: LocalJob) -> Tensor:
    """dR/dloss of every sample."""
    if job.tau == job.lam == 0:
        return torch.full_like(losses, 1 / len(losses))
    return nested_tilt_grad(losses, [y], [job.lam, job.tau])
