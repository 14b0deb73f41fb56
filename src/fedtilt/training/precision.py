"""Numbers that do not depend on the program around: float32 unless asked otherwise, and on CUDA the same bits again."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

_turn = threading.RLock()  # the settings of CUDA are the process's: one thread at a time


@contextlib.contextmanager
def fp32_deterministic(device: torch.device, tf32: bool = False) -> Iterator[None]:
    """Inside, no autocast, gradients, and on CUDA products, convolutions and recurrent cells in float32 (or TF32).

    torch itself takes TF32 for convolutions and recurrent cells unless told otherwise, and lets cuDNN choose algorithms
    that add in any order; here they are deterministic. (Operations that a model brings along may still not be.)
    """
    with torch.autocast(device.type, enabled=False), torch.enable_grad():
        if device.type != "cuda":
            yield
        else:
            with _turn, _cuda(tf32):
                yield


@contextlib.contextmanager
def _cuda(tf32: bool) -> Iterator[None]:
    """The settings of CUDA; afterwards those that held before.

    torch has an old and a new way to say all this, and refuses to read the old one where they differ, so both are set.
    What a part had inherited from a general setting is its own afterwards: torch does not tell them apart.
    """
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
