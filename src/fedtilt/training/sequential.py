"""A model as a chain of blocks that a kernel can be written for, and the order in which one wants its parameters.

    blocks    3×3 (or any odd) convolution, ReLU, 2×2 max-pool        none or more
    layers    Linear, ReLU, …, Linear                                 one or more

`models.mlp`, `models.cnn` and `models.logistic` are such chains; so is any `nn.Sequential` of the same layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

_ALIGNED = 16  # every layer starts at a multiple of this many floats, so that loads are wide


@dataclass(frozen=True, kw_only=True)
class Block:
    """A convolution over an image (height, width, fan_in), ReLU, then the largest of every 2×2 window."""

    offset: int  # of its weight (size · size · fan_in, fan_out), then its bias, in a kernel's row of parameters
    height: int
    width: int
    fan_in: int  # of the first block a power of two, so that loads are wide: channels of zeros are added
    fan_out: int
    size: int  # of the kernel, odd

    @property
    def taps(self) -> int:
        """The length of the products: what one output of the convolution is a sum of."""
        return self.size * self.size * self.fan_in

    @property
    def parameters(self) -> int:
        """Weight and bias."""
        return (self.taps + 1) * self.fan_out

    @property
    def pooled(self) -> tuple[int, int]:
        """Height and width of what comes out."""
        return self.height // 2, self.width // 2


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A linear layer."""

    offset: int  # of its weight (fan_out, fan_in)
    bias: int  # offset of its bias
    fan_in: int
    fan_out: int


@dataclass(frozen=True, kw_only=True, eq=False)
class SequentialNet:
    """The blocks and layers, with their places in a kernel's row of parameters."""

    blocks: tuple[Block, ...]
    layers: tuple[Layer, ...]
    place: Tensor  # (P,) where each parameter of the model stands in the row
    length: int  # of the row; what no parameter stands at is 0

    @classmethod
    def of(cls, model: nn.Module, shape: tuple[int, ...]) -> Self | None:
        """The chain that a model is on samples of this shape, or None if it is something else."""
        found = _parsed(model, shape)
        if found is None:
            return None
        convolutions, linears = found
        blocks: list[Block] = []
        layers, places, at = [], [], 0
        image = shape
        for conv in convolutions:
            fan_in, height, width = image
            size, fan_out = conv.kernel_size[0], conv.out_channels
            room = fan_in if blocks else _power(fan_in)
            block = Block(offset=at, height=height, width=width, fan_in=room, fan_out=fan_out, size=size)
            weight = torch.arange(block.taps * fan_out).reshape(size, size, room, fan_out)
            weight = weight[:, :, :fan_in].permute(3, 2, 0, 1)
            places += [at + weight.flatten(), at + torch.arange(block.taps * fan_out, block.parameters)]
            blocks.append(block)
            at = _rounded(at + block.parameters)
            image = (fan_out, *block.pooled)
        for number, linear in enumerate(linears):
            fan_in, fan_out = linear.in_features, linear.out_features
            columns = torch.arange(fan_in)
            if blocks and number == 0:  # images are (height, width, channels) in a kernel, and flattened so
                columns = columns.reshape(*image[1:], image[0]).permute(2, 0, 1).flatten()
            bias = _rounded(at + fan_out * fan_in)
            layers.append(Layer(offset=at, bias=bias, fan_in=fan_in, fan_out=fan_out))
            weight = torch.arange(fan_out)[:, None] * fan_in + columns
            places += [at + weight.flatten(), bias + torch.arange(fan_out)]
            at = _rounded(bias + fan_out)
        return cls(blocks=tuple(blocks), layers=tuple(layers), place=torch.cat(places), length=_rounded(at, 64))

    def frame(self, i: int) -> int:
        """How wide a frame of zeros the input of the i-th block has; none for what is no block's input."""
        return self.blocks[i].size // 2 if i < len(self.blocks) else 0

    def framed(self, i: int) -> tuple[int, int, int]:
        """The shape of the input of the i-th block, or of what the last one gives, with its frame."""
        if i < len(self.blocks):
            image = self.blocks[i].height, self.blocks[i].width, self.blocks[i].fan_in
        else:
            image = *self.blocks[-1].pooled, self.blocks[-1].fan_out
        return image[0] + 2 * self.frame(i), image[1] + 2 * self.frame(i), image[2]

    @property
    def values(self) -> int:
        """The length of a sample's row."""
        return math.prod(self.framed(0)) if self.blocks else self.layers[0].fan_in

    def rows(self, x: Tensor) -> Tensor:
        """Samples (n, …) as rows (n, values): images framed, with their channels last and filled up."""
        if self.blocks:
            x = nn.functional.pad(x, [*[self.frame(0)] * 4, 0, self.blocks[0].fan_in - x.shape[1]]).movedim(1, -1)
        return x.flatten(1)


def _rounded(count: int, to: int = _ALIGNED) -> int:
    return -(-count // to) * to


def _power(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


def _parsed(model: nn.Module, shape: tuple[int, ...]) -> tuple[list[nn.Conv2d], list[nn.Linear]] | None:
    if type(model) is not nn.Sequential or len(set(model)) < len(model):  # a subclass may compute something else
        return None
    rest = list(model)
    convolutions: list[nn.Conv2d] = []
    image = shape
    while rest and isinstance(rest[0], nn.Conv2d):
        block, rest = rest[:3], rest[3:]
        if len(image) != 3 or not _is_block(block):
            return None
        convolutions.append(block[0])  # type: ignore[arg-type]
        image = (block[0].out_channels, image[1] // 2, image[2] // 2)  # type: ignore[assignment]
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
    if linears[0].in_features != math.prod(image) or not own_parameters(model, [*convolutions, *linears]):
        return None
    return convolutions, linears  # type: ignore[return-value]


def own_parameters(model: nn.Module, layers: Sequence[nn.Module]) -> bool:
    """Whether these layers' weights and biases are all the model has, each once, and nothing hooks into its passes.

    Tied weights, a reparametrisation (`spectral_norm`) or a hook make a model that a kernel knows nothing of.
    """
    own = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    hooked = any(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in model.modules()
    )
    return [id(p) for p in own] == [id(p) for p in model.parameters()] and not hooked


def _is_block(block: list[nn.Module]) -> bool:
    if [type(m) for m in block] != [nn.Conv2d, nn.ReLU, nn.MaxPool2d]:
        return False
    conv, _, pool = block
    assert isinstance(conv, nn.Conv2d)
    assert isinstance(pool, nn.MaxPool2d)
    size = conv.kernel_size[0]
    return (
        conv.kernel_size == (size, size)
        and size % 2 == 1
        and conv.padding == (size // 2, size // 2)
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
