"""Perceptrons with a hand-written backward pass; each update is fused into the product that gives the gradient.

A step of a small perceptron is a dozen small products; an autograd graph around them costs more than they do. Here
the gradient of a weight is never a tensor: `W.addmm_(deltaᵀ, h, alpha=−lr)` adds it in place.

For CPUs without a C compiler, and for Windows, where the native backend cannot run: several times as fast as the plain
loop (the row "backend fused" of docs/benchmarks.md).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt.math.losses import cross_entropy
from fedtilt.math.tilt import nested_tilt_grad
from fedtilt.models import vector_to_parameters
from fedtilt.training.local_job import Batches, LocalJob, Trained, unusual_part
from fedtilt.training.sequential import is_sequential


def unsupported_reason(model: nn.Module, job: LocalJob, device_type: str, *_: object) -> str | None:
    """Why this backend does not train the job, as a clause; None if it does."""
    if device_type != "cpu":
        return f"the device is {device_type}"
    if not is_sequential(model) or any(isinstance(layer, nn.Conv2d) for layer in model.modules()):
        return "the model is not an nn.Sequential of Flatten, Linear (with bias) and ReLU that ends with a Linear"
    if not job.optimizer.is_plain:
        return f"the optimiser is not plain SGD ({job.optimizer.describe()})"
    if job.loss is not cross_entropy:
        return "the loss is not the plain cross-entropy"
    return unusual_part(job, model) or job.special_steps


def special_reason(model: nn.Module, job: LocalJob) -> str | None:
    """Why this backend does not know the special steps of a job, as a clause."""
    return job.special_steps


def train(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], *, precision: str = "float32"
) -> list[Trained]:
    """Train every job on its batches; on a CPU, the precision is always float32."""
    with torch.no_grad():
        return [Trained(_train_one(model, job, data)) for job, data in zip(jobs, batches, strict=True)]


def _train_one(model: nn.Module, job: LocalJob, batches: Batches) -> Tensor:
    theta = job.start.clone()
    layers = _linear_layers(model, theta)
    decay = 1 - job.lr * job.prox  # θ ← decay · θ + (1 − decay) · anchor − lr · grad
    ones = torch.ones(batches.size)
    assert isinstance(batches.x, Tensor)
    flat_batches = replace(batches, x=batches.x.flatten(1))
    for x, y, groups, _ in flat_batches.of(job):
        assert isinstance(x, Tensor)
        # forward: activations (B, width) of every layer, the input first
        activations = [x]
        for weight, bias in layers[:-1]:
            activations.append(torch.addmm(bias, activations[-1], weight.T).relu_())
        weight, bias = layers[-1]
        log_p = F.log_softmax(torch.addmm(bias, activations[-1], weight.T), dim=1)  # (B, K)

        # dR/dlogits = dR/dloss of each sample times (softmax − one-hot)
        label = y[:, None]
        loss_grad = _loss_grad(-log_p.gather(1, label)[:, 0], groups, job)[:, None]
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


def _loss_grad(losses: Tensor, groups: Sequence[Tensor], job: LocalJob) -> Tensor:
    """dR/dloss of every sample."""
    if not any(job.tilts):
        return torch.full_like(losses, 1 / len(losses))
    return nested_tilt_grad(losses, groups, job.tilts)
