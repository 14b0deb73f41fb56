"""Train lanes: one signature, `descend(model, lanes, batches) → trained parameters`, several ways that agree.

loop      any `nn.Module`, autograd, one lane at a time: the reference
native    chains (perceptrons, the paper's CNN) in C, one lane at a time: the CPU way, where there is a compiler
fused     perceptrons, hand-written backward, one lane at a time: the CPU way without one
stacked   all lanes in one step: the GPU way
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from fedtilt.descend import fused, loop, native, stacked
from fedtilt.descend.lanes import Batches, Lane, batches_of, trained_once
from fedtilt.errors import InputError

Way = Callable[[nn.Module, Sequence[Lane], Sequence[Batches]], list[Tensor]]

WAYS: dict[str, Way] = {
    "loop": loop.descend,
    "native": native.descend,
    "fused": fused.descend,
    "stacked": stacked.descend,
}


def choose(
    model: nn.Module, device_type: str, way: str = "auto", sample: Tensor | None = None, precision: str = "float32"
) -> str:
    """The name of the way to train this model on this kind of device; a forced one and the precision are checked."""
    chosen = _chosen(model, device_type, way, sample)
    if precision != "float32" and (device_type != "cuda" or chosen != "stacked"):
        raise InputError(
            f"precision = {precision!r} is for stacked models on CUDA, not for way {chosen!r} on {device_type}; "
            "leave it out"
        )
    return chosen


def _chosen(model: nn.Module, device_type: str, way: str, sample: Tensor | None) -> str:
    asked = device_type != "cpu" or way == "stacked"
    possible = dict.fromkeys(WAYS, True) | {
        "native": native.supports(model) and device_type == "cpu",
        "fused": fused.supports(model) and device_type == "cpu",
        "stacked": asked and stacked.supports(model, sample),
    }
    if way == "auto":
        preferred = ("stacked", "loop") if device_type != "cpu" else ("native", "fused", "loop")
        return next(name for name in preferred if possible[name] and (name != "native" or native.available()))
    if way not in possible:
        raise InputError(f"unknown way {way!r}; choose one of auto, {', '.join(possible)}")
    if not possible[way]:
        raise InputError(f"way {way!r} does not support this model on {device_type}; use 'auto' or 'loop'")
    if way == "native" and (reason := native.why_not()):
        raise InputError(f"way 'native' cannot run because {reason}; use 'auto'")
    return way


__all__ = ["WAYS", "Batches", "Lane", "Way", "batches_of", "choose", "trained_once"]
