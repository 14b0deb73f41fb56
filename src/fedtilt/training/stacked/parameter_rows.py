"""Where the parameters of a model lie in the row of a stack that holds them."""

import functools

import torch
from torch import Tensor, nn

from fedtilt.models import trained_parameters
from fedtilt.training.stacked.layers import is_product

_ALIGNMENT = 64  # the products are slower where the rows of a stack do not begin at a multiple of 16 bytes


class ParameterRows:
    """Rows with the trained parameters of a model, ordered so that a step reads them as they are.

    The weights of a convolution lie as its product takes them, (y, x, C, out): otherwise every step would copy them
    all, and their gradient. Matrices come before vectors and the length is rounded up, so that products are aligned.
    """

    def __init__(self, model: nn.Module) -> None:
        self._shapes = {name: p.shape for name, p in trained_parameters(model).items()}
        self._order = sorted(self._shapes, key=lambda name: len(self._shapes[name]) < 2)
        layers = dict(model.named_modules())
        self._products = {name for name in self._shapes if _is_weight_of_product(layers, name)}
        sizes = [self._shapes[name].numel() for name in self._order]
        self._sizes = [*sizes, -sum(sizes) % _ALIGNMENT]
        self.row_length = sum(self._sizes)  # entries without a parameter are 0

    @functools.cached_property
    def parameter_index(self) -> Tensor:
        """The index of each parameter of the model in the row (P,)."""
        views = self.parameters(torch.arange(self.row_length))
        return torch.cat([view.flatten() for view in views.values()])

    def parameters(self, row: Tensor) -> dict[str, Tensor]:
        """Views into a row (row_length,) by parameter name, in the order of the model."""
        pieces = dict(zip(self._order, row.split(self._sizes), strict=False))
        return {name: self._view(name, pieces[name]) for name in self._shapes}

    def _view(self, name: str, piece: Tensor) -> Tensor:
        shape = self._shapes[name]
        if name in self._products:
            out, channels, *kernel = shape
            return piece.reshape(*kernel, channels, out).permute(3, 2, 0, 1)
        return piece if len(shape) == 1 else piece.reshape(shape)


def _is_weight_of_product(layers: dict[str, nn.Module], name: str) -> bool:
    layer, _, attribute = name.rpartition(".")
    return attribute == "weight" and is_product(layers[layer])
