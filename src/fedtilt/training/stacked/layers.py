"""Layers that compute the same as torch's, in a form that batches over jobs: convolutions and BatchNorm."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _MatmulConv2d(nn.Conv2d):
    """A convolution as patches and one product: over jobs a batched product, not a grouped convolution."""

    padding: tuple[int, int]

    def forward(self, x: Tensor) -> Tensor:
        out, _ = _PatchProduct.apply(x.permute(0, 2, 3, 1), self.weight, self.padding, self.stride)
        return (out if self.bias is None else out + self.bias.to(out.dtype)).permute(0, 3, 1, 2)


class _PatchProduct(torch.autograd.Function):
    """The product of an image's patches and the weights of a convolution, (B, height, width, out); and the patches.

    The gradient by the image is again such a product, with the weights turned around. Autograd would add up one slice
    for every place in the kernel, in many operations that take long to compile.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: tuple[int, int], stride: tuple[int, int]) -> tuple[Tensor, Tensor]:
        (pad_y, pad_x), (_, _, kernel_y, kernel_x) = padding, weight.shape
        patches = _patches(F.pad(x, (0, 0, pad_x, pad_x, pad_y, pad_y)), (kernel_y, kernel_x), stride)
        return _product(patches, weight), patches

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, ctx.padding, ctx.stride = inputs
        ctx.size = x.shape[1:3]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, Tensor, None, None]:
        weight, patches = ctx.saved_tensors
        out, channels, *kernel = weight.shape
        columns, turned = patches.flatten(0, 2).to(grad.dtype).T, weight.flip(2, 3).transpose(0, 1).to(grad.dtype)
        by_weight = (columns @ grad.flatten(0, 2)).reshape(*kernel, channels, out).permute(3, 2, 0, 1)
        spaced = _with_gaps(grad, ctx.stride)
        before = [kernel[i] - 1 - ctx.padding[i] for i in (0, 1)]
        after = [ctx.size[i] + ctx.padding[i] - spaced.shape[1 + i] for i in (0, 1)]
        spaced = F.pad(spaced, (0, 0, before[1], after[1], before[0], after[0]))
        by_x = _product(_patches(spaced, kernel, (1, 1)), turned)
        return by_x.to(patches.dtype), by_weight.to(weight.dtype), None, None


def _patches(x: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> Tensor:
    """What every place of the kernel sees of images (B, H, W, C): (B, height, width, kernel · C)."""
    windows = x.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1])  # (B, height, width, C, y, x)
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3)


def _product(patches: Tensor, weight: Tensor) -> Tensor:
    matrix = weight.permute(2, 3, 1, 0).flatten(0, 2)  # (kernel · C, out)
    return (patches.flatten(0, 2) @ matrix).reshape(*patches.shape[:3], -1)


def _with_gaps(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Images (B, H, W, C) with zeros after every row and column, (B, H · stride, W · stride, C)."""
    (samples, height, width, channels), (gap_y, gap_x) = x.shape, stride
    padded = F.pad(x.reshape(samples, height, 1, width, 1, channels), (0, 0, 0, gap_x - 1, 0, 0, 0, gap_y - 1))
    return padded.reshape(samples, height * gap_y, width * gap_x, channels)


def _is_plain_conv(layer: nn.Conv2d) -> bool:
    dense = layer.dilation == (1, 1) and layer.groups == 1
    return dense and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


class _MeanPool2d(nn.AdaptiveAvgPool2d):
    """The mean over an image; torch's own has an operation that does not batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1), keepdim=True)


def stackable_copy(model: nn.Module) -> nn.Module:
    """A copy of the model whose convolutions and mean pooling batch well over jobs."""
    net = copy.deepcopy(model)
    for layer in net.modules():
        if type(layer) is nn.Conv2d and _is_plain_conv(layer):
            layer.__class__ = _MatmulConv2d
        elif type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
            layer.__class__ = _MeanPool2d
    return net


class _PaddedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm in training mode; samples of weight zero, which pad a short batch, do not count."""

    sample_weights: Tensor  # (B,) 0 or 1: a buffer, so that `functional_call` sets it
    samples: Tensor  # how many weights are 1

    def forward(self, x: Tensor) -> Tensor:
        count = self.samples * math.prod(x.shape[2:])
        shares = self.sample_weights.reshape(-1, *[1] * (x.dim() - 1)) / count
        out, mean, var = _Normalize.apply(x, shares, self.weight, self.bias, self.eps)
        self._update_running(mean.flatten(), (var * (count / (count - 1))).flatten())
        return out

    def _update_running(self, mean: Tensor, unbiased_var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.float() if self.momentum is None else self.momentum  # None: the average
        self.running_mean.add_(share * (mean - self.running_mean))
        self.running_var.add_(share * (unbiased_var - self.running_var))


class _Normalize(torch.autograd.Function):
    """(x − mean) / √(var + eps) · weight + bias; and mean and variance over samples and places, (1, C, 1, …).

    Its gradient needs two sums over samples and places; autograd would take five, and three times the operations.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, shares: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`shares` (B, 1, …) is what a sample's values count in the mean."""
        values = x.float()
        mean = _sum_by_channel(values * shares)
        var = _sum_by_channel((values - mean).square() * shares)
        out = (values - mean) * (var + eps).rsqrt()
        if weight is not None:
            out = out * weight.reshape(mean.shape)
        if bias is not None:
            out = out + bias.reshape(mean.shape)
        return out.to(x.dtype), mean, var

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        x, shares, weight, bias, ctx.eps = inputs
        _, mean, var = output
        ctx.has_bias = bias is not None
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(mean, var)
        ctx.save_for_backward(x, shares, weight, mean, var)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        x, shares, weight, mean, var = ctx.saved_tensors
        grad, scale = grad.float(), (var + ctx.eps).rsqrt()
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


def pad_batch_norms(net: nn.Module, names: Sequence[str]) -> None:
    """Let these BatchNorm layers leave out samples of weight zero, in place; two buffers say which they are."""
    for name in names:
        layer = net.get_submodule(name)
        layer.__class__ = _PaddedBatchNorm
        layer.register_buffer("sample_weights", torch.ones(1))
        layer.register_buffer("samples", torch.ones(()))
