"""The paper's networks, and the model of a run: built, fitted to its data, and checked."""

import copy
import functools
import inspect
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.checks import whole
from fedtilt.data.inputs import Shape as InputShape
from fedtilt.errors import InputError, InputWarning
from fedtilt.models.parameters import logits, output_logits, trained_parameters

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
    """A checked model on the CPU: a copy of a module, or of what a function returns.

    Args:
        source: a module, or a function that may take `input_shape` and `classes`
        input_shape: the shape of one sample
        classes: the number of classes
        seed: seeds the initial weights of a function; the global random state is restored afterwards
    """
    if isinstance(source, nn.Module):
        model = source
    elif not callable(source):
        raise InputError(f"model must be an nn.Module or a function such as ft.models.mlp, got {source!r}")
    else:
        with seeds.seeded_global_rng(seed % 2**63):
            model = _call(source, input_shape, classes)
    if built_in_name(source) is None:
        model = _copied(model)  # a function may return one module twice
        _fit(model, input_shape, classes, seed)
    check(model)
    return model.cpu()


def _copied(model: nn.Module) -> nn.Module:
    """A copy; tensors computed from parameters, as `weight_norm` has, are copied without their graph."""
    tensors = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    return copy.deepcopy(model, {id(tensor): tensor.detach().clone() for tensor in tensors if not tensor.is_leaf})


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
    if isinstance(source, nn.Module) or built_in_name(source) is None:
        return None
    with torch.device("meta"):
        return _call(source, input_shape, classes)


def _call(source: Callable[..., nn.Module], input_shape: InputShape, classes: int) -> nn.Module:
    """What the function returns for the arguments that it takes."""
    name = function_name(source)
    parameters = inspect.signature(source).parameters
    arguments = {"input_shape": input_shape, "classes": classes}
    for p in parameters.values():
        required = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if required and p.name not in arguments:
            wrap = f"pass a function that needs no more, such as lambda: {name}(...)"
            raise InputError(
                f"the model function {name} needs {p.name!r}, but is called with input_shape and classes only; "
                f"{wrap if name.isidentifier() else f'give {p.name} a default'}"
            )
    model = source(**{key: value for key, value in arguments.items() if key in parameters})
    if not isinstance(model, nn.Module):
        raise InputError(f"the model function {name} returned a {type(model).__name__}; it must return an nn.Module")
    return model


def built_in_name(source: ModelSource) -> str | None:
    """The name of a built-in model; None for any other."""
    function = source.func if isinstance(source, functools.partial) else source
    return next((name for name, builder in MODELS.items() if builder is function), None)


def function_name(function: Callable[..., object]) -> str:
    """The name of a function or class, for messages."""
    if isinstance(function, functools.partial):
        return function_name(function.func)
    return getattr(function, "__name__", type(function).__name__)


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
