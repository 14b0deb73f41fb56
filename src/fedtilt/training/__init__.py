"""Train lanes: one signature, `descend(model, lanes, batches) → trained parameters`, several ways that agree.

loop      any `nn.Module`, autograd, one lane at a time: the reference
native    chains (perceptrons, the paper's CNN) in C, one lane at a time: the CPU way, where there is a compiler
fused     perceptrons, hand-written backward, one lane at a time: the CPU way without one
stacked   all lanes in one step: the GPU way
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.training import autograd_loop, fused_mlp, native, stacked
from fedtilt.training.local_job import Batches, LocalJob, deduplicate, make_batches

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
    """The name of the way to train this model on this kind of device; a forced one and the precision are checked."""
    chosen = _chosen(model, device_type, backend, sample)
    if precision != "float32" and (device_type != "cuda" or chosen != "stacked"):
        raise InputError(
            f"precision = {precision!r} is for stacked models on CUDA, not for backend {chosen!r} on {device_type}; "
            "leave it out"
        )
    return chosen


def _chosen(model: nn.Module, device_type: str, backend: str, sample: Tensor | None) -> str:
    asked = device_type != "cpu" or backend == "stacked"
    possible = dict.fromkeys(BACKENDS, True) | {
        "native": native.supports(model) and device_type == "cpu",
        "fused": fused_mlp.supports(model) and device_type == "cpu",
        "stacked": asked and stacked.supports(model, sample),
    }
    if backend == "auto":
        preferred = ("stacked", "autograd") if device_type != "cpu" else ("native", "fused", "autograd")
        return next(name for name in preferred if possible[name] and (name != "native" or native.available()))
    if backend not in possible:
        raise InputError(f"unknown backend {backend!r}; choose one of auto, {', '.join(possible)}")
    if not possible[backend]:
        raise InputError(f"backend {backend!r} does not support this model on {device_type}; use 'auto' or 'autograd'")
    if backend == "native" and (reason := native.why_not()):
        raise InputError(f"backend 'native' cannot run because {reason}; use 'auto'")
    return backend


__all__ = ["BACKENDS", "Backend", "Batches", "LocalJob", "choose_backend", "deduplicate", "make_batches"]
