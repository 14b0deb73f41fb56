"""Sequential networks in C: one call trains a job on all its batches of a round. For CPUs with a C compiler.

It supports the models of `sequential.SequentialNet`, perceptrons and CNNs of convolution, ReLU and max-pooling, with
every optimiser of a job; see c/train.c. Without a compiler, or with FEDTILT_NATIVE=0, other backends train the same
models to the same results, up to rounding.
"""

import ctypes
import functools
import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedtilt.compiler import CompiledLibrary, LibraryUnavailable, compile_library
from fedtilt.data.groups import combinations
from fedtilt.errors import InputError
from fedtilt.losses import GCE, REVERSE, SCE, ClassLoss, CrossEntropy, Focal, Huber
from fedtilt.math.losses import cross_entropy, squared
from fedtilt.math.small_batch import ZERO_TILT
from fedtilt.training.local_job import Batches, LocalJob, Trained, unusual_part
from fedtilt.training.sequential import is_sequential, pooled_size

_SOURCE = Path(__file__).with_name("c") / "train.c"
_BAD_LABEL, _BAD_ORDER = 2, 3  # as in c/train.c
_FEW_GROUPS = 128  # up to this number, a batch clears the groups faster than they are renumbered without gaps
_LOSSES = (CrossEntropy, Focal, GCE, SCE, Huber)  # not those that inherit from them
_OPTIMIZERS = ("plain sgd", "sgd", "adam", "adamw")  # in the order of c/optimizer.h


class _Levels(ctypes.Structure):
    """`Levels` of c/tilt.h."""

    _fields_ = (
        ("count", ctypes.c_long),
        ("sizes", ctypes.POINTER(ctypes.c_long)),
        ("parent", ctypes.c_void_p),
        ("tilts", ctypes.POINTER(ctypes.c_double)),
    )


class _Loss(ctypes.Structure):
    """`Loss` of c/loss.h."""

    _fields_ = (
        ("levels", _Levels),
        *((name, ctypes.c_double) for name in ("label_smoothing", "gamma", "gce_q", "alpha", "reverse")),
        ("class_weights", ctypes.POINTER(ctypes.c_double)),
        *((name, ctypes.c_double) for name in ("number_scale", "huber_delta", "utility")),
    )


class _Optimizer(ctypes.Structure):
    """`Optimizer` of c/optimizer.h."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("lr", "prox", "momentum", "weight_decay", "clip_norm", "anchor_rate")),
        *((name, ctypes.c_long) for name in ("kind", "nesterov", "repeats", "first_steps")),
    )


def unsupported_reason(model: nn.Module, job: LocalJob, device_type: str, *_: object) -> str | None:
    """Why this backend does not train the job, as a clause; None if it does."""
    if device_type != "cpu":
        return f"the device is {device_type}"
    if not is_sequential(model):
        return "the model is not an nn.Sequential of the layers that the C kernel has (Conv2d, ReLU, MaxPool2d, Linear)"
    if job.loss not in (cross_entropy, squared) and type(job.loss) not in _LOSSES:
        return "the loss is a Python function, which the C kernel cannot call"
    if reason := unusual_part(job, model):
        return reason
    if reason := unavailable_reason():
        return f"the C kernel cannot run: {reason}"
    return special_reason(model, job)


def special_reason(model: nn.Module, job: LocalJob) -> str | None:
    """Why the C kernel does not know the special steps of a job, as a clause; None if it does."""
    if job.training is not None or job.objective is not None:
        return job.special_steps
    if job.first is None:
        return None
    if not job.optimizer.is_plain:
        return f"{job.special_steps}, with an optimiser other than plain SGD"
    try:
        _is_first(model, job.first)
    except ValueError:
        return "some parameters of a layer train before the others of it"
    return None


def _is_first(model: nn.Module, first: Tensor) -> list[int]:
    """Of every layer, whether its parameters are those with 1; a `ValueError` if only some of them are."""
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    pieces = first.split([sum(p.numel() for p in layer.parameters()) for layer in layers])
    if any(piece.min() != piece.max() for piece in pieces):
        raise ValueError("parameters of one layer differ")
    return [int(piece[0]) for piece in pieces]


def available() -> bool:
    """Whether the C kernel runs on this machine; compiles it on first use."""
    return unavailable_reason() is None


def unavailable_reason() -> str | None:
    """Why the C kernel cannot run, as a clause to follow 'because'; None if it can."""
    if os.environ.get("FEDTILT_NATIVE") == "0":
        return "FEDTILT_NATIVE=0 turns it off"
    kernel = _load_kernel()
    return kernel if isinstance(kernel, str) else None


def build_id() -> str:
    """The compiler and the hash that identify the kernel's machine code, or 'none'; recorded with every run."""
    if unavailable_reason() is not None:
        return "none"
    kernel = _load_kernel()
    assert isinstance(kernel, CompiledLibrary)
    return kernel.build_id


