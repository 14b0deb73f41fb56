"""One lane after the other, by autograd, for any `nn.Module`: the reference that every other way must agree with."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.arithmetic import arithmetic
from fedtilt.descend.lanes import Batches, Lane
from fedtilt.losses import client_loss, cross_entropy
from fedtilt.models import unflat


def descend(model: nn.Module, lanes: Sequence[Lane], batches: Sequence[Batches]) -> list[Tensor]:
    """Train every lane on its batches; the trained parameters, (P,) each."""
    return [_descend_one(model, lane, data) for lane, data in zip(lanes, batches, strict=True)]


def _descend_one(model: nn.Module, lane: Lane, batches: Batches) -> Tensor:
    theta = lane.start.clone()
    net = copy.deepcopy(model).train().to(theta.device)
    parameters = [p for _, p in net.named_parameters()]
    pieces = list(unflat(net, theta).values())
    for p, piece in zip(parameters, pieces, strict=True):
        p.data = piece  # the network reads and writes theta itself
    with seeds.globally(batches.key, theta.device), arithmetic(theta.device):
        for x, y in batches:
            loss = client_loss(cross_entropy(net(x), y), y, lane.tau, lane.lam)
            gradient = torch.autograd.grad(loss, parameters, materialize_grads=True)  # 0 where one is not used
            if lane.pull:
                theta.lerp_(lane.anchor, lane.lr * lane.pull)
            for piece, slope in zip(pieces, gradient, strict=True):
                piece.sub_(slope, alpha=lane.lr)
    return theta
