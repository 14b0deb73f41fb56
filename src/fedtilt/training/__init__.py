"""Train local jobs: one signature, `train(model, jobs, batches) → trained parameters`, and backends that agree.

autograd  any `nn.Module`, by autograd, one job at a time: the reference
native    perceptrons and CNNs in C, one job at a time: for CPUs with a C compiler
fused     perceptrons, with a hand-written backward pass, one job at a time: for CPUs without a C compiler
stacked   all jobs in one step: for GPUs
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.training import autograd_loop, fused_mlp, native, stacked
from fedtilt.training.local_job import LAST_BATCH, Batches, LocalJob, distinct_jobs, make_batches

Backend = Callable[[nn.Module, Sequence[LocalJob], Sequence[Batches]], list[Tensor]]

BACKENDS: dict[str, Backend] = {
    "autograd": autograd_loop.train,
    "native": native.train,
    "fused": fused_mlp.train,
    "stacked": stacked.train,
}


def choose_backend(
    model: nn.Module, device_type: str, backend: str = "auto", sample: Tensor | None = None, precision: str = "float32"
) -> str:
    """The name of the fastest backend for this model and device, or `backend` if it supports them.

    Args:
        model: The model to train.
        device_type: "cpu", "cuda", ….
        backend: A name from `BACKENDS`, or "auto".
        sample: One input, (1, …), to test whether the model can be stacked.
        precision: "float32", or "tf32" or "bfloat16" for stacked models on CUDA.
    """
    chosen = _choose(model, device_type, backend, sample)
    if precision != "float32" and (device_type != "cuda" or chosen != "stacked"):
        raise InputError(
            f"precision = {precision!r} is for stacked models on CUDA, not for backend {chosen!r} on {device_type}; "
            "leave it out"
        )
    return chosen


def _choose(model: nn.Module, device_type: str, backend: str, sample: Tensor | None) -> str:
    may_stack = device_type != "cpu" or backend == "stacked"
    supported = dict.fromkeys(BACKENDS, True) | {
        "native": native.supports(model) and device_type == "cpu",
        "fused": fused_mlp.supports(model) and device_type == "cpu",
        "stacked": may_stack and stacked.supports(model, sample),
    }
    if backend == "auto":
        preferred = ("stacked", "autograd") if device_type != "cpu" else ("native", "fused", "autograd")
        return next(name for name in preferred if supported[name] and (name != "native" or native.available()))
    if backend not in supported:
        raise InputError(f"unknown backend {backend!r}; choose one of auto, {', '.join(supported)}")
    if not supported[backend]:
        raise InputError(f"backend {backend!r} does not support this model on {device_type}; use 'auto' or 'autograd'")
    if backend == "native" and (reason := native.unavailable_reason()):
        raise InputError(f"backend 'native' cannot run because {reason}; use 'auto'")
    return backend


__all__ = [
    "BACKENDS",
    "LAST_BATCH",
    "Backend",
    "Batches",
    "LocalJob",
    "choose_backend",
    "distinct_jobs",
    "make_batches",
]
