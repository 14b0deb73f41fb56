"""Layers that compute the same as torch's, in a form that batches over jobs: convolutions and BatchNorm."""

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _MatmulConv2d(nn.Conv2d):
    """A convolution as shifted slices and one product: over jobs a batched product, not a grouped convolution."""

    padding: tuple[int, int]

    def forward(self, x: Tensor) -> Tensor:
        (kernel_y, kernel_x), (pad_y, pad_x), (stride_y, stride_x) = self.kernel_size, self.padding, self.stride
        padded = F.pad(x, (pad_x, pad_x, pad_y, pad_y)).permute(0, 2, 3, 1)  # (B, H, W, C)
        height, width = (padded.shape[1] - kernel_y) // stride_y + 1, (padded.shape[2] - kernel_x) // stride_x + 1
        rows, columns = (height - 1) * stride_y + 1, (width - 1) * stride_x + 1
        slices = [
            padded[:, i : i + rows : stride_y, j : j + columns : stride_x]
            for i in range(kernel_y)
            for j in range(kernel_x)
        ]
        patches = torch.cat(slices, dim=-1).flatten(0, 2)  # (B · height · width, kernel · C)
        weight = self.weight.permute(2, 3, 1, 0).flatten(0, 2)  # (kernel · C, out)
        out = patches @ weight if self.bias is None else torch.addmm(self.bias, patches, weight)
        return out.reshape(len(x), height, width, -1).permute(0, 3, 1, 2)


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

    def forward(self, x: Tensor) -> Tensor:
        samples = self.sample_weights.sum().clamp(min=1)  # 0 after a client's last batch
        count = samples * x[0, 0].numel()
        weights = self.sample_weights.reshape(-1, *[1] * (x.dim() - 1))
        channel = (-1, *[1] * (x.dim() - 2))
        others = [0, *range(2, x.dim())]
        values = x.float()
        mean = (values * weights).sum(others) / count  # (C,)
        centred = values - mean.reshape(channel)
        var = (centred.square() * weights).sum(others) / count
        self._update_running(mean.detach(), (var * (count / (count - 1))).detach())
        scale = (var + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        out = centred * scale.reshape(channel)
        return (out if self.bias is None else out + self.bias.reshape(channel)).to(x.dtype)

    def _update_running(self, mean: Tensor, unbiased_var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.float() if self.momentum is None else self.momentum  # None: the average
        self.running_mean.add_(share * (mean - self.running_mean))
        self.running_var.add_(share * (unbiased_var - self.running_var))


def pad_batch_norms(net: nn.Module, names: Sequence[str]) -> None:
    """Let these BatchNorm layers leave out samples of weight zero, in place; the weights are buffers of theirs."""
    for name in names:
        layer = net.get_submodule(name)
        layer.__class__ = _PaddedBatchNorm
        layer.register_buffer("sample_weights", torch.ones(1))
