"""Run by `test_kernels.py` in a separate process: the CUDA kernels in Triton's interpreter, against the autograd loop.

The interpreter must be turned on before Triton is imported, and stays on for the whole process.
"""

import json
import math
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import nn
from triton.runtime import interpreter

from fedtilt import models
from fedtilt.optimizers import SGD, Adam, AdamW
from fedtilt.training import autograd_loop, stacked
from fedtilt.training.local_job import Batches, LocalJob, make_batches
from fedtilt.training.stacked.buffers import Recipe
from fedtilt.training.stacked.stack import kernel_net

CLASSES = 3
CLIENTS = (  # samples, and (prox, tau, lam) of the jobs
    (7, ((0.0, 0.0, 0.0), (0.5, 5.0, -2.0))),
    (10, ((0.1, -math.inf, math.inf), (0.1, 1e-6, 1e-12))),
)


def _cnn_with_hidden_layer(shape: tuple[int, ...], channels: tuple[int, ...], hidden: int) -> nn.Sequential:
    """A convolutional network with a hidden linear layer."""
    *front, last = models.cnn(shape, CLASSES, channels=channels)
    assert isinstance(last, nn.Linear)
    return nn.Sequential(*front, nn.Linear(last.in_features, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


torch.manual_seed(0)
CASES = {
    "logistic": (models.logistic((5,), CLASSES), (5,), 8),
    "mlp": (models.mlp((1, 4, 4), CLASSES, hidden=(20, 6)), (1, 4, 4), 4),
    "large batches": (models.mlp((6,), CLASSES, hidden=(5,)), (6,), 20),
    "cnn": (models.cnn((2, 4, 4), CLASSES, channels=(3, 5)), (2, 4, 4), 4),
    "odd images": (models.cnn((1, 5, 3), CLASSES, channels=(4,)), (1, 5, 3), 8),
    "5 × 5": (
        nn.Sequential(nn.Conv2d(1, 3, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, CLASSES)),
        (1, 4, 4),
        4,
    ),
    "a hidden layer after odd images": (_cnn_with_hidden_layer((3, 5, 7), (5, 7), 6), (3, 5, 7), 4),
    "batches of one": (models.cnn((1, 4, 4), CLASSES, channels=(3,)), (1, 4, 4), 1),
    # more than one tile: positions in parts, several tiles, several depths
    "positions in parts": (models.cnn((1, 10, 10), CLASSES, channels=(3, 5)), (1, 10, 10), 10),
    "many channels": (models.cnn((3, 4, 4), CLASSES, channels=(40, 70)), (3, 4, 4), 4),
    "wide layers": (models.mlp((300,), CLASSES, hidden=(40, 270)), (300,), 4),
}

PRECISIONS = {"odd images": ("float32", "bfloat16"), "mlp": ("float32", "bfloat16")}  # the others: float32
OPTIMIZERS = [  # besides plain SGD
    ("large batches", SGD(momentum=0.9, weight_decay=0.1)),
    ("large batches", Adam(weight_decay=0.1)),
    ("mlp", SGD(weight_decay=0.1)),
    ("mlp", SGD(momentum=0.9, nesterov=True)),
    ("cnn", AdamW(weight_decay=0.1)),
]


def _to_float32(x: Any) -> Any:
    """A bfloat16 operand as float32: the interpreter stores its bits as integers, and would multiply those."""
    if x.dtype.scalar != tl.bfloat16:
        return x
    return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _patch_bfloat16_dot() -> None:
    dot = interpreter.InterpreterBuilder.create_dot
    interpreter.InterpreterBuilder.create_dot = lambda self, a, b, *rest: dot(
        self, _to_float32(a), _to_float32(b), *rest
    )


def _max(values: Iterable[torch.Tensor]) -> float:
    """The maximum, or NaN if there is one."""
    return torch.stack(list(values)).max().item()


def make_jobs(model: nn.Module, shape: tuple[int, ...], batch_size: int) -> tuple[list[LocalJob], list[Batches]]:
    """Two clients of unequal size, the last batches partial, two jobs each."""
    rng = torch.Generator().manual_seed(0)
    received = models.parameters_to_vector(model)
    jobs, batches = [], []
    for client, (samples, settings) in enumerate(CLIENTS):
        x = torch.randn(samples, *shape, generator=rng)
        y = torch.randint(0, CLASSES, (samples,), generator=rng)
        groups = {"ward": torch.arange(samples) % 2 * 200}
        data = make_batches(x, y, seed=1, round=2, client=client, epochs=1, batch_size=batch_size, groups=groups)
        personal = received + 0.1 * torch.randn(len(received), generator=rng)
        for prox, tau, lam in settings:
            jobs.append(LocalJob(start=personal, anchor=received, prox=prox, tau=tau, lam=lam, lr=0.2))
            batches.append(data)
    return jobs, batches


GROUPED = ("logistic", "cnn")  # tilted over a column of groups, the others over the classes
LARGE = (  # slow here
    "mlp", "cnn", "positions in parts", "many channels", "wide layers", "a hidden layer after odd images", "5 × 5",
    "batches of one",
)  # fmt: skip


def main(large: bool) -> None:
    """Print, per case, the difference between kernels and loop, and how far the loop moved from its start."""
    torch.set_num_threads(1)
    results = {}
    _patch_bfloat16_dot()
    for name, optimizer in [*((name, SGD()) for name in CASES), *OPTIMIZERS]:
        precisions = PRECISIONS.get(name, ("float32",)) if optimizer.is_plain else ("float32",)
        chosen = [p for p in precisions if (name in LARGE or p != "float32") == large]
        if not chosen:
            continue
        model, shape, batch_size = CASES[name]
        jobs, batches = make_jobs(model, shape, batch_size)
        jobs = [replace(job, optimizer=optimizer, lr=0.2 if optimizer.name == "sgd" else 0.01) for job in jobs]
        if name in GROUPED:
            jobs = [replace(job, group="ward") for job in jobs]
        expected = [t.parameters for t in autograd_loop.train(model, jobs, batches)]
        uses_kernels = kernel_net(model, Recipe.of(jobs[0]), shape, batch_size, torch.device("cpu")) is not None
        for precision in chosen:
            trained = [t.parameters for t in stacked.train(model, jobs, batches, precision=precision)]
            compared = list(zip(jobs, expected, trained, strict=True))
            # with an infinite tilt, rounding may change which sample is the maximum
            smooth = [(job, a, b) for job, a, b in compared if math.isfinite(job.tau)]
            results[f"{name}, {optimizer.describe()}, {precision}"] = {
                "error": _max((a - b).abs().max() for _, a, b in compared),
                "relative error": _max((a - b).norm() / (a - job.start).norm() for job, a, b in smooth),
                "moved": min((a - job.start).abs().max().item() for job, a, _ in compared),
                "uses kernels": uses_kernels,
            }
            stacked.clear_cache()
    # before a kernel runs, Triton has a cache that others cannot write
    assert Path(os.environ["TRITON_CACHE_DIR"]).stat().st_mode & 0o022 == 0
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(large="large" in sys.argv)
