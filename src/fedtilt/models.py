"""The paper's models, and the checks that any other `nn.Module` must pass."""

import copy
import functools
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedtilt import seeds
from fedtilt.checks import whole
from fedtilt.data.inputs import Inputs
from fedtilt.data.inputs import Shape as InputShape
from fedtilt.data.targets import NumericTarget, Target
from fedtilt.errors import InputError, InputWarning
from fedtilt.files import read_metadata, read_tensors
from fedtilt.imports import function_path, import_function, is_function_path, is_in_current_folder

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
    _check_one_tensor(input_shape, "mlp")
    inner = _sizes(hidden, "hidden")
    sizes = [whole(math.prod(input_shape), "a sample's size", 1), *inner, whole(classes, "classes", 1)]
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(sizes[:-1]):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


def cnn(input_shape: Shape = (3, 32, 32), classes: int = 10, channels: Sequence[int] = (32, 64, 128)) -> nn.Module:
    """The paper's network for CIFAR-10: three blocks (3×3 convolution, ReLU, 2×2 max-pool), then one linear layer.

    >>> cnn()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    _check_one_tensor(input_shape, "cnn")
    if len(input_shape) != 3:
        raise InputError(f"cnn needs images (channels, height, width), got input_shape {tuple(input_shape)}; use mlp")
    planes, height, width = input_shape
    channels = _sizes(channels, "channels")
    if not channels:
        raise InputError("channels must list a size for every block, got none; use mlp")
    layers: list[nn.Module] = []
    for fan_in, fan_out in zip([planes, *channels[:-1]], channels, strict=True):
        if min(height, width) < 2:
            raise InputError(
                f"an image of {tuple(input_shape)} is too small for {len(channels)} blocks; use fewer channels"
            )
        layers += [nn.Conv2d(fan_in, fan_out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        height, width = height // 2, width // 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels[-1] * height * width, whole(classes, "classes", 1)))


MODELS: dict[str, Callable[..., nn.Module]] = {"logistic": logistic, "mlp": mlp, "cnn": cnn}


def from_lightning(module: nn.Module) -> nn.Module:
    """A LightningModule as a model: its `forward` is trained, and a warning names what is not used of it.

    `ft.run` has its own loop: the loss, the optimiser and the schedule are its settings, not those of `training_step`
    and `configure_optimizers`.

    Args:
        module: a LightningModule of `lightning` or `pytorch_lightning` with a `forward` that returns logits
    """
    packages = [sys.modules[name] for name in ("lightning.pytorch", "pytorch_lightning") if name in sys.modules]
    base = next((package.LightningModule for package in packages if isinstance(module, package.LightningModule)), None)
    if base is None:
        raise InputError(f"{type(module).__name__} is no LightningModule; give any other nn.Module as it is")
    own = [vars(cls) for cls in type(module).__mro__ if cls not in base.__mro__]
    if not any("forward" in names for names in own):
        raise InputError(f"{type(module).__name__} has no forward; write one that returns the logits of a batch")
    unused = sorted({name for names in own for name in names if callable(getattr(base, name, None)) and name[0] != "_"})
    if unused := [name for name in unused if name not in ("forward", "train", "eval")]:
        text = f"{', '.join(unused)} of {type(module).__name__} have no effect: a run trains forward with its own"
        warnings.warn(InputWarning(f"{text} loss, optimizer and schedule; set them in ft.run"), stacklevel=2)
    return module


def _check_one_tensor(input_shape: object, name: str) -> None:
    if isinstance(input_shape, Mapping):
        raise InputError(
            f"{name} takes one tensor, and samples are a dictionary of {', '.join(input_shape)}; pass a model whose "
            "forward takes these names"
        )


def _sizes(sizes: Sequence[int], what: str) -> list[int]:
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        raise InputError(f"{what} must be a list of sizes, such as (64, 64), got {sizes!r}")
    return [whole(size, f"every size in {what}", 1) for size in sizes]


def build(source: ModelSource, input_shape: InputShape, classes: int, seed: int) -> nn.Module:
    """A checked model on the CPU: a copy of a module, or the result of a function.

    Args:
        source: a module, or a function that may take `input_shape` and `classes`
        input_shape: the shape of one sample
        classes: the number of classes
        seed: seeds the initial weights of a function; the global random state is restored afterwards
    """
    if isinstance(source, nn.Module):
        model = copy.deepcopy(source)
    elif not callable(source):
        raise InputError(f"model must be an nn.Module or a function such as ft.models.mlp, got {source!r}")
    else:
        with seeds.seeded_global_rng(seed % 2**63):
            model = _call(source, input_shape, classes)
    if _name_of(source) is None:
        _fit(model, input_shape, classes, seed)
    check(model)
    return model.cpu()


def _fit(model: nn.Module, input_shape: InputShape, outputs: int, seed: int) -> None:
    """Initialise lazy layers, and let a model with one logit return two: 0 and the logit."""
    is_lazy = any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters())
    if not is_lazy and outputs != 2:
        return
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), seeds.seeded_global_rng(seed % 2**63):
            found = random_output(model.cpu().eval(), input_shape)
    except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
        if is_lazy:
            raise InputError(f"the lazy layers do not take samples of shape {input_shape}: {error}") from error
        return  # the check on real samples names the problem
    for module, mode in modes.items():
        module.training = mode
    if outputs == 2 and isinstance(found, Tensor) and (found.dim() == 1 or found.shape[1:] == (1,)):
        model.register_forward_hook(_two_logits)


def _two_logits(model: nn.Module, inputs: object, output: Any) -> Tensor:
    """One logit of the second class as those of two: the cross-entropy is that of a sigmoid."""
    logit = output_logits(output).reshape(-1, 1)
    return torch.cat([torch.zeros_like(logit), logit], 1)


def random_output(model: nn.Module, input_shape: InputShape) -> Tensor:
    """The logits of two random samples; a model of tokens does not take random numbers, and gets zeros and ones."""
    shapes = input_shape if isinstance(input_shape, dict) else {"": input_shape}
    generator = torch.Generator().manual_seed(0)  # not torch's global one, which lazy layers are initialised with
    numbers = {key: torch.randn(2, *shape, generator=generator) for key, shape in shapes.items()}
    tokens = {key: torch.randint(2, (2, *shape), generator=generator) for key, shape in shapes.items()}
    try:
        return logits(model, numbers if isinstance(input_shape, dict) else numbers[""])
    except (RuntimeError, TypeError, ValueError, IndexError):
        return logits(model, tokens if isinstance(input_shape, dict) else tokens[""])


def build_without_storage(source: ModelSource, input_shape: InputShape, classes: int) -> nn.Module | None:
    """A built-in model whose parameters have shapes but no memory.

    None for any other model: the user's function may read files or count its calls.
    """
    if isinstance(source, nn.Module) or _name_of(source) is None:
        return None
    with torch.device("meta"):
        return _call(source, input_shape, classes)


def _call(source: Callable[..., nn.Module], input_shape: InputShape, classes: int) -> nn.Module:
    """What the function returns for the arguments that it takes."""
    name = function_name(source)
    parameters = inspect.signature(source).parameters
    arguments = {"input_shape": input_shape, "classes": classes}
    _check_callable(parameters.values(), arguments, name)
    model = source(**{key: value for key, value in arguments.items() if key in parameters})
    if not isinstance(model, nn.Module):
        raise InputError(f"the model function {name} returned a {type(model).__name__}; it must return an nn.Module")
    return model


def _name_of(source: ModelSource) -> str | None:
    """The name of a built-in model; None for any other."""
    function = source.func if isinstance(source, functools.partial) else source
    return next((name for name, builder in MODELS.items() if builder is function), None)


def function_name(function: Callable[..., object]) -> str:
    """The name of a function or class, for messages."""
    if isinstance(function, functools.partial):
        return function_name(function.func)
    return getattr(function, "__name__", type(function).__name__)


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

    >>> recipe(functools.partial(mlp, hidden=(64,)), (8,), 3)
    {'name': 'mlp', 'input_shape': [8], 'classes': 3, 'hidden': [64]}
    """
    if isinstance(source, nn.Module):
        return None
    args, keywords = (source.args, source.keywords) if isinstance(source, functools.partial) else ((), {})
    name = _name_of(source)
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


