"""How products are computed on CUDA: in float32 unless asked otherwise, and the same bits every time."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def arithmetic(device: torch.device, tf32: bool = False) -> Iterator[None]:
    """Inside, products, convolutions and recurrent cells on CUDA are in float32 (or TF32) and deterministic.

    torch itself takes TF32 for convolutions and recurrent cells unless told otherwise, and lets cuDNN choose algorithms
    that add in any order. What the program around has set holds again afterwards. torch has an old and a new way to
    say all this, and refuses to read the old one where they differ, so both are set.
    """
    if device.type != "cuda":
        yield
        return
    backends: Any = torch.backends
    matmul, cudnn = backends.cuda.matmul, backends.cudnn
    parts = (matmul, backends.mkldnn.matmul, cudnn.conv, cudnn.rnn)
    before = [part.fp32_precision for part in parts]
    products = _product_precision() or ("high" if matmul.fp32_precision == "tf32" else "highest")
    convolutions = cudnn.conv.fp32_precision == "tf32"
    choices = cudnn.deterministic, cudnn.benchmark
    try:
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        cudnn.allow_tf32 = tf32
        cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "tf32" if tf32 else "ieee"
        cudnn.deterministic, cudnn.benchmark = True, False
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        cudnn.allow_tf32 = convolutions
        for part, precision in zip(parts, before, strict=True):
            part.fp32_precision = precision
        cudnn.deterministic, cudnn.benchmark = choices


def _product_precision() -> str | None:
    """What `torch.set_float32_matmul_precision` was last told; None where the new way says something else."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
