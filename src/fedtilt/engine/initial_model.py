"""The initial model of a run, checked on samples of the data, with its parts, and the weights that it starts from."""

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.data.data_warnings import last_function, warn
from fedtilt.data.inputs import Inputs, Shape, named_tensors, sample_shape, take
from fedtilt.data.targets import TokenTarget
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError, InputWarning
from fedtilt.files import read_tensors
from fedtilt.losses import Loss
from fedtilt.math.losses import SampleLoss
from fedtilt.models import ModelSource, build, copy_with_parameters, logits, trained_parameters
from fedtilt.parts import Parts
from fedtilt.text_tables import first_names
from fedtilt.training.augmentation import check_transform
from fedtilt.training.client_update import torch_optimizer
from fedtilt.training.local_job import batch_bounds


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
        _check_output(net, take(x, rows), y[rows], federation, settings.sample_loss)
    two = torch.zeros(2, dtype=torch.long)
    _check_constant_parameters(net, take(x, two))
    _check_gradients(net, take(x, two), y[two], settings.sample_loss)
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
        _check_batch_sizes(net, federation, settings)
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


def _check_output(net: nn.Module, x: Inputs, y: Tensor, federation: Federation, loss: SampleLoss) -> None:
    target, count = federation.target, federation.outputs
    shape = tuple(y.shape) if isinstance(target, TokenTarget) else (len(y),)  # without the last dimension
    is_exact = not isinstance(target, TokenTarget)  # a vocabulary may have tokens that the data has not
    try:
        with torch.no_grad():
            outputs, again = logits(net, x), logits(net, x)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        tokens = any(t.dtype == torch.int64 for t in named_tensors(x, "x").values())
        remedy = "; int64 samples are tokens for nn.Embedding, make them float32 if they are numbers" if tokens else ""
        raise InputError(f"the model does not take samples of shape {sample_shape(x)}: {error}{remedy}") from error
    if not isinstance(outputs, Tensor):
        keys = f" with {', '.join(map(repr, outputs))}" if isinstance(outputs, Mapping) else ""
        raise InputError(
            f"the model returns a {type(outputs).__name__}{keys}; expected a tensor {_shape(shape, count)}, a tuple "
            "that starts with it, or a dictionary or an object that has it as logits"
        )
    found = outputs.shape[-1] if outputs.dim() else 0
    if tuple(outputs.shape[:-1]) != shape or found < count or (is_exact and found > count):
        expected = _shape(shape, count if is_exact else f"{count} or more")
        what = ", a logit per class" if target is None else ""
        raise InputError(f"the model returns {tuple(outputs.shape)} for {len(y)} samples; expected {expected}{what}")
    if not torch.equal(outputs, again) and outputs.isfinite().all():
        raise InputError(
            "the model gives different outputs for the same sample in evaluation mode; pass training=self.training to "
            "F.dropout"
        )
    losses = loss(outputs, y)
    if not isinstance(losses, Tensor) or losses.shape != y.shape[:1]:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            f"the loss returns {shape} for {len(y)} samples; return one value per sample, as reduction='none' does"
        )


def _check_constant_parameters(net: nn.Module, x: Inputs) -> None:
    """Raise InputError if a forward pass changes a trained parameter: an evaluation would change what is trained."""
    large = {name: 100 * p.detach() for name, p in trained_parameters(net).items()}  # beyond any largest norm
    before = {name: p.clone() for name, p in large.items()}
    trial = copy_with_parameters(net, large)
    for training in (True, False):
        with torch.no_grad(), seeds.seeded_global_rng(0), contextlib.suppress(RuntimeError, ValueError):
            logits(trial.train(training), x)
        for name, p in trained_parameters(trial).items():
            if p.data_ptr() != large[name].data_ptr() or not torch.equal(p, before[name]):
                raise InputError(
                    f"a forward pass changes the parameter {name!r}, as max_norm of an embedding does: an evaluation "
                    "would change what is trained; leave that out, or let torch.nn.utils.parametrize compute the "
                    "constrained weights from free ones"
                )


def _check_gradients(net: nn.Module, x: Inputs, y: Tensor, loss: SampleLoss) -> None:
    """Raise InputError if no trained parameter has a gradient, and warn of parameters without one."""
    trial = copy_with_parameters(net, trained_parameters(net)).train()
    parameters = trained_parameters(trial)
    with seeds.seeded_global_rng(0), torch.enable_grad():
        try:
            losses = loss(logits(trial, x).float(), y)
        except (RuntimeError, ValueError):
            return  # in training mode it may need more samples
        gradients: Sequence[Tensor | None] = [None] * len(parameters)
        if losses.requires_grad:
            gradients = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
    without = [name for name, gradient in zip(parameters, gradients, strict=True) if gradient is None]
    if len(without) == len(parameters):
        raise InputError(
            "no parameter of the model has a gradient, so training would change nothing; compute the outputs from the "
            "module's own parameters, without torch.no_grad, detach or numpy"
        )
    if without:
        warn([
            f"no gradient reaches {first_names(without, 3)}: the loss of two samples does not depend on them, and "
            "training may leave them as they are; requires_grad = False says that this is meant"
        ])  # fmt: skip


def _shape(first: tuple[int, ...], last: object) -> str:
    return f"({', '.join(map(str, (*first, last)))})"


def _check_batch_sizes(net: nn.Module, federation: Federation, settings: TrainSettings) -> None:
    """Raise InputError if there are batches of one sample and a layer normalises over the batch."""
    layers = (name for name, m in net.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    name = next(layers, None)
    if name is None:
        return
    for client, rows in enumerate(federation.train_index):
        bounds = torch.tensor(batch_bounds(len(rows), settings.batch_size, settings.last_batch))
        if len(rows) and int(bounds.diff().min()) < 2:
            raise InputError(
                f"client {federation.client_names[client]} has {len(rows)} samples and so a batch of one, over which "
                f"layer {name!r} cannot normalise; use batch_size ≥ 2 with last_batch = 'even' or 'drop', or GroupNorm"
            )


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
