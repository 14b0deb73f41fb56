"""The parameters of a model as one vector, and its outputs for other parameters."""

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedtilt.data.inputs import Inputs


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name, in the order of `model.parameters()`: those that require gradients."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def tied_last_layer(model: nn.Module) -> str | None:
    """The name of a parameter that the last layer with trained parameters has from another layer; None: it has none."""
    first_name, tied = dict[nn.Parameter, str](), None
    for prefix, layer in model.named_modules():
        own = [(key, p) for key, p in layer.named_parameters(recurse=False) if p.requires_grad]
        if own:
            tied = next((first_name[p] for _, p in own if p in first_name), None)
        for key, p in own:
            first_name.setdefault(p, f"{prefix}.{key}")
    return tied


def parameters_to_vector(model: nn.Module) -> Tensor:
    """All trained parameters as one new vector (T,), in the order of `trained_parameters`."""
    return torch.cat([p.detach().reshape(-1) for p in trained_parameters(model).values()])


def vector_to_parameters(model: nn.Module, vector: Tensor) -> dict[str, Tensor]:
    """Views into `vector` (…, T) by parameter name."""
    trained = trained_parameters(model)
    pieces = vector.split([p.numel() for p in trained.values()], dim=-1)
    return {
        name: piece if p.dim() == 1 else piece.reshape((*vector.shape[:-1], *p.shape))
        for (name, p), piece in zip(trained.items(), pieces, strict=True)
    }


def logits(model: nn.Module, x: Inputs) -> Tensor:
    """The model's logits for a batch; inputs by name are arguments."""
    return output_logits(model(**x) if isinstance(x, dict) else model(x))


def functional_logits(model: nn.Module, tensors: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """`logits` with other parameters and buffers; those that are not named are the model's."""
    args, arguments = ((), x) if isinstance(x, dict) else ((x,), {})
    # tie_weights=True would leave a module that has two names with these tensors for good
    return output_logits(functional_call(model, _with_tied(model, tensors), args, arguments, tie_weights=False))


def _with_tied(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, tied ones under all their names; a module that has two names has its tensors once."""
    found, first_name = dict(tensors), dict[int, str]()
    for prefix, module in model.named_modules():
        for key, value in (*module._parameters.items(), *module._buffers.items()):
            name = f"{prefix}.{key}" if prefix else key
            first = first_name.setdefault(id(value), name)
            if value is not None and first != name and first in tensors:
                found[name] = tensors[first]
    return found


def output_logits(output: Any) -> Tensor:
    """The logits in what a model returns: a tensor, the first of a tuple, `["logits"]`, or `.logits` of an object."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:  # also the outputs of Hugging Face
        return cast(Tensor, output["logits"])
    if isinstance(output, tuple | list) and output:
        return cast(Tensor, output[0])
    return cast(Tensor, getattr(output, "logits", output))


def copy_with_parameters(model: nn.Module, parameters: Mapping[str, Tensor]) -> nn.Module:
    """A copy whose parameters of these names are these tensors; it shares the others and has buffers of its own."""
    named = model.named_parameters()
    memo = {id(p): nn.Parameter(parameters[name]) if name in parameters else p for name, p in named}
    return copy.deepcopy(model, memo)


def with_weights(model: nn.Module, vector: Tensor, buffers: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A copy of the model with these trained parameters and buffers."""
    model = copy.deepcopy(model)
    values = vector_to_parameters(model, vector) | dict(buffers or {})
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if name in values:
                value.copy_(values[name])
    return model
