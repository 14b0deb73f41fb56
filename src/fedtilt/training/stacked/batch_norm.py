"""BatchNorm in training mode over many jobs: samples that pad a short batch do not count."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.training.stacked.layers import BatchedFunction

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Constants(NamedTuple):
    """What the running statistics of all layers are updated with, (B,) each."""

    momentum: Tensor  # 1 for a number of batches, NaN for an average of all batches
    count_index: Tensor  # where the layer's number of batches is
    is_statistic: Tensor  # 0 for a number of batches
    target_index: Tensor  # which statistic of the batch the buffer moves to; a number of batches, to a 1 behind them


class PaddedBatchNorms:
    """The BatchNorm layers of a model, in training mode on batches with padding: samples of weight zero do not count.

    The running statistics of all layers change together after the forward pass: changed in every layer by itself, they
    would be a fifth of the operations to compile.
    """

    def __init__(self, net: nn.Module, names: Sequence[str], device: torch.device) -> None:
        """Change these layers in place."""
        self._layers: list[_PaddedBatchNorm] = []
        momentum: list[float] = []
        count_index: list[int] = []
        for name in names:
            layer = net.get_submodule(name)
            layer.__class__ = _PaddedBatchNorm
            assert isinstance(layer, _PaddedBatchNorm)
            layer.batch_norms = self
            self._layers.append(layer)
            statistics = 2 * layer.num_features
            count_index += [len(count_index) + statistics] * (statistics + 1)
            momentum += [*[math.nan if layer.momentum is None else layer.momentum] * statistics, 1.0]
        self._has_averages = any(layer.momentum is None for layer in self._layers)
        index = torch.tensor(count_index, device=device)
        is_statistic = index != torch.arange(len(index), device=device)
        target_index = torch.where(is_statistic, is_statistic.cumsum(0) - 1, is_statistic.sum())
        self.constants = Constants(torch.tensor(momentum, device=device), index, is_statistic.float(), target_index)

    def start(self, sample_weights: Tensor) -> None:
        """Begin a batch of samples with these weights (B,), 0 or 1."""
        self._sample_weights = sample_weights
        self._samples = sample_weights.sum(0, keepdim=True).clamp(min=1)  # 0 after a client's last batch
        self._shares: dict[int, tuple[Tensor, Tensor]] = {}
        self._passes: list[dict[nn.Module, tuple[Tensor, Tensor]]] = []

    def shares(self, places: int) -> tuple[Tensor, Tensor]:
        """What each value of a sample counts in a mean over all n values (B, 1, 1), and n / (n − 1)."""
        if places not in self._shares:
            count = self._samples * places
            self._shares[places] = (self._sample_weights / count).reshape(-1, 1, 1), count / (count - 1)
        return self._shares[places]

    def record(self, layer: nn.Module, mean: Tensor, unbiased_var: Tensor) -> None:
        """Note the statistics (C,) of what a layer was given."""
        seen = next((seen for seen in self._passes if layer not in seen), None)
        if seen is None:
            seen = {}
            self._passes.append(seen)
        seen[layer] = mean, unbiased_var

    def next_buffers(self, buffers: Tensor, constants: Constants) -> Tensor:
        """The buffers (B,) after the batch: of every layer the running mean and variance, and the number of batches."""
        share = constants.momentum
        passes, self._passes = self._passes, []
        for seen in passes:  # one, unless the model uses a layer more than once
            statistics: list[Tensor] = []
            for layer in self._layers:
                statistics += seen.get(layer, [buffers.new_zeros(2 * layer.num_features)])
            target = torch.cat([*statistics, buffers.new_ones(1)])[constants.target_index]
            if self._has_averages:
                share = torch.where(constants.momentum.isnan(), 1 / (buffers[constants.count_index] + 1), share)
            old, buffers = buffers, buffers + share * (target - constants.is_statistic * buffers)
            if len(seen) < len(self._layers):
                is_seen = [buffers.new_full((2 * layer.num_features + 1,), layer in seen) for layer in self._layers]
                buffers = torch.where(torch.cat(is_seen) > 0, buffers, old)
        return buffers


class _PaddedBatchNorm(nn.modules.batchnorm._BatchNorm):
    batch_norms: PaddedBatchNorms

    def forward(self, x: Tensor) -> Tensor:
        channels_last = x.movedim(1, -1)
        values = channels_last.reshape(len(x), -1, x.shape[1])  # (B, places, C)
        shares, unbiased = self.batch_norms.shares(values.shape[1])
        out, mean, var, _ = _Normalize.apply(values, shares, self.weight, self.bias, self.eps)
        self.batch_norms.record(self, mean.flatten(), var.flatten() * unbiased)
        return out.reshape(channels_last.shape).movedim(-1, 1)


def _normalize(x: Tensor, shares: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, ...]:
    """`_Normalize` of many models: x (L, B, places, C), what its values count (L, B, 1, 1), weight and bias (L, C).

    Parts of the samples have their statistics first, so that x is read once, and the shares not with it.
    """
    values = x.float()
    places = x.shape[2]
    parts = math.gcd(places, 8) if places >= 512 else 1  # so that the device has enough to do at once
    part_var, part_mean = torch.var_mean(values.reshape(*x.shape[:2], parts, places // parts, -1), 3, correction=0)
    part_shares = shares * (places // parts)
    mean = (part_shares * part_mean).sum((1, 2), keepdim=True)
    var = (part_shares * (part_var + (part_mean - mean).square())).sum((1, 2), keepdim=True)
    scale = (var + eps).rsqrt()
    out = (values - mean) * scale
    if weight is not None:
        out = out * weight.reshape(mean.shape)
    if bias is not None:
        out = out + bias.reshape(mean.shape)
    return out.to(x.dtype), mean, var, scale


def _normalize_gradient(
    grad: Tensor, x: Tensor, shares: Tensor, weight: Tensor | None, mean: Tensor, scale: Tensor
) -> tuple[Tensor, ...]:
    """`_NormalizeGradient` of many models."""
    grad, centered = grad.float(), x.float() - mean
    by_bias, by_scale = (t.sum((1, 2), keepdim=True) for t in (grad, grad * centered))
    by_weight = by_scale * scale
    by_x = grad - shares * (by_bias + centered * (by_weight * scale))
    by_x = by_x * (scale if weight is None else scale * weight.reshape(mean.shape))
    return by_x.to(x.dtype), by_weight.flatten(1), by_bias.flatten(1)


class _Normalize(BatchedFunction):
    """(x − mean) · scale · weight + bias, (B, places, C); and by channel mean, variance and scale, (1, 1, C).

    Its gradient needs two sums over samples and places; autograd would take five, and three times the operations.
    """

    many = staticmethod(_normalize)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, shares, weight, bias, _ = inputs
        _, mean, var, scale = output
        ctx.has_bias = bias is not None
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mean, var, scale)
        ctx.save_for_backward(x, shares, weight, mean, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        by_x, by_weight, by_bias = _NormalizeGradient.apply(grad, *ctx.saved_tensors)
        has_weight = ctx.saved_tensors[2] is not None
        return by_x, None, by_weight if has_weight else None, by_bias if ctx.has_bias else None, None


class _NormalizeGradient(BatchedFunction):
    """The gradient of `_Normalize` by x, weight and bias."""

    many = staticmethod(_normalize_gradient)
