"""All lanes in one step: parameters stacked (L, P), a batch of every client at once. The GPU way.

Clients of unequal size keep their own number of steps: a batch that is short, or a lane that is done, is padded with
samples of weight zero and steps of length zero.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedtilt.descend.lanes import Batches, Lane, stack
from fedtilt.losses import client_loss, cross_entropy
from fedtilt.models import unflat

_ALONE = (nn.RNNBase, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def supports(model: nn.Module) -> bool:
    """Whether the model batches over lanes: no recurrent cells, and nothing random inside."""
    return not any(isinstance(m, _ALONE) or getattr(m, "dropout", 0) for m in model.modules())


def descend(model: nn.Module, lanes: Sequence[Lane], batches: Sequence[Batches]) -> list[Tensor]:
    """Train every lane on its batches; the trained parameters, (P,) each."""
    if not lanes:
        return []
    theta = torch.stack([lane.start for lane in lanes])  # (L, P)
    anchor = torch.stack([lane.anchor for lane in lanes])
    pull = stack([lane.pull for lane in lanes], theta)[:, None]
    lr = stack([lane.lr for lane in lanes], theta)[:, None]
    tau = _one_or_all([lane.tau for lane in lanes], theta)
    lam = _one_or_all([lane.lam for lane in lanes], theta)
    net = model.train().to(theta.device)

    def loss(theta: Tensor, x: Tensor, y: Tensor, w: Tensor, tau: float | Tensor, lam: float | Tensor) -> Tensor:
        return client_loss(cross_entropy(functional_call(net, unflat(net, theta), (x,)), y), y, tau, lam, w)

    per_lane = [0 if isinstance(t, Tensor) else None for t in (tau, lam)]
    slope = vmap(grad(loss), in_dims=(0, 0, 0, 0, *per_lane))

    feed = _Feed(batches)
    for step in range(feed.steps):
        x, y, w = feed.batch(step)  # (L, B, …), (L, B), (L, B)
        moving = lr * feed.active(step)
        theta = theta - moving * (slope(theta, x, y, w, tau, lam) + pull * (theta - anchor))
    return list(theta.unbind())


def _one_or_all(values: list[float], like: Tensor) -> float | Tensor:
    """A number where all lanes agree (the tilt then takes its short cuts), otherwise a vector."""
    return values[0] if len(set(values)) == 1 else stack(values, like)


class _Feed:
    """Every lane's batch of a step, padded to one shape."""

    def __init__(self, batches: Sequence[Batches]) -> None:
        clients = list({id(b): b for b in batches}.values())
        device = clients[0].x.device
        place = {id(b): i for i, b in enumerate(clients)}
        self.client = torch.tensor([place[id(b)] for b in batches], device=device)  # (L,)
        longest = max(len(b.y) for b in clients)
        self.x = torch.stack([_padded(b.x, longest) for b in clients])  # (C, n, …)
        self.y = torch.stack([_padded(b.y, longest) for b in clients])
        self.steps = max(len(b) for b in clients)
        width = max(b.size for b in clients)
        index = torch.full((len(clients), self.steps, width), -1, dtype=torch.long, device=device)
        for row, b in zip(index, clients, strict=True):
            short = b.per_epoch * b.size - len(b.y)
            order = torch.nn.functional.pad(b.order, (0, short), value=-1)  # (epochs, steps of an epoch · size)
            row[: len(b), : b.size] = order.reshape(len(b), b.size)
        self.index = index.transpose(0, 1).contiguous()  # (steps, C, B)
        lengths = torch.tensor([len(b) for b in clients], device=device)[self.client]
        self._active = (torch.arange(self.steps, device=device)[:, None] < lengths)[:, :, None]  # (steps, L, 1)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        index = self.index[step]  # (C, B)
        rows = torch.arange(len(index), device=index.device)[:, None]
        at = index.clamp(min=0)
        x, y, w = self.x[rows, at], self.y[rows, at], (index >= 0).to(torch.float32)
        return x[self.client], y[self.client], w[self.client]

    def active(self, step: int) -> Tensor:
        return self._active[step]


def _padded(values: Tensor, length: int) -> Tensor:
    missing = length - len(values)
    return values if not missing else torch.cat([values, values[:1].expand(missing, *values.shape[1:])])


def memory_per_lane(model: nn.Module, batches: Sequence[Batches]) -> int:
    """A rough upper bound of the bytes one lane needs, for splitting a stack that would not fit."""
    parameters = sum(p.numel() for p in model.parameters())
    sample = max(math.prod(b.x.shape[1:]) for b in batches)
    return 4 * (6 * parameters + 64 * max(b.size for b in batches) * sample)
