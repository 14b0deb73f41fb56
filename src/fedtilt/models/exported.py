"""Models in files: how one is built again, and in which unit it predicts."""

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedtilt.data.inputs import Shape as InputShape
from fedtilt.data.targets import NumericTarget, Target
from fedtilt.errors import InputError
from fedtilt.files import read_metadata, read_tensors
from fedtilt.imports import function_path, import_function, is_function_path, is_in_current_folder
from fedtilt.models.networks import MODELS, ModelSource, build, built_in_name
from fedtilt.models.parameters import output_logits


class InTargetUnit(nn.Module):
    """A model of numbers that returns them in the unit of the target: output · deviation + mean."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, mean: float, deviation: float) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean))
        self.register_buffer("deviation", torch.tensor(deviation))

    def forward(self, *args: Any, **inputs: Any) -> Tensor:
        """Predictions (n, 1)."""
        return output_logits(self.model(*args, **inputs)) * self.deviation + self.mean


def in_target_unit(model: nn.Module, target: Target | None) -> nn.Module:
    """The model, with its outputs in the unit of the target if that is a number."""
    return InTargetUnit(model, target.mean, target.deviation).eval() if isinstance(target, NumericTarget) else model


def load(path: str | os.PathLike[str], model: ModelSource | str | None = None) -> nn.Module:
    """Load a model that `fedtilt export` wrote, as a module; numbers are in the unit of the target.

    `ft.load` also prepares new data for it, and names its predictions.

    Args:
        path: the safetensors file
        model: what the weights belong to, if the file does not say: a module, a function that returns one, or the name
            of a function, such as "mymodels:net"
    """
    return build_exported(read_tensors(Path(path)), read_metadata(Path(path)), path, model)


def build_exported(
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    source: str | os.PathLike[str],
    model: ModelSource | str | None = None,
    *,
    trusted: bool = False,
) -> nn.Module:
    """A model from the tensors and the metadata of an export.

    Args:
        tensors: its state
        metadata: of the export
        source: where it comes from, for messages
        model: see `load`
        trusted: whether the metadata may name any function that can be imported, as the user's own run folder may
    """
    if "model" not in metadata and model is None:
        raise InputError(
            f"{source} does not say how to build its model, which was no function that can be imported: pass it as "
            "model=…, such as ft.load(path, model=net), or --model mymodels:net"
        )
    try:
        net = _build_recipe(json.loads(metadata.get("model", "{}")), metadata, source, model, trusted=trusted)
        net.load_state_dict(tensors)
        if "target" in metadata:
            net = InTargetUnit(net, **json.loads(metadata["target"]))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        why = " ".join(str(error).split())  # torch writes one line per mismatch
        if model is not None:
            raise InputError(
                f"the weights in {source} do not fit this model ({why}); pass the one that was trained"
            ) from error
        raise InputError(f"the weights in {source} do not match its metadata ({why}); export it again") from error
    return net.eval()


def _build_recipe(
    recipe: Mapping[str, Any],
    metadata: Mapping[str, str],
    source: object,
    model: ModelSource | str | None,
    *,
    trusted: bool,
) -> nn.Module:
    """The model of a recipe, or of `model` in its place."""
    if model is None and recipe["name"] in MODELS:
        return MODELS[recipe["name"]](**{key: value for key, value in recipe.items() if key != "name"})
    own: Any = import_function(model, "model") if isinstance(model, str) else model
    if own is None:
        own = _imported(recipe["name"], source, trusted=trusted)
    if not isinstance(own, nn.Module):
        own = functools.partial(own, **recipe.get("arguments", {}))
    return build(own, exported_shape(metadata), exported_outputs(metadata), seed=0)


def exported_outputs(metadata: Mapping[str, str]) -> int:
    """The number of a model's outputs, in the metadata of an export."""
    if "outputs" in metadata:  # of tokens, or of several labels
        return int(json.loads(metadata["outputs"]))
    return 1 if "target" in metadata else len(json.loads(metadata["classes"]))


def exported_shape(metadata: Mapping[str, str]) -> InputShape:
    """The shape of one sample, in the metadata of an export."""
    shape = json.loads(metadata["input_shape"])
    return {key: tuple(part) for key, part in shape.items()} if isinstance(shape, dict) else tuple(shape)


def _imported(path: str, source: object, *, trusted: bool) -> Callable[..., nn.Module]:
    """The function that a file names; a file from elsewhere must not choose which installed code runs."""
    if not is_function_path(path):
        raise ValueError(f"there is no model {path!r}")
    if not trusted and not is_in_current_folder(path):
        raise InputError(
            f"{source} needs the function {path} to build its model, and it is not in the current folder; start in the "
            f"folder of its module or, if you trust it, name it: --model {path} (model={path!r} in Python)"
        )
    return import_function(path, f"the model of {source}")


def recipe(source: ModelSource, input_shape: InputShape, classes: int) -> dict[str, Any] | None:
    """The name and arguments to build a model again; None if it is no function that can be imported.

    >>> from fedtilt.models import mlp
    >>> recipe(functools.partial(mlp, hidden=(64,)), (8,), 3)
    {'name': 'mlp', 'input_shape': [8], 'classes': 3, 'hidden': [64]}
    """
    if isinstance(source, nn.Module):
        return None
    args, keywords = (source.args, source.keywords) if isinstance(source, functools.partial) else ((), {})
    name = built_in_name(source)
    if name is None:
        path = function_path(source.func if isinstance(source, functools.partial) else source)
        return None if path is None or args or not _is_json(keywords) else {"name": path, "arguments": dict(keywords)}
    shapes = {"input_shape": input_shape, "classes": classes}
    shapes = {key: value for key, value in shapes.items() if key in inspect.signature(source).parameters}
    call = inspect.signature(MODELS[name]).bind(*args, **keywords | shapes)
    call.apply_defaults()
    arguments = {key: [int(n) for n in v] if isinstance(v, Iterable) else int(v) for key, v in call.arguments.items()}
    return {"name": name} | arguments


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
