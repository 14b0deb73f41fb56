"""The last layer of a model and its features, the inputs of that layer, for methods that treat them apart."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt.data.inputs import Inputs, take
from fedtilt.errors import InputError
from fedtilt.models import logits, tied_last_layer, trained_parameters

_SAMPLES = 4096  # in a forward pass without gradients


def last_linear(model: nn.Module, rule: str) -> nn.Linear:
    """The last trained layer, which must be linear; `rule` is the component that needs it."""
    if (other := tied_last_layer(model)) is not None:
        raise InputError(f"{rule!r} needs a last layer with parameters of its own; this model ties it to {other!r}")
    name = [*trained_parameters(model)][-1].rpartition(".")[0]
    layer = model.get_submodule(name)
    if not isinstance(layer, nn.Linear):
        raise InputError(
            f"{rule!r} needs a model whose last trained layer is an nn.Linear; it is a {type(layer).__name__}"
        )
    return layer


def class_count(model: nn.Module, rule: str) -> int:
    """The outputs of the last layer, one for every class; a single one is the logit of two classes."""
    return max(2, last_linear(model, rule).out_features)


def body_parameters(model: nn.Module, rule: str) -> list[nn.Parameter]:
    """The trained parameters of all layers but the last, of which there must be some."""
    head = {id(p) for p in last_linear(model, rule).parameters()}
    body = [p for p in trained_parameters(model).values() if id(p) not in head]
    if not body:
        raise InputError(f"{rule!r} needs a model with trained layers before the last one; this model has none")
    return body


def with_features(model: nn.Module, x: Inputs, rule: str, shift: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The features of samples (n, F), and the outputs; with a shift (F,), the outputs of the shifted features."""
    seen: list[Tensor] = []

    def keep(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        seen.append(inputs[0])
        return None if shift is None else (inputs[0] + shift,)

    handle = last_linear(model, rule).register_forward_pre_hook(keep)
    try:
        outputs = logits(model, x).float()
    finally:
        handle.remove()
    if not seen:
        raise InputError(f"{rule!r} needs a model that calls its last layer; its forward pass does not")
    return seen[-1], outputs


def with_second_head(
    model: nn.Module, x: Inputs, rule: str, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The outputs, and those of the last layer and a second one together; the second learns, all else is constant."""

    def append(layer: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> Tensor:
        # as further samples: what follows the last layer, such as a temperature, holds for them too
        return torch.cat([outputs, outputs.detach() + F.linear(inputs[0].detach(), weight, bias)])

    handle = last_linear(model, rule).register_forward_hook(append)
    try:
        _, outputs = with_features(model, x, rule)
    finally:
        handle.remove()
    alone, both = outputs.chunk(2)
    return alone, both


def evaluated(model: nn.Module, x: Inputs, samples: int, rule: str) -> tuple[Tensor, Tensor]:
    """`with_features` of all samples in evaluation mode, without gradients; the model stays as it is."""
    net = copy.deepcopy(model).eval()
    with torch.no_grad():
        parts = [with_features(net, take(x, slice(i, i + _SAMPLES)), rule) for i in range(0, samples, _SAMPLES)]
    features, outputs = zip(*parts, strict=True)
    return torch.cat(features), torch.cat(outputs)


def check_labels(y: Tensor, rule: str) -> None:
    """Raise InputError if the targets are not classes."""
    if y.is_floating_point() or y.dim() > 1:
        what = "tokens or several labels" if y.dim() > 1 else "numbers"
        raise InputError(f"{rule!r} is for classes; the targets are {what}")


def check_features(features: Tensor, rule: str) -> None:
    """Raise InputError if a sample has more than one vector of features, as a text has."""
    if features.dim() != 2:
        raise InputError(f"{rule!r} needs one vector of features for a sample; this model has {features.shape[1]}")


def members(codes: Tensor, count: int, weights: Tensor | None = None) -> Tensor:
    """Where a sample is of a class or group its weight, by default 1, else 0, (n, count)."""
    member = (codes[:, None] == torch.arange(count, device=codes.device)).float()
    return member if weights is None else member * weights.to(member)[:, None]