@functools.cache
def _load_kernel() -> CompiledLibrary | str:
    """The compiled kernel, or why there is none."""
    try:
        kernel = compile_library(_SOURCE)
    except LibraryUnavailable as reason:
        return str(reason)
    long, pointer = ctypes.c_long, ctypes.c_void_p
    kernel.library.fedtilt_train.argtypes = [
        long, pointer, long, pointer, pointer, pointer, pointer, pointer, pointer, pointer, pointer, pointer, pointer,
        pointer, long, pointer, long, long, pointer, long, long,
    ]  # fmt: skip
    kernel.library.fedtilt_train.restype = ctypes.c_int
    kernel.library.fedtilt_keep.argtypes = [ctypes.c_int32, ctypes.c_int32, long, long, long, pointer]
    kernel.library.fedtilt_keep.restype = None
    return kernel


def train(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], *, precision: str = "float32"
) -> list[Trained]:
    """Train every job on its batches; on a CPU, the precision is always float32."""
    kernel = _load_kernel()
    if isinstance(kernel, str):
        raise InputError(f"backend 'native' cannot run because {kernel}; use 'auto'")
    return [_train_one(kernel, model, job, data) for job, data in zip(jobs, batches, strict=True)]


def keep(low: int, high: int, start: int, size: int, dropped: int) -> Tensor:
    """The values `start` to `start + size` of a dropout mask, from the halves of its key; see `dropout.Masks.keep`."""
    kernel = _load_kernel()
    assert isinstance(kernel, CompiledLibrary)
    mask = torch.empty(size, dtype=torch.bool)
    kernel.library.fedtilt_keep(low, high, start, size, dropped, mask.data_ptr())
    return mask


def _train_one(kernel: CompiledLibrary, model: nn.Module, job: LocalJob, batches: Batches) -> Trained:
    assert isinstance(batches.x, Tensor)
    shape, blocks, widths = _layer_sizes(model, tuple(batches.x.shape[1:]))
    parameters = sum(p.numel() for p in model.parameters())
    samples, (epochs, of_epoch) = len(batches.y), batches.order.shape
    theta = _check_tensor(job.start, torch.float32, (parameters,), "start").clone()
    anchor = _check_tensor(job.anchor, torch.float32, (parameters,), "anchor")
    anchor = anchor.clone() if job.anchor_rate else anchor
    drift = None if job.drift is None else _check_tensor(job.drift, torch.float32, (parameters,), "drift")
    layers = len(blocks) // 6 + len(widths) - 1
    is_first = [0] * layers if job.first is None else _is_first(model, job.first)
    x = _check_tensor(batches.x, torch.float32, (samples, *shape), "samples")
    loss = _loss(job, widths[-1])
    is_number = loss.number_scale != 0
    kind = (torch.float32, (samples,), "targets") if is_number else (torch.int64, (samples,), "labels")
    y = _check_tensor(batches.y, *kind)
    group, parent, sizes = _nest(batches.groups_of(job))
    group = _check_tensor(group, torch.int64, (samples,), "groups")
    tilts = [0.0 if abs(tilt) < ZERO_TILT else tilt for tilt in job.tilts]
    loss.levels = _Levels(len(sizes), _long_array(sizes), parent.data_ptr(), (ctypes.c_double * len(tilts))(*tilts))
    order = _check_tensor(batches.order, torch.int64, (epochs, of_epoch), "order")
    bounds = _check_tensor(batches.bounds, torch.int64, (batches.per_epoch + 1,), "bounds")
    if bounds[0] < 0 or bounds[-1] > of_epoch or (bounds.diff() < 1).any():
        raise InputError(f"the bounds of the batches must rise from 0 to at most {of_epoch}, got {bounds.tolist()}")
    if job.epochs is not None and job.epochs > epochs:
        raise InputError(f"the job has {job.epochs} epochs, but there are batches for {epochs}")
    status = kernel.library.fedtilt_train(
        len(blocks) // 6, _long_array(blocks), len(widths) - 1, _long_array(widths),
        theta.data_ptr(), anchor.data_ptr(), None if drift is None else drift.data_ptr(), _long_array(is_first),
        ctypes.byref(loss), ctypes.byref(_optimizer(job, batches)),
        x.data_ptr(), None if is_number else y.data_ptr(), y.data_ptr() if is_number else None, group.data_ptr(),
        samples, order.data_ptr(), epochs, of_epoch, bounds.data_ptr(), batches.per_epoch, batches.steps(job),
    )  # fmt: skip
    if status == _BAD_LABEL:
        raise InputError(f"labels range from {y.min()} to {y.max()}, but the model has classes 0 to {widths[-1] - 1}")
    if status == _BAD_ORDER:
        raise InputError(
            f"the batch order has sample indices from {order.min()} to {order.max()}, but there are {samples} samples"
        )
    if status:
        raise MemoryError("not enough memory to train a model of this size")
    return Trained(theta, anchor=anchor if job.anchor_rate else None)


