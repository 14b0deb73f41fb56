"""Layers that compute the same as torch's, in a form that batches over jobs, and how their parameters lie in a row.

A further kind of layer that stacks is a class here, and a line in `stackable_copy`.
"""

import copy
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from fedtilt.models import trained_parameters
from fedtilt.training.stacked.recurrent import unroll, unroll_reason

_ALIGNMENT = 64  # the products are slower where the rows of a stack do not begin at a multiple of 16 bytes
_COLUMNS = 8  # on CUDA, products of patches are several times as slow where these have no multiple of this many columns


class BatchedFunction(torch.autograd.Function):
    """An operation of one model, written for many at once: what `vmap` makes of it has more to compile.

    A subclass has `many`, whose tensors, given and returned, begin with a dimension of models. It has no gradient,
    unless it has `setup_context` and `backward` too.
    """

    many: Callable[..., tuple[Tensor, ...]]

    def __init_subclass__(cls) -> None:
        many = cls.many

        def forward(*arguments: Any) -> tuple[Tensor, ...]:
            return tuple(t[0] for t in many(*(a[None] if isinstance(a, Tensor) else a for a in arguments)))

        def vmap(info: Any, in_dims: Sequence[Any], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
            results = many(*map(functools.partial(_models_first, info.batch_size), arguments, in_dims))
            return results, (0,) * len(results)

        cls.forward, cls.vmap = staticmethod(forward), staticmethod(vmap)  # type: ignore[method-assign]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """No output has a gradient."""
        ctx.mark_non_differentiable(*output)


def _models_first(models: int, argument: Any, dim: Any) -> Any:
    """A tensor with the models in the first dimension; one that all models share is repeated without a copy."""
    if not isinstance(argument, Tensor):
        return argument
    return argument.expand(models, *argument.shape) if dim is None else argument.movedim(dim, 0)


class _MatmulConv2d(nn.Conv2d):
    """A convolution as patches and one product: over jobs a batched product, not a grouped convolution."""

    padding: tuple[int, int]

    def forward(self, x: Tensor) -> Tensor:
        out, _ = _PatchProduct.apply(x.permute(0, 2, 3, 1), self.weight, self.padding, self.stride)
        return (out if self.bias is None else out + self.bias.to(out.dtype)).permute(0, 3, 1, 2)


def _patch_product(
    x: Tensor, weight: Tensor, padding: tuple[int, int], stride: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Images (L, B, H, W, C) convolved with weights (L, out, C, y, x), (L, B, height, width, out); and the patches.

    On CUDA, columns of zeros fill the patches up.
    """
    padded = F.pad(x, (0, 0, padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
    kernel = weight.shape[3:]
    patches, matrix = _patches(padded, kernel, stride), _matrix(weight)
    if x.is_cuda and (missing := -patches.shape[2] % _COLUMNS):
        patches, matrix = F.pad(patches, (0, missing)), F.pad(matrix, (0, 0, 0, missing))
    height, width = ((padded.shape[2 + i] - kernel[i]) // stride[i] + 1 for i in (0, 1))
    return torch.bmm(patches, matrix).reshape(*x.shape[:2], height, width, -1), patches


def _patch_product_gradient(
    grad: Tensor, weight: Tensor, patches: Tensor, padding: tuple[int, int], stride: tuple[int, int],
    size: tuple[int, int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient by the images, which is summed over the patches that a pixel is in; and by the weights."""
    models, out, channels, *kernel = weight.shape
    rows = _rows(grad, out)
    by_matrix = torch.bmm(patches.to(grad.dtype).transpose(1, 2), rows)[:, : math.prod(kernel) * channels]
    by_weight = by_matrix.reshape(models, *kernel, channels, out)
    by_patches = torch.bmm(rows, _matrix(weight.to(grad.dtype)).transpose(1, 2))
    by_x = _sum_patches(
        by_patches.reshape(*grad.shape[:2], -1, channels), grad.shape[2:4], kernel, padding, stride, size
    )
    return by_x.to(patches.dtype), by_weight.permute(0, 4, 3, 1, 2).to(weight.dtype)


class _PatchProduct(BatchedFunction):
    """The product of an image's patches and the weights of a convolution, (B, height, width, out); and the patches.

    Its gradient is written out: autograd would add up one slice for every place in the kernel.
    """

    many = staticmethod(_patch_product)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, ctx.padding, ctx.stride = inputs
        ctx.size = x.shape[1:3]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(weight, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, Tensor, None, None]:
        by_x, by_weight = _PatchProductGradient.apply(grad, *ctx.saved_tensors, ctx.padding, ctx.stride, ctx.size)
        return by_x, by_weight, None, None


class _PatchProductGradient(BatchedFunction):
    """The gradient of a product of patches by the image and by the weights."""

    many = staticmethod(_patch_product_gradient)


def _patches(x: Tensor, kernel: Sequence[int], stride: Sequence[int]) -> Tensor:
    """What every place of the kernel sees of images (L, B, H, W, C): (L, B · height · width, kernel · C)."""
    if tuple(kernel) == (1, 1):
        return _rows(x[:, :, :: stride[0], :: stride[1]], x.shape[4])
    windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # (L, B, height, width, C, y, x)
    return _rows(windows.permute(0, 1, 2, 3, 5, 6, 4), math.prod(kernel) * x.shape[4])


def _rows(x: Tensor, columns: int) -> Tensor:
    """A tensor (L, …) as (L, rows, columns).

    Reshaped, it would take the compiler longer: to see that the result of an operation is stored in this form already.
    """
    rows = math.prod(x.shape[1:]) // columns
    return x.contiguous().as_strided((len(x), rows, columns), (rows * columns, columns, 1))


def _matrix(weight: Tensor) -> Tensor:
    """The weights of a convolution (L, out, C, y, x) as a product takes them, (L, y · x · C, out)."""
    return weight.permute(0, 3, 4, 2, 1).flatten(1, 3)


def _sum_patches(
    patches: Tensor, places: Sequence[int], kernel: Sequence[int], padding: Sequence[int], stride: Sequence[int],
    size: Sequence[int],
) -> Tensor:  # fmt: skip
    """The sum over all patches (L, B, height · width · kernel, C) that a pixel is in: images (L, B, H, W, C).

    Every pixel looks up its own values: on a GPU, adding every value to its pixel would follow the order of threads.
    """
    if math.prod((*kernel, *stride)) > 1 or any(padding):
        index = _patch_index_on(patches, tuple(places), tuple(kernel), tuple(padding), tuple(stride), tuple(size))
        patches = torch.where((index >= 0)[..., None], patches[:, :, index], 0).sum(3)
    return patches.reshape(*patches.shape[:2], *size, -1)


def _patch_index_on(patches: Tensor, *sizes: tuple[int, ...]) -> Tensor:
    """`_patch_index` on the device of the patches: copied once, since a CUDA graph cannot capture a copy."""
    if isinstance(patches, FakeTensor):  # while the step is traced for the compiler
        return torch.from_numpy(_patch_index(*sizes)).to(patches.device)
    return _cached_patch_index(patches.device, *sizes)


@functools.lru_cache(maxsize=256)
def _cached_patch_index(device: torch.device, *sizes: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(_patch_index(*sizes)).to(device)


def _patch_index(
    places: Sequence[int], kernel: Sequence[int], padding: Sequence[int], stride: Sequence[int], size: Sequence[int]
) -> np.ndarray:
    """Where each pixel of an image is found in its patches, (H · W, the most patches of a pixel); −1 fills up."""
    row, column = (_patches_of_pixels(*sizes) for sizes in zip(places, kernel, padding, stride, size, strict=True))
    row, column = row[:, None, :, None], column[None, :, None, :]  # (H, W, y, x)
    y, x = np.indices(kernel)
    index = ((row * places[1] + column) * kernel[0] + y) * kernel[1] + x
    index = np.where((row >= 0) & (column >= 0), index, -1).reshape(math.prod(size), -1)
    often = (index >= 0).sum(1).max()
    return np.sort(index, 1)[:, index.shape[1] - often :]


def _patches_of_pixels(places: int, kernel: int, padding: int, stride: int, size: int) -> np.ndarray:
    """In one dimension: the patch that has pixel i as its k-th, (size, kernel); −1 where there is none."""
    start = np.arange(size)[:, None] + padding - np.arange(kernel)
    return np.where((start % stride == 0) & (start >= 0) & (start < places * stride), start // stride, -1)


def is_product(layer: nn.Module) -> bool:
    """Whether a layer is a convolution that a stackable copy computes as a product."""
    if type(layer) is not nn.Conv2d or layer.dilation != (1, 1) or layer.groups != 1:
        return False
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


class _MeanPool2d(nn.AdaptiveAvgPool2d):
    """The mean over an image; torch's own has an operation that does not batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1), keepdim=True)


def stackable_copy(model: nn.Module) -> nn.Module:
    """A copy of the model whose convolutions, mean pooling and recurrent layers batch well over jobs."""
    net = copy.deepcopy(model)
    for layer in net.modules():
        if is_product(layer):
            layer.__class__ = _MatmulConv2d
        elif type(layer) is nn.AdaptiveAvgPool2d and layer.output_size in (1, (1, 1)):
            layer.__class__ = _MeanPool2d
        elif isinstance(layer, nn.RNNBase) and unroll_reason(layer) is None:
            unroll(layer)
    return net


class ParameterRows:
    """Rows with the trained parameters of a model, in pieces that a step reads and updates as they are.

    Every matrix is a piece, and all vectors together are the last one. The weights of a convolution lie as its product
    takes them, (y, x, C, out): otherwise every step would copy them all, and their gradient. Every piece begins at a
    multiple of `_ALIGNMENT`, so that products are aligned.
    """

    def __init__(self, model: nn.Module) -> None:
        self._shapes = {name: p.shape for name, p in trained_parameters(model).items()}
        layers = dict(model.named_modules())
        self._products = {name for name in self._shapes if _is_weight_of_product(layers, name)}
        vectors = [name for name, shape in self._shapes.items() if len(shape) < 2]
        matrices = [[name] for name in self._shapes if name not in vectors]
        self._names = [names for names in (*matrices, vectors) if names]  # by piece
        self.pieces: list[slice] = []
        self.row_length = 0  # entries without a parameter are 0
        for names in self._names:
            size = sum(self._shapes[name].numel() for name in names)
            self.pieces.append(slice(self.row_length, self.row_length + size))
            self.row_length += -(-size // _ALIGNMENT) * _ALIGNMENT

    def parameters(self, pieces: Sequence[Tensor]) -> dict[str, Tensor]:
        """Views into the pieces (…, columns) of rows by parameter name, in the order of the model."""
        views = {}
        for names, piece in zip(self._names, pieces, strict=True):
            sizes = [self._shapes[name].numel() for name in names]
            for name, columns in zip(names, piece.split(sizes, -1), strict=True):
                views[name] = self._view(name, columns)
        return {name: views[name] for name in self._shapes}

    def views(self, rows: Tensor) -> list[Tensor]:
        """The parameters of models in their rows (L, row_length), in the order of the model."""
        return list(self.parameters([rows[:, columns] for columns in self.pieces]).values())

    def _view(self, name: str, columns: Tensor) -> Tensor:
        shape = self._shapes[name]
        if name in self._products:
            out, channels, *kernel = shape
            models = range(columns.dim() - 1)
            order = [len(models) + i for i in (3, 2, 0, 1)]
            return columns.unflatten(-1, (*kernel, channels, out)).permute(*models, *order)
        return columns.reshape((*columns.shape[:-1], *shape))


class Layout(Protocol):
    """How the parameters of a model lie in a row: `ParameterRows`, or a `SequentialNet`."""

    @property
    def row_length(self) -> int:
        """Numbers in a row; those without a parameter are 0."""
        ...

    def views(self, rows: Tensor) -> list[Tensor]:
        """The parameters of models in their rows (L, row_length), in the order of the model."""
        ...


def read_models(views: Sequence[Tensor]) -> Tensor:
    """The vectors (L, P) of models of which these are the parameters, each (L, …)."""
    sizes = [view[0].numel() for view in views]
    vectors = views[0].new_empty(len(views[0]), sum(sizes))
    for view, columns in zip(views, vectors.split(sizes, 1), strict=True):
        columns.view(view.shape).copy_(view)
    return vectors


def parameter_index(layout: Layout, device: torch.device) -> Tensor:
    """Where the parameters of a model (P,) are in its row."""
    return read_models(layout.views(torch.arange(layout.row_length)[None]))[0].to(device)


def _is_weight_of_product(layers: dict[str, nn.Module], name: str) -> bool:
    layer, _, attribute = name.rpartition(".")
    return attribute == "weight" and is_product(layers[layer])
