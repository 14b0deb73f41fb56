"""The networks of the libraries whose tables are matched."""

import itertools
from collections.abc import Callable

from torch import nn


def _two_convolutions(
    channels: tuple[int, int, int], hidden: tuple[int, ...], flat: int, classes: int
) -> nn.Sequential:
    """Two 5 × 5 convolutions, each with ReLU and 2 × 2 max pooling, then fully connected layers with ReLU between."""
    first, second, third = channels
    layers: list[nn.Module] = [
        nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(second, third, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
    ]  # fmt: skip
    sizes = (flat, *hidden, classes)
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Linear(inputs, outputs), *([nn.ReLU()] if i < len(hidden) else [])]
    return nn.Sequential(*layers)


def byzfl_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """ByzFL's `cnn_mnist`."""
    return _two_convolutions((input_shape[0], 20, 50), (500,), 50 * _side(input_shape) ** 2, classes)


def pfllib_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """PFLlib's `FedAvgCNN`; the last layer is the head of FedRep."""
    return _two_convolutions((input_shape[0], 32, 64), (512,), 64 * _side(input_shape) ** 2, classes)


def niid_bench_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of niid-bench: LeNet-5."""
    return _two_convolutions((input_shape[0], 6, 16), (120, 84), 16 * _side(input_shape) ** 2, classes)


def _side(input_shape: tuple[int, ...]) -> int:
    """The height of the image after both convolutions."""
    return ((input_shape[1] - 4) // 2 - 4) // 2


MODELS: dict[str, Callable[..., nn.Module]] = {
    "byzfl": byzfl_cnn, "pfllib": pfllib_cnn, "niid-bench": niid_bench_cnn,
}  # fmt: skip
