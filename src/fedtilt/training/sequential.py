"""An `nn.Sequential` of the layers the kernels support, and the layout of its parameters in the kernels.

    conv blocks      a square convolution, ReLU, 2×2 max-pool                none or more
    linear layers    Linear, ReLU, …, Linear                                 one or more

The convolution has stride 1 and zero padding of at most half the kernel; in the kernels for GPUs, the padding keeps the
size of the image. `models.mlp`, `models.cnn` and `models.logistic` are such networks; so is any `nn.Sequential` of the
same layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

_ALIGNMENT = 16  # every layer starts at a multiple of this many floats, so that loads are wide


@dataclass(frozen=True, kw_only=True)
class ConvBlock:
    """A convolution over an image (height, width, in_channels), ReLU, and 2×2 max-pooling."""

    offset: (
        int  # in the parameter row, of the weight (kernel_size, kernel_size, in_channels, out_channels) and the bias
    )
    height: int
    width: int
    in_channels: int  # in the first block padded with zeros to a power of two, so that loads are wide
    out_channels: int
    kernel_size: int  # odd

    @property
    def patch_size(self) -> int:
        """The number of inputs of one output of the convolution."""
        return self.kernel_size * self.kernel_size * self.in_channels

    @property
    def parameter_count(self) -> int:
        """Weight and bias."""
        return (self.patch_size + 1) * self.out_channels

    @property
    def pooled_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        return self.height // 2, self.width // 2


@dataclass(frozen=True, kw_only=True)
class LinearLayer:
    """A linear layer."""

    offset: int  # in the parameter row, of the weight (out_features, in_features)
    bias_offset: int
    in_features: int
    out_features: int


@dataclass(frozen=True, kw_only=True, eq=False)
class SequentialNet:
    """The blocks and layers of a network, and their layout in the parameter row of a kernel."""

    blocks: tuple[ConvBlock, ...]
    layers: tuple[LinearLayer, ...]
    channels: int  # of a sample that is an image
    row_length: int  # of the row; entries without a parameter are 0

    @classmethod
    def from_module(cls, model: nn.Module, shape: tuple[int, ...]) -> Self | None:
        """The network for samples of this shape, or None if the model has layers that the kernels for GPUs lack."""
        parsed = _parse(model, shape)
        if parsed is None or any(conv.kernel_size[0] != 2 * int(conv.padding[0]) + 1 for conv in parsed[0]):
            return None
        convolutions, linears = parsed
        blocks: list[ConvBlock] = []
        layers, offset = [], 0
        image = shape
        for conv in convolutions:
            channels, height, width = image
            size, out = conv.kernel_size[0], conv.out_channels
            padded_channels = channels if blocks else _next_power_of_two(channels)
            block = ConvBlock(
                offset=offset,
                height=height,
                width=width,
                in_channels=padded_channels,
                out_channels=out,
                kernel_size=size,
            )
            blocks.append(block)
            offset = _round_up(offset + block.parameter_count)
            image = (out, *block.pooled_size)
        for linear in linears:
            features, out = linear.in_features, linear.out_features
            bias_offset = _round_up(offset + out * features)
            layers.append(LinearLayer(offset=offset, bias_offset=bias_offset, in_features=features, out_features=out))
            offset = _round_up(bias_offset + out)
        return cls(
            blocks=tuple(blocks), layers=tuple(layers), channels=shape[0], row_length=_round_up(offset, 64)
        )  # fmt: skip

    def views(self, rows: Tensor) -> list[Tensor]:
        """The parameters of models in their rows (L, row_length), in the order of the model."""
        views, channels = [], self.channels
        for block in self.blocks:
            shape = block.kernel_size, block.kernel_size, block.in_channels, block.out_channels
            weight, bias = rows[:, block.offset :][:, : block.parameter_count].split((math.prod(shape), shape[3]), 1)
            views += [weight.unflatten(1, shape)[:, :, :, :channels].permute(0, 4, 3, 1, 2), bias]
            channels = block.out_channels
        for number, layer in enumerate(self.layers):
            out, features = layer.out_features, layer.in_features
            weight = rows[:, layer.offset :][:, : out * features].unflatten(1, (out, features))
            if self.blocks and number == 0:  # the kernels flatten images as (height, width, channels)
                weight = weight.unflatten(2, self.padded_shape(len(self.blocks))).permute(0, 1, 4, 2, 3)
            views += [weight, rows[:, layer.bias_offset :][:, :out]]
        return views

    def padding(self, i: int) -> int:
        """The width of the zero padding around the input of the i-th block; 0 for the input of a linear layer."""
        return self.blocks[i].kernel_size // 2 if i < len(self.blocks) else 0

    def padded_shape(self, i: int) -> tuple[int, int, int]:
        """The padded shape of the input of the i-th block, or of the output of the last one."""
        if i < len(self.blocks):
            image = self.blocks[i].height, self.blocks[i].width, self.blocks[i].in_channels
        else:
            image = *self.blocks[-1].pooled_size, self.blocks[-1].out_channels
        return image[0] + 2 * self.padding(i), image[1] + 2 * self.padding(i), image[2]

    @property
    def sample_size(self) -> int:
        """The number of values of a sample, padding included."""
        return math.prod(self.padded_shape(0)) if self.blocks else self.layers[0].in_features

    def sample_rows(self, x: Tensor) -> Tensor:
        """Samples (n, …) as rows (n, sample_size): images are padded, with the channels last."""
        if self.blocks:
            missing = self.blocks[0].in_channels - x.shape[1]
            x = nn.functional.pad(x, [*[self.padding(0)] * 4, 0, missing]).movedim(1, -1)
        return x.flatten(1)


def _round_up(count: int, multiple: int = _ALIGNMENT) -> int:
    return -(-count // multiple) * multiple


def _next_power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def is_sequential(model: nn.Module) -> bool:
    """Whether the model is such a network, for samples of the size that its first linear layer expects."""
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    linear = next((m for m in model.modules() if isinstance(m, nn.Linear)), None)
    if linear is None:
        return False
    shape: tuple[int, ...] = (linear.in_features,)
    if convolutions:  # any image whose convolutions give the right number of pixels will do
        height, width = linear.in_features // convolutions[-1].out_channels, 1
        for conv in reversed(convolutions):
            shrinks = conv.kernel_size[0] - 1 - 2 * int(conv.padding[0]) if isinstance(conv.padding, tuple) else 0
            height, width = 2 * height + shrinks, 2 * width + shrinks
        shape = (convolutions[0].in_channels, height, width)
    return _parse(model, shape) is not None


def _parse(model: nn.Module, shape: tuple[int, ...]) -> tuple[list[nn.Conv2d], list[nn.Linear]] | None:
    """The convolutions and linear layers of a supported model, or None."""
    if type(model) is not nn.Sequential or len(set(model)) < len(model):  # a subclass may compute something else
        return None
    rest = list(model)
    convolutions: list[nn.Conv2d] = []
    image = shape
    while rest and isinstance(rest[0], nn.Conv2d):
        block, rest = rest[:3], rest[3:]
        if len(image) != 3 or not _is_conv_block(block):
            return None
        convolutions.append(block[0])  # type: ignore[arg-type]
        image = (block[0].out_channels, *pooled_size(block[0], *image[1:]))  # type: ignore
    if rest and isinstance(rest[0], nn.Flatten) and (rest[0].start_dim, rest[0].end_dim) == (1, -1):
        rest = rest[1:]
    elif len(image) != 1:
        return None
    linears = rest[::2]
    activations = rest[1::2]
    if not linears or len(linears) == len(activations):
        return None
    if any(type(m) is not nn.ReLU for m in activations):
        return None
    if any(type(m) is not nn.Linear or m.bias is None for m in linears):
        return None
    if linears[0].in_features != math.prod(image) or not _has_plain_layers(model, [*convolutions, *linears]):
        return None
    return convolutions, linears  # type: ignore[return-value]


def pooled_size(conv: nn.Conv2d, height: int, width: int) -> tuple[int, int]:
    """Height and width of the output of a conv block for images of this size."""
    change = 2 * int(conv.padding[0]) - conv.kernel_size[0] + 1
    return max(0, height + change) // 2, max(0, width + change) // 2


def _has_plain_layers(model: nn.Module, layers: Sequence[nn.Module]) -> bool:
    """Whether these layers' weights and biases are all the model's parameters, each used once, and it has no hooks.

    Kernels do not support tied weights, parametrisations (`spectral_norm`), hooks, and a `forward` of one object alone.
    """
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    hooked = any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks or "forward" in vars(m)
        for m in model.modules()
    )
    return [id(p) for p in parameters] == [id(p) for p in model.parameters()] and not hooked


def _is_conv_block(block: list[nn.Module]) -> bool:
    if [type(m) for m in block] != [nn.Conv2d, nn.ReLU, nn.MaxPool2d]:
        return False
    conv, _, pool = block
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(pool, nn.MaxPool2d)
    size = conv.kernel_size[0]
    return (
        conv.kernel_size == (size, size)
        and conv.padding in [(padding, padding) for padding in range(size // 2 + 1)]
        and conv.stride == conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and conv.bias is not None
        and pool.kernel_size in (2, (2, 2))
        and pool.stride in (2, (2, 2))
        and pool.padding in (0, (0, 0))
        and pool.dilation in (1, (1, 1))
        and not pool.ceil_mode
        and not pool.return_indices
    )
