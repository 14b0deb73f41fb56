"""One lane after the other, by autograd, for any `nn.Module`: the reference that every other way must agree with."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.math.losses import client_loss, cross_entropy
from fedtilt.models import unflat
from fedtilt.training.local_job import Batches, LocalJob
from fedtilt.training.precision import fp32_deterministic


def train(model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches]) -> list[Tensor]:
    """Train every lane on its batches; the trained parameters, (P,) each."""
    return [_descend_one(model, job, data) for job, data in zip(jobs, batches, strict=True)]


def _descend_one(model: nn.Module, job: LocalJob, batches: Batches) -> Tensor:
    theta = job.start.clone()
    net = copy.deepcopy(model).train().to(theta.device)
    parameters = [p for _, p in net.named_parameters()]
    pieces = list(unflat(net, theta).values())
    for p, piece in zip(parameters, pieces, strict=True):
        p.data = piece  # the network reads and writes theta itself
    with seeds.seeded_global_rng(batches.key, theta.device), fp32_deterministic(theta.device):
        for x, y in batches:
            loss = client_loss(cross_entropy(net(x), y), y, job.tau, job.lam)
            gradient = torch.autograd.grad(loss, parameters, materialize_grads=True)  # 0 where one is not used
            if job.prox:
                theta.lerp_(job.anchor, job.lr * job.prox)
            for piece, slope in zip(pieces, gradient, strict=True):
                piece.sub_(slope, alpha=job.lr)
    return theta
