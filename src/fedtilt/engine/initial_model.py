"""The initial model of a run, checked on samples of the data, with its parts, and the weights that it starts from."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.data.data_warnings import last_function, warn
from fedtilt.data.inputs import Shape, take
from fedtilt.engine.model_checks import (
    check_batch_sizes,
    check_constant_parameters,
    check_gradients,
    check_micro_batches,
    check_output,
)
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError, InputWarning
from fedtilt.files import read_tensors
from fedtilt.losses import Loss
from fedtilt.models import ModelSource, build, logits, trained_parameters
from fedtilt.models.networks import built_in_name
from fedtilt.parts import Parts
from fedtilt.text_tables import first_names
from fedtilt.training.augmentation import check_transform
from fedtilt.training.client_update import torch_optimizer


def build_initial_model(
    model: ModelSource, input_shape: Shape, outputs: int, settings: TrainSettings
) -> tuple[nn.Module, Parts]:
    """The initial model of every method, in evaluation mode, and its parts."""
    net = _build(model, input_shape, outputs, settings)
    return net, _parts(net, input_shape, settings)


def initial_model(federation: Federation, model: ModelSource, settings: TrainSettings) -> tuple[nn.Module, Parts]:
    """`build_initial_model`, checked on samples of the first client."""
    net = _build(model, federation.input_shape, federation.outputs, settings)
    x, y = federation.clean_train(federation.first_client)
    for count in (2, 1):  # the last batch of an epoch may have one sample
        rows = torch.zeros(count, dtype=torch.long)
        check_output(net, take(x, rows), y[rows], federation, settings.sample_loss)
    if built_in_name(model) is None:
        two = torch.zeros(2, dtype=torch.long)
        check_constant_parameters(net, take(x, two))
        check_gradients(net, take(x, two), y[two], settings.sample_loss)
    if settings.micro_batch_size is not None:
        check_micro_batches(net, x, y, settings)
    if federation.target is None and (settings.loss is None or isinstance(settings.loss, Loss)):
        with torch.no_grad():
            last = last_function(logits(net, take(x, slice(0, 64))))
        if last is not None:
            warn([f"the model ends in {last}, but the loss takes logits, so training is slow; remove the last layer"])
    if settings.batch_transform is not None:
        check_transform(settings.batch_transform, take(x, slice(0, 8)))
    if settings.client_optimizer.is_of_torch:
        torch_optimizer(settings.client_optimizer, list(trained_parameters(net).values()), settings.lr)
    parts = _parts(net, federation.input_shape, settings)
    if parts.trains_buffers:
        check_batch_sizes(net, federation, settings)
    return net, parts


def _build(model: ModelSource, input_shape: Shape, classes: int, settings: TrainSettings) -> nn.Module:
    if (check := getattr(settings.loss, "check_classes", None)) is not None:
        check(classes)
    net = build(model, input_shape, classes, seeds.key(settings.seed, "init"))
    if settings.init is not None:
        load_initial_weights(net, settings.init)
    return net.eval()


def _parts(net: nn.Module, input_shape: Shape, settings: TrainSettings) -> Parts:
    parts = Parts.of(net, input_shape, local=settings.local, buffers=settings.buffers)
    if parts.trains_buffers and settings.micro_batch_size is not None:
        raise InputError(
            f"micro_batch_size = {settings.micro_batch_size} would change what the model computes: its buffer "
            f"{next(iter(parts.buffers))!r} is of whole batches; use GroupNorm, set buffers = 'frozen', "
            "or leave it out"
        )
    return parts


def load_initial_weights(net: nn.Module, source: str | nn.Module) -> None:
    """Copy parameters and buffers by name into the model.

    Tensors that the source lacks, such as a new head, keep their values, and an `InputWarning` names them. Tensors that
    the model lacks, and other shapes, raise InputError.

    Args:
        net: the model that a run starts from
        source: the path of a safetensors file, or a module
    """
    tensors = read_tensors(Path(source)) if isinstance(source, str) else dict(source.state_dict())
    what = f"init = {source!r}" if isinstance(source, str) else f"init, a {type(source).__name__},"
    state = net.state_dict()
    _check_weights(what, state, tensors)
    loaded = {state[name].data_ptr() for name in tensors}  # tied parameters have several names
    kept = [name for name, value in state.items() if name not in tensors and value.data_ptr() not in loaded]
    with torch.no_grad():
        net.load_state_dict(tensors, strict=False)
    if kept:
        named = _listed([name for name in state if name in tensors])
        warnings.warn(
            f"{what} has {len(tensors)} of {len(state)} tensors of the model: {named}; "
            f"{_listed(kept)} keep{'s' * (len(kept) == 1)} the values of a new model",
            InputWarning,
            stacklevel=2,
        )


def _check_weights(what: str, state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raise InputError for weights of another model, with the first tensor that does not fit."""
    unknown = [name for name in tensors if name not in state]
    if not tensors or len(unknown) == len(tensors):
        raise InputError(
            f"{what} is of another model: it has {_listed(unknown, 3) or 'no tensors'}, and the model has "
            f"{_listed(list(state), 3)}; give weights of the model that is trained"
        )
    if unknown:
        raise InputError(f"{what} has {_listed(unknown, 3)}, which the model lacks; remove what is not of this model")
    for name, tensor in tensors.items():
        if tensor.shape != state[name].shape:
            raise InputError(
                f"{what}: {name!r} has shape {tuple(tensor.shape)}, and the model's has {tuple(state[name].shape)}; "
                "remove it from these weights to start it anew"
            )
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise InputError(f"{what}: {name!r} has values that are not finite; give weights of a trained model")


def _listed(names: Sequence[str], most: int = 8) -> str:
    return first_names([*map(repr, names)], most)
