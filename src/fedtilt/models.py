"""The paper's models, and what any other `nn.Module` must be like."""

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from fedtilt.errors import InputError

Shape = Sequence[int]
ModelSource = nn.Module | Callable[..., nn.Module]


def logistic(input_shape: Shape = (1, 28, 28), classes: int = 10) -> nn.Module:
    """Logistic regression: one linear layer.

    >>> logistic((2,), 2)(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """
    return mlp(input_shape, classes, hidden=())


def mlp(input_shape: Shape = (1, 28, 28), classes: int = 10, hidden: Sequence[int] = (200, 200)) -> nn.Module:
    """The paper's 3-layer perceptron (784-200-200-10 on MNIST) with ReLU; `hidden` sets any other sizes.

    >>> sum(p.numel() for p in mlp().parameters())
    199210
    """
    sizes = [_positive(math.prod(input_shape), "input_shape"), *hidden, classes]
    for size in sizes[1:]:
        _positive(size, "hidden")
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(sizes[:-1]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], classes))


def cnn(input_shape: Shape = (3, 32, 32), classes: int = 10, channels: Sequence[int] = (32, 64, 128)) -> nn.Module:
    """The paper's network for CIFAR-10: three blocks (3×3 convolution, ReLU, 2×2 max-pool), then one linear layer.

    >>> cnn()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    if len(input_shape) != 3:
        raise InputError(f"cnn needs images (channels, height, width), got input_shape {tuple(input_shape)}; use mlp")
    planes, height, width = input_shape
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip([planes, *channels[:-1]], channels, strict=True):
        if min(height, width) < 2:
            raise InputError(
                f"an image of {tuple(input_shape)} is too small for {len(channels)} blocks; use fewer channels"
            )
        layers += [nn.Conv2d(fan_in, _positive(fan_out, "channels"), 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        height, width = height // 2, width // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * height * width, classes))


MODELS: dict[str, Callable[..., nn.Module]] = {"logistic": logistic, "mlp": mlp, "cnn": cnn}


def _positive(size: int, what: str) -> int:
    if size < 1:
        raise InputError(f"every size in {what} must be ≥ 1, got {size}")
    return size


def build(source: ModelSource, input_shape: Shape, classes: int, seed: int) -> nn.Module:
    """A checked model: from a module (copied), or a function that may take `input_shape` and `classes`.

    A function is called with `seed` as the random state of its initial weights; the global state is left alone.
    """
    if isinstance(source, nn.Module):
        model = copy.deepcopy(source)
    else:
        accepted = inspect.signature(source).parameters
        known = {"input_shape": tuple(input_shape), "classes": classes}
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed % 2**63)
            model = source(**{name: value for name, value in known.items() if name in accepted})
    check(model)
    return model


def check(model: nn.Module) -> None:
    """Refuse what cannot be averaged: running statistics, no or mixed-type parameters."""
    for name, layer in model.named_modules():
        if getattr(layer, "running_mean", None) is not None:
            raise InputError(
                f"layer {name!r} ({type(layer).__name__}) keeps running statistics, which clients cannot share; "
                "use GroupNorm or LayerNorm, or track_running_stats=False"
            )
    types = {p.dtype for p in model.parameters()}
    if not types:
        raise InputError(f"{type(model).__name__} has no parameters to train")
    if types != {torch.float32}:
        raise InputError(
            f"parameters must all be float32, got {', '.join(sorted(map(str, types)))}; call model.float()"
        )
    frozen = next((name for name, p in model.named_parameters() if not p.requires_grad), None)
    if frozen:
        raise InputError(
            f"parameter {frozen!r} is frozen; a federation trains all parameters: make it a buffer instead"
        )


def flat(model: nn.Module) -> Tensor:
    """All parameters as one new vector (P,), in the order of `model.parameters()`."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def unflat(model: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """Views into `vector` (…, P) by parameter name."""
    named = list(model.named_parameters())
    pieces = vector.split([p.numel() for _, p in named], dim=-1)
    return {name: piece.reshape(*vector.shape[:-1], *p.shape) for (name, p), piece in zip(named, pieces, strict=True)}


def with_weights(model: nn.Module, vector: Tensor) -> nn.Module:
    """A copy of the model that holds these parameters."""
    twin = copy.deepcopy(model)
    values = unflat(twin, vector)
    with torch.no_grad():
        for name, p in twin.named_parameters():
            p.copy_(values[name])
    return twin
