"""BatchNorm in training mode over many jobs: samples that pad a short batch do not count."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Constants(NamedTuple):
    """What the running statistics of all layers are updated with, (B,) each."""

    momentum: Tensor  # 1 for a number of batches, NaN for an average of all batches
    count_index: Tensor  # where the layer's number of batches is
    is_statistic: Tensor  # 0 for a number of batches


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
        is_statistic = (index != torch.arange(len(index), device=device)).float()
        self.constants = Constants(torch.tensor(momentum, device=device), index, is_statistic)

    def start(self, sample_weights: Tensor) -> None:
        """Begin a batch of samples with these weights (B,), 0 or 1."""
        self._sample_weights = sample_weights
        self._samples = sample_weights.sum(0, keepdim=True).clamp(min=1)  # 0 after a client's last batch
        self._shares: dict[int, tuple[Tensor, Tensor]] = {}
        self._passes: list[dict[nn.Module, tuple[Tensor, Tensor]]] = []

    def shares(self, places: int) -> tuple[Tensor, Tensor]:
        """What each value of a sample counts in a mean over all n values (B,), and n / (n − 1)."""
        if places not in self._shares:
            count = self._samples * places
            self._shares[places] = self._sample_weights / count, count / (count - 1)
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
        one, zero = buffers.new_ones(1), buffers.new_zeros(1)
        passes, self._passes = self._passes, []
        for seen in passes:  # one, unless the model uses a layer more than once
            targets, start = [], 0
            for layer in self._layers:
                end = start + 2 * layer.num_features
                targets += [*seen[layer], one] if layer in seen else [buffers[start:end], zero]
                start = end + 1
            if self._has_averages:
                share = torch.where(constants.momentum.isnan(), 1 / (buffers[constants.count_index] + 1), share)
            buffers = buffers + share * (torch.cat(targets) - constants.is_statistic * buffers)
        return buffers


class _PaddedBatchNorm(nn.modules.batchnorm._BatchNorm):
    batch_norms: PaddedBatchNorms

    def forward(self, x: Tensor) -> Tensor:
        shares, unbiased = self.batch_norms.shares(math.prod(x.shape[2:]))
        shares = shares.reshape(-1, *[1] * (x.dim() - 1))
        out, mean, var, _ = _Normalize.apply(x, shares, self.weight, self.bias, self.eps)
        self.batch_norms.record(self, mean.flatten(), var.flatten() * unbiased)
        return out


class _Normalize(torch.autograd.Function):
    """(x − mean) · scale · weight + bias; and mean and variance over samples and places, and the scale, (1, C, 1, …).

    Its gradient needs two sums over samples and places; autograd would take five, and three times the operations.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, shares: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`shares` (B, 1, …) is what a sample's values count in the mean."""
        values = x.float()
        mean = _sum_by_channel(values * shares)
        centered = values - mean
        var = _sum_by_channel(centered.square() * shares)
        scale = (var + eps).rsqrt()
        out = centered * scale
        if weight is not None:
            out = out * weight.reshape(mean.shape)
        if bias is not None:
            out = out + bias.reshape(mean.shape)
        return out.to(x.dtype), mean, var, scale

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
        x, shares, weight, mean, scale = ctx.saved_tensors
        grad = grad.float()
        normal = (x.float() - mean) * scale
        by_bias, by_weight = _sum_by_channel(grad), _sum_by_channel(grad * normal)
        by_x = scale * (grad - shares * (by_bias + normal * by_weight))
        if weight is None:
            return by_x.to(x.dtype), None, None, None, None
        by_x = by_x * weight.reshape(mean.shape)
        return by_x.to(x.dtype), None, by_weight.flatten(), by_bias.flatten() if ctx.has_bias else None, None


def _sum_by_channel(x: Tensor) -> Tensor:
    """The sum over samples and places of (B, C, …), as (1, C, 1, …)."""
    return x.sum([0, *range(2, x.dim())], keepdim=True)
