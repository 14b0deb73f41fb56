"""The initial model of a run, checked on samples of the data, with its parts."""

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.data.data_warnings import ends_in_softmax, warn
from fedtilt.data.inputs import Inputs, Shape, named_tensors, sample_shape, take
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.initial_weights import load_initial_weights
from fedtilt.losses import Loss
from fedtilt.math.losses import SampleLoss
from fedtilt.models import ModelSource, build, logits
from fedtilt.parts import Parts
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
    x, y = federation.clean_train(0)
    for count in (2, 1):  # the last batch of an epoch may have one sample
        rows = torch.zeros(count, dtype=torch.long)
        _check_output(net, take(x, rows), y[rows], federation, settings.sample_loss)
    with torch.no_grad():
        if (
            federation.target is None
            and (settings.loss is None or isinstance(settings.loss, Loss))
            and ends_in_softmax(logits(net, take(x, slice(0, 8))))
        ):
            warn(["the model ends in Softmax, but the loss takes logits, so training is slow; remove the last layer"])
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
    return Parts.of(net, input_shape, local=settings.local, buffers=settings.buffers)


def _check_output(net: nn.Module, x: Inputs, y: Tensor, federation: Federation, loss: SampleLoss) -> None:
    count, is_exact = federation.outputs, federation.target is not None  # a model may have outputs for more classes
    try:
        with torch.no_grad():
            outputs, again = logits(net, x), logits(net, x)
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        tokens = any(t.dtype == torch.int64 for t in named_tensors(x, "x").values())
        remedy = "; int64 samples are tokens for nn.Embedding, make them float32 if they are numbers" if tokens else ""
        raise InputError(f"the model does not take samples of shape {sample_shape(x)}: {error}{remedy}") from error
    if not isinstance(outputs, Tensor):
        raise InputError(f"the model returns a {type(outputs).__name__}; expected a tensor ({len(y)}, {count})")
    if outputs.dim() != 2 or len(outputs) != len(y) or outputs.shape[1] < count or (is_exact and outputs.shape[1] > 1):
        expected = f"{count}" if is_exact else f"{count} or more"
        raise InputError(
            f"the model returns {tuple(outputs.shape)} for {len(y)} samples; expected ({len(y)}, {expected})"
        )
    if not torch.equal(outputs, again) and outputs.isfinite().all():
        raise InputError(
            "the model gives different outputs for the same sample in evaluation mode; pass training=self.training to "
            "F.dropout"
        )
    losses = loss(outputs, y)
    if not isinstance(losses, Tensor) or losses.shape != y.shape:
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InputError(
            f"the loss returns {shape} for {len(y)} samples; return one value per sample, as reduction='none' does"
        )


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