def _check_callable(parameters: Iterable[inspect.Parameter], arguments: Container[str], name: str) -> None:
    for p in parameters:
        required = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if required and p.name not in arguments:
            wrap = f"pass a function that needs no more, such as lambda: {name}(...)"
            raise InputError(
                f"the model function {name} needs {p.name!r}, but is called with input_shape and classes only; "
                f"{wrap if name.isidentifier() else f'give {p.name} a default'}"
            )


def check(model: nn.Module) -> None:
    """Raise InputError for models whose parameters cannot be trained and averaged as one float32 vector."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None:
            raise InputError(
                f"layer {name!r} ({type(layer).__name__}) has no running statistics, so it evaluates a sample by its "
                "neighbours; build it with track_running_stats=True, or use GroupNorm"
            )
        if isinstance(layer, torch.jit.ScriptModule | nn.DataParallel):
            raise InputError(f"a {type(layer).__name__} does not take other parameters; pass the module inside it")
    trained = trained_parameters(model)
    if not trained:
        frozen = sum(1 for _ in model.parameters())
        why = f"all {frozen} are frozen (requires_grad = False)" if frozen else "it has none"
        raise InputError(f"{type(model).__name__} has no parameters to train: {why}")
    types = {p.dtype for p in trained.values()}
    if types != {torch.float32}:
        raise InputError(
            f"trained parameters must all be float32, got {', '.join(sorted(map(str, types)))}; call model.float()"
        )


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name, in the order of `model.parameters()`: those that require gradients."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


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
