"""One job after the other, by autograd, for any `nn.Module`: the reference for every other backend."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.math.losses import client_loss, cross_entropy
from fedtilt.models import vector_to_parameters
from fedtilt.training.local_job import Batches, LocalJob
from fedtilt.training.precision import fp32_deterministic


def train(model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches]) -> list[Tensor]:
    """Train every job on its batches; returns the trained parameters, (P,) each."""
    return [_train_one(model, job, data) for job, data in zip(jobs, batches, strict=True)]


def _train_one(model: nn.Module, job: LocalJob, batches: Batches) -> Tensor:
    theta = job.start.clone()
    net = copy.deepcopy(model).train().to(theta.device)
    parameters = [p for _, p in net.named_parameters()]
    views = list(vector_to_parameters(net, theta).values())
    for p, view in zip(parameters, views, strict=True):
        p.data = view  # the network's parameters are views into theta
    with seeds.seeded_global_rng(batches.key, theta.device), fp32_deterministic(theta.device):
        for x, y in batches.epochs(job.epochs):
            loss = client_loss(cross_entropy(net(x), y), y, job.tau, job.lam)
            grads = torch.autograd.grad(loss, parameters, materialize_grads=True)  # 0 for unused parameters
            if job.prox:
                theta.lerp_(job.anchor, job.lr * job.prox)
            for view, grad in zip(views, grads, strict=True):
                view.sub_(grad, alpha=job.lr)
    return theta
