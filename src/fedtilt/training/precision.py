"""Results independent of global torch settings: float32 by default, and deterministic on CUDA."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from fedtilt.locks import one_thread_at_a_time


@contextlib.contextmanager
def fp32_deterministic(device: torch.device, tf32: bool = False) -> Iterator[None]:
    """Turn autocast off and gradients on; on CUDA also compute deterministically, in float32 (or TF32).

    By default torch uses TF32 for convolutions and recurrent cells, and lets cuDNN choose algorithms that sum in any
    order. (Custom operations of a model may still be non-deterministic.)
    """
    with torch.autocast(device.type, enabled=False), torch.enable_grad():
        if device.type != "cuda":
            yield
        else:
            with one_thread_at_a_time(), _cuda_settings(tf32):
                yield


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """bfloat16 products where `precision` says so; everything in float32 otherwise."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


@contextlib.contextmanager
def _cuda_settings(tf32: bool) -> Iterator[None]:
    """Set torch's CUDA precision and determinism; restore the previous settings afterwards.

    torch has an old and a new API for this, and reading the old one fails where they differ, so both are set. A setting
    that was inherited from a general one is restored as an explicit setting: torch does not distinguish them.
    """
    backends: Any = torch.backends
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    parts = (matmul, backends.mkldnn.matmul, cudnn.conv, cudnn.rnn)
    part_precisions = [part.fp32_precision for part in parts]
    matmul_precision = _matmul_precision() or ("high" if matmul.fp32_precision == "tf32" else "highest")
    conv_tf32 = cudnn.conv.fp32_precision == "tf32"
    algorithms = cudnn.deterministic, cudnn.benchmark
    try:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        cudnn.allow_tf32 = tf32
        cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32" if tf32 else "ieee"
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        torch.set_float32_matmul_precision(matmul_precision)
        cudnn.allow_tf32 = conv_tf32
        for part, precision in zip(parts, part_precisions, strict=True):
            part.fp32_precision = precision
        cudnn.deterministic, cudnn.benchmark = algorithms


def _matmul_precision() -> str | None:
    """The setting of the old API; None where the new API has set something else."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