def _nest(labels: Sequence[Tensor]) -> tuple[Tensor, Tensor, list[int]]:
    """The groups of all levels, numbered one after the other from inner to outer.

    Args:
        labels: the groups of the samples in every level, (n,) each, from inner to outer; samples are in one group if
            this label and all of the outer levels are equal

    Returns:
        the innermost group of every sample, (n,); the group of every group in the next level, that of the last being
        their total number; the number of groups in every level
    """
    highest = max((int(codes.max()) for codes in labels if len(codes)), default=-1)
    if len(labels) == 1 and highest < _FEW_GROUPS:
        return labels[0], torch.full((highest + 1,), highest + 1, dtype=torch.int32), [highest + 1]
    nested = [combinations(labels[k:])[1] for k in range(len(labels))]
    sizes = [int(codes.max()) + 1 if len(codes) else 0 for codes in nested]
    parents, start = [], 0
    for k, codes in enumerate(nested):
        start += sizes[k]
        outer = nested[k + 1] if k + 1 < len(nested) else torch.zeros_like(codes)
        parents.append(outer.new_empty(sizes[k]).scatter_(0, codes, outer) + start)
    return nested[0], torch.cat(parents).int(), sizes


def _loss(job: LocalJob, classes: int) -> _Loss:
    loss = _Loss(utility=job.utility, alpha=1.0)
    if job.loss is squared:
        loss.number_scale, loss.huber_delta = 2.0, math.inf
    if isinstance(job.loss, Huber):
        loss.number_scale, loss.huber_delta = 1.0, job.loss.delta
    if isinstance(job.loss, ClassLoss):
        job.loss.check_classes(classes)
        weights, settings = job.loss.weights, job.loss.settings(all=True)
        loss.label_smoothing, loss.gamma = settings.get("label_smoothing", 0.0), settings.get("gamma", 0.0)
        loss.gce_q, loss.alpha = settings.get("exponent", 0.0), settings.get("alpha", 1.0)
        loss.reverse = REVERSE * settings.get("beta", 0.0)
        loss.class_weights = (ctypes.c_double * classes)(*weights) if weights else None
    return loss


def _optimizer(job: LocalJob, batches: Batches) -> _Optimizer:
    optimizer = job.optimizer
    return _Optimizer(
        lr=job.lr,
        prox=job.prox,
        momentum=optimizer.momentum,
        weight_decay=optimizer.weight_decay,
        clip_norm=math.inf if optimizer.clip_norm is None else optimizer.clip_norm,
        kind=_OPTIMIZERS.index("plain sgd" if optimizer.is_plain else optimizer.name),
        nesterov=optimizer.nesterov,
        anchor_rate=job.anchor_rate,
        repeats=job.repeats,
        first_steps=-1 if job.first is None else job.first_epochs * batches.per_epoch * job.repeats,
    )


def _layer_sizes(model: nn.Module, sample_shape: tuple[int, ...]) -> tuple[tuple[int, ...], list[int], list[int]]:
    """The shape a sample must have, six numbers for every conv block, and the widths of the linear layers."""
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    widths = [linears[0].in_features, *(m.out_features for m in linears)]
    if not convolutions:
        return sample_shape if math.prod(sample_shape) == widths[0] else (widths[0],), [], widths
    height, width = sample_shape[-2:] if len(sample_shape) == 3 else (0, 0)
    shape, blocks = (convolutions[0].in_channels, height, width), []
    for m in convolutions:
        blocks += [height, width, m.in_channels, m.out_channels, m.kernel_size[0], int(m.padding[0])]
        height, width = pooled_size(m, height, width)
    if height * width * convolutions[-1].out_channels != widths[0]:
        raise InputError(
            f"samples of shape {sample_shape} do not fit the model: its convolutions must give {widths[0]} features"
        )
    return shape, blocks, widths


def _long_array(values: list[int]) -> "ctypes.Array[ctypes.c_long]":
    return (ctypes.c_long * len(values))(*values)


def _check_tensor(values: Tensor, dtype: torch.dtype, shape: tuple[int, ...], name: str) -> Tensor:
    """The tensor as the kernel reads it: contiguous; it must be on the CPU, with this type and shape."""
    if values.device.type != "cpu" or values.dtype != dtype or values.shape != shape:
        raise InputError(
            f"{name} must be {dtype} of shape {shape} on the cpu, "
            f"got {values.dtype} of shape {tuple(values.shape)} on {values.device.type}"
        )
    return values.contiguous()
