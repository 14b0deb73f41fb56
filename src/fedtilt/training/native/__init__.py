"""Chains in C: a lane through all its batches of a round in one call. The CPU way, where there is a compiler.

A chain is what `chain` describes: a perceptron, or blocks of a convolution, ReLU and max-pooling before one. The steps
are those of `fused`; c/train.c says how. Without a compiler, or with FEDTILT_NATIVE=0, the other backends train the
same models to the same results, up to rounding.
"""

import ctypes
import functools
import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.training.local_job import Batches, LocalJob
from fedtilt.training.native.compiler import Compiled, Unavailable, compile_library
from fedtilt.training.sequential import SequentialNet

_SOURCE = Path(__file__).with_name("c") / "train.c"
_BAD_LABEL, _BAD_ORDER = 2, 3  # as in c/train.c


def supports(model: nn.Module) -> bool:
    """Whether the model is a chain, on images of whatever size its first linear layer was made for."""
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    linear = next((m for m in model.modules() if isinstance(m, nn.Linear)), None)
    if linear is None:
        return False
    shape: tuple[int, ...] = (linear.in_features,)
    if convolutions:  # every block halves both sides: one such image stands for all
        halved = 2 ** len(convolutions)
        spots = linear.in_features // convolutions[-1].out_channels
        shape = (convolutions[0].in_channels, spots * halved, halved)
    return SequentialNet.of(model, shape) is not None


def available() -> bool:
    """Whether the kernel can run here; compiles it the first time."""
    return why_not() is None


def why_not() -> str | None:
    """Half a sentence that says why the kernel cannot run here; None where it can."""
    if os.environ.get("FEDTILT_NATIVE") == "0":
        return "FEDTILT_NATIVE=0 turns it off"
    kernel = _kernel()
    return kernel if isinstance(kernel, str) else None


def made_by() -> str:
    """The compiler and the hash that the kernel's bits depend on, or 'none': a run records it."""
    if why_not() is not None:
        return "none"
    kernel = _kernel()
    assert isinstance(kernel, Compiled)
    return kernel.made_by


@functools.cache
def _kernel() -> Compiled | str:
    """The compiled kernel, or why there is none."""
    try:
        kernel = compile_library(_SOURCE)
    except Unavailable as reason:
        return str(reason)
    number, real, data = ctypes.c_long, ctypes.c_double, ctypes.c_void_p
    kernel.library.fedtilt_train.argtypes = [
        number, data, number, data, data, data, real, real, real, real, data, data, number, data, number, number,
    ]  # fmt: skip
    kernel.library.fedtilt_train.restype = ctypes.c_int
    return kernel


def train(model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches]) -> list[Tensor]:
    """Train every lane on its batches; the trained parameters, (P,) each."""
    kernel = _kernel()
    if isinstance(kernel, str):
        raise InputError(f"the native way cannot run because {kernel}; use 'auto'")
    return [_descend_one(kernel, model, job, data) for job, data in zip(jobs, batches, strict=True)]


def _descend_one(kernel: Compiled, model: nn.Module, job: LocalJob, batches: Batches) -> Tensor:
    shape, blocks, widths = _sizes(model, tuple(batches.x.shape[1:]))
    parameters = sum(p.numel() for p in model.parameters())
    samples, epochs = len(batches.y), len(batches.order)
    theta = _plain(job.start, torch.float32, (parameters,), "start").clone()
    anchor = _plain(job.anchor, torch.float32, (parameters,), "anchor")
    x = _plain(batches.x, torch.float32, (samples, *shape), "samples")
    y = _plain(batches.y, torch.int64, (samples,), "labels")
    order = _plain(batches.order, torch.int64, (epochs, samples), "order")
    if batches.size < 1:
        raise InputError(f"a batch holds at least one sample, got size {batches.size}")
    failed = kernel.library.fedtilt_train(
        len(blocks) // 5, _longs(blocks), len(widths) - 1, _longs(widths),
        theta.data_ptr(), anchor.data_ptr(), job.lr, job.prox, job.tau, job.lam,
        x.data_ptr(), y.data_ptr(), samples, order.data_ptr(), epochs, batches.size,
    )  # fmt: skip
    if failed == _BAD_LABEL:
        raise InputError(f"labels lie in {y.min()} to {y.max()}, but the model has classes 0 to {widths[-1] - 1}")
    if failed == _BAD_ORDER:
        raise InputError(f"the order of batches names samples {order.min()} to {order.max()} of {samples}")
    if failed:
        raise MemoryError("no memory to train a model of these sizes")
    return theta


def _sizes(model: nn.Module, given: tuple[int, ...]) -> tuple[tuple[int, ...], list[int], list[int]]:
    """The shape of a sample, five numbers for every block, and the widths of the linear layers, the inputs first."""
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    widths = [linears[0].in_features, *(m.out_features for m in linears)]
    if not convolutions:
        return given if math.prod(given) == widths[0] else (widths[0],), [], widths
    height, width = given[-2:] if len(given) == 3 else (0, 0)
    shape, blocks = (convolutions[0].in_channels, height, width), []
    for m in convolutions:
        blocks += [height, width, m.in_channels, m.out_channels, m.kernel_size[0]]
        height, width = height // 2, width // 2
    if height * width * convolutions[-1].out_channels != widths[0]:
        raise InputError(f"samples of shape {given} do not fit a model whose blocks should give {widths[0]} numbers")
    return shape, blocks, widths


def _longs(values: list[int]) -> "ctypes.Array[ctypes.c_long]":
    return (ctypes.c_long * len(values))(*values)


def _plain(values: Tensor, dtype: torch.dtype, shape: tuple[int, ...], what: str) -> Tensor:
    """The tensor as the kernel reads it: on the CPU, of this type and shape, without gaps."""
    if values.device.type != "cpu" or values.dtype != dtype or values.shape != shape:
        raise InputError(
            f"{what} must be {dtype} of shape {shape} on the cpu, "
            f"got {values.dtype} of shape {tuple(values.shape)} on {values.device.type}"
        )
    return values.contiguous()
