"""What is checked of a model on a few samples before it trains: outputs, gradients, and what batches change."""

import contextlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.data.data_warnings import warn
from fedtilt.data.inputs import Inputs, named_tensors, sample_shape, take
from fedtilt.data.targets import TokenTarget
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.math.losses import SampleLoss
from fedtilt.models import copy_with_parameters, logits, trained_parameters
from fedtilt.text_tables import first_names
from fedtilt.training.local_job import batch_bounds

_MODEL_ERRORS = (RuntimeError, ValueError, ArithmeticError, AssertionError)  # what a model's own code may raise
_ROUNDING = 0.01  # relative difference of gradients, below which they are equal
_NOISE = 1e-5  # of all gradients, below which one of them is 0


def check_output(net: nn.Module, x: Inputs, y: Tensor, federation: Federation, loss: SampleLoss) -> None:
    """Raise InputError if the model does not take samples, or outputs or losses have another shape than these need."""
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


def check_constant_parameters(net: nn.Module, x: Inputs) -> None:
    """Raise InputError if a forward pass changes a trained parameter: an evaluation would change what is trained."""
    large = {name: 100 * p.detach() for name, p in trained_parameters(net).items()}  # beyond any largest norm
    before = {name: p.clone() for name, p in large.items()}
    trial = copy_with_parameters(net, large)
    for training in (True, False):
        with torch.no_grad(), seeds.seeded_global_rng(0), contextlib.suppress(*_MODEL_ERRORS):
            logits(trial.train(training), x)
        for name, p in trained_parameters(trial).items():
            if p.data_ptr() != large[name].data_ptr() or not torch.equal(p, before[name]):
                raise InputError(
                    f"a forward pass changes the parameter {name!r}, as max_norm of an embedding does: an evaluation "
                    "would change what is trained; leave that out, or let torch.nn.utils.parametrize compute the "
                    "constrained weights from free ones"
                )


def check_gradients(net: nn.Module, x: Inputs, y: Tensor, loss: SampleLoss) -> None:
    """Raise InputError if no trained parameter has a gradient, and warn of parameters without one."""
    trial = copy_with_parameters(net, trained_parameters(net)).train()
    parameters = trained_parameters(trial)
    with seeds.seeded_global_rng(0), torch.enable_grad():
        try:
            losses = loss(logits(trial, x).float(), y)
        except _MODEL_ERRORS:
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


def check_micro_batches(net: nn.Module, x: Inputs, y: Tensor, settings: TrainSettings) -> None:
    """Raise InputError if the gradient of a batch is not the sum of those of its samples."""
    trial = copy_with_parameters(net, trained_parameters(net))

    def gradients(*rows: int) -> Sequence[Tensor]:
        index = torch.tensor(rows)
        loss = settings.sample_loss(logits(trial, take(x, index)).float(), y[index]).sum()
        return torch.autograd.grad(loss, list(trained_parameters(trial).values()), materialize_grads=True)

    last = min(1, len(y) - 1)
    with torch.enable_grad():
        pairs = zip(gradients(0, last, 0), gradients(0), gradients(last), strict=True)
        sums = [(whole.to_dense(), (2 * first + second).to_dense()) for whole, first, second in pairs]
    noise = _NOISE * torch.stack([whole.norm() for whole, _ in sums]).norm()
    if any((whole - parts).norm() > _ROUNDING * parts.norm() + noise for whole, parts in sums):
        raise InputError(
            f"micro_batch_size = {settings.micro_batch_size} would change what the model computes: what it computes of "
            "a sample, or its gradient, depends on the others of the batch; leave it out"
        )


def check_batch_sizes(net: nn.Module, federation: Federation, settings: TrainSettings) -> None:
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


def _shape(first: tuple[int, ...], last: object) -> str:
    return f"({', '.join(map(str, (*first, last)))})"
