"""The tilted mean, 1/t · log(mean(exp(t · x))), and its nesting over groups.

Tilt 0 is the mean, +inf the maximum, -inf the minimum; a positive tilt weights large values more, a negative one small
values. It is the objective of TERM: Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", ICLR 2021,
arXiv 2007.01162.

This is the reference. For speed, the formula is repeated in `math/small_batch.py` (mini-batches in plain floats),
`training/native/c/tilt.h` (C) and `training/stacked/linear_kernels.py` (Triton), and, as an independent check, in
`reproduction/experiments/convergence_rates.py`. Tests compare them all.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math.group_reductions import ONE_GROUP, Groups, nested_groups
from fedtilt.math.small_batch import ZERO_TILT, small_batch_tilt_grad

_EXPM1_RANGE = 20.0  # up to this t · (max − min), shifting by the min keeps every digit; beyond, exp could overflow
_SMALL_BATCH = 64  # up to this many samples, plain floats are faster than tensors


def _where(condition: Tensor | bool, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
    """`torch.where` that computes only one branch if the condition is a plain bool, as for most tilts."""
    if isinstance(condition, Tensor):
        return torch.where(condition, if_true(), if_false())
    return if_true() if condition else if_false()


class _Terms(NamedTuple):
    """z = t · (x − m) and the other terms of a tilted mean and its derivatives."""

    x: Tensor  # (…, n), finite where the weight is 0
    w: Tensor  # (…, n) or (…, 1), summing to 1 in every group with weight
    has_weight: Tensor | bool  # whether the group's weights are not all 0
    t: Tensor | float  # the tilt to divide by, 1 where it is 0 or infinite
    zero: Tensor | bool
    infinite: Tensor | bool
    extreme: Tensor  # the value at an infinite tilt
    m: Tensor  # the shift: the group's minimum or maximum
    z: Tensor


def _terms(x: Tensor, t: Tensor | float, w: Tensor | None, group: Groups) -> _Terms:
    values = x.detach()
    has_weight: Tensor | bool = True
    if w is None:
        w, lo, hi = 1 / group.sum(torch.ones_like(values)), group.min(values), group.max(values)
    else:
        present = w > 0
        lo = group.min(torch.where(present, values, math.inf))
        hi = group.max(torch.where(present, values, -math.inf))
        mass = group.sum(w)
        has_weight = mass > 0
        lo, hi = torch.where(has_weight, lo, 0.0), torch.where(has_weight, hi, 0.0)
        x = torch.where(present, x, lo)  # values of weight zero, NaN included, have no effect
        w = w / torch.where(has_weight, mass, 1.0)
    infinite: Tensor | bool = t.isinf() if isinstance(t, Tensor) else math.isinf(t)
    zero: Tensor | bool = (t.abs() if isinstance(t, Tensor) else abs(t)) < ZERO_TILT
    finite = _where(infinite | zero, lambda: 0.0, lambda: t)
    # the min keeps every digit of small tilts; the max is needed where exp could overflow
    m = _where(t > 0, lambda: torch.where(finite * (hi - lo) > _EXPM1_RANGE, hi, lo), lambda: lo)
    return _Terms(
        x=x,
        w=w,
        has_weight=has_weight,
        t=_where(infinite | zero, lambda: 1.0, lambda: t),
        zero=zero,
        infinite=infinite,
        extreme=_where(t > 0, lambda: hi, lambda: lo),
        m=m,
        z=finite * (x - m),
    )


def _value(s: _Terms, group: Groups) -> Tensor:
    """Each group's tilted mean, for every member: m + log(mean(exp z)) / t, accurate for every tilt.

    With e = mean(expm1 z), log1p(e) is the accurate logarithm unless e is close to −1.
    """

    def finite() -> Tensor:
        excess = group.sum(s.w * s.z.expm1())
        log = torch.where(excess > -0.5, excess.log1p(), _sum_exp(s, group).log())
        return s.m + log / s.t

    value = _where(s.zero, lambda: group.sum(s.w * s.x), finite)
    return _where(s.has_weight, lambda: _where(s.infinite, lambda: s.extreme, lambda: value), lambda: 0.0)


def _sum_exp(s: _Terms, group: Groups) -> Tensor:
    return _where(s.has_weight, lambda: group.sum(s.w * s.z.exp()), lambda: 1.0)


def _grad(s: _Terms, group: Groups) -> Tensor:
    """The gradient of each group's tilted mean by its members: w · exp(z) / Σ w · exp(z); at ±inf ties share it."""

    def at_extreme() -> Tensor:
        tied = s.w * (s.x == s.extreme)
        total = group.sum(tied)
        fallback = _where(s.has_weight, lambda: math.nan, lambda: 1.0)  # no value equals an extreme that is NaN
        return tied / torch.where(total > 0, total, fallback)

    def finite() -> Tensor:
        return s.w * s.z.exp() / _sum_exp(s, group)

    grad = _where(s.infinite, at_extreme, lambda: _where(s.zero, lambda: s.w, finite))
    return grad.expand_as(s.x)


def _tilted_mean(x: Tensor, t: Tensor | float, w: Tensor | None, group: Groups) -> Tensor:
    """`_value`, differentiable to any order by plain operations, so that it batches, traces and compiles.

    The accurate form has inaccurate derivatives, and log-sum-exp has an inaccurate value. So the value is that of the
    first, and the derivatives are those of the second, the surrogate.
    """
    s = _terms(x, t, w, group)
    detached = s._replace(x=s.x.detach(), z=s.z.detach())
    value = _value(detached, group)

    def smooth() -> Tensor:
        return _where(s.zero, lambda: group.sum(s.w * s.x), lambda: _sum_exp(s, group).log() / s.t)

    surrogate = _where(s.infinite, lambda: group.sum(_grad(detached, group) * s.x), smooth)
    return value + (surrogate - surrogate.detach())


def _to_float(x: Tensor) -> Tensor:
    """Half types as float32; the result is rounded once, at the end."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _as_tilt(tilt: float | Tensor, like: Tensor) -> Tensor | float:
    """A tilt that broadcasts against `like`; a number beyond the range of its type is infinite."""
    if isinstance(tilt, Tensor):
        return tilt.to(like).unsqueeze(-1)
    return float(tilt) if abs(tilt) <= torch.finfo(like.dtype).max else math.copysign(math.inf, tilt)


def _check_values(values: Tensor, name: str, dim: int = -1) -> None:
    if not values.is_floating_point():
        raise InputError(f"{name} must be floating point, got {values.dtype}")
    if values.dim() == 0 or values.shape[dim] == 0:
        raise InputError(f"{name} must not be empty, got shape {tuple(values.shape)}")


def _check_tilt(tilt: float | Tensor) -> None:
    if not isinstance(tilt, Tensor) and math.isnan(tilt):
        raise InputError(f"a tilt must be a number or ±inf, got {tilt}")


def tilted_mean(values: Tensor, tilt: float | Tensor, dim: int = -1, weights: Tensor | None = None) -> Tensor:
    """The tilted mean 1/t · log(Σ w · exp(t · x) / Σ w) over `dim`, for any real tilt, 0 and ±inf included.

    Tilt 0 is the (weighted) mean, +inf the maximum, -inf the minimum; tied values share the gradient. It is accurate
    and differentiable for every tilt. Half types are computed in float32. From TERM (Li, Beirami, Sanjabi, Smith,
    ICLR 2021, arXiv 2007.01162).

    Args:
        values: Floating-point values, such as losses.
        tilt: A number, or a tensor that broadcasts against the result: `(S,)` tilts of `(n,)` values give `(S,)` means.
        dim: The dimension to reduce.
        weights: Non-negative weights that broadcast against `values`. Values of weight 0, NaN included, have no effect;
            where all weights are 0 the result is 0.

    >>> losses = torch.tensor([0.0, 1.0, 5.0])
    >>> [round(tilted_mean(losses, t).item(), 3) for t in (float("-inf"), -1, 0, 1, float("inf"))]
    [0.0, 0.78, 2.0, 3.926, 5.0]
    >>> tilted_mean(losses, torch.tensor([0.0, 1e6])).tolist()
    [2.0, 4.99999...]
    """
    _check_values(values, "values", dim)
    _check_tilt(tilt)
    if not isinstance(tilt, Tensor) and tilt == 0 and weights is None:
        return _to_float(values).mean(dim).to(values.dtype)
    x = _to_float(values)
    dim = dim if dim < 0 else dim - x.dim()
    w = None
    if weights is not None:
        w = _check_weights(weights, x)
        x, w = torch.broadcast_tensors(x, w)
        w = w.movedim(dim, -1)
    x, t = x.movedim(dim, -1), _as_tilt(tilt, x)
    if isinstance(t, Tensor):
        x = x.expand(torch.broadcast_shapes(x.shape, t.shape))
    return _tilted_mean(x, t, None if w is None else w.expand_as(x), ONE_GROUP).squeeze(-1).to(values.dtype)


def _check_weights(weights: Tensor, like: Tensor) -> Tensor:
    try:
        torch.broadcast_shapes(weights.shape, like.shape)
    except RuntimeError:
        raise InputError(
            f"weights of shape {tuple(weights.shape)} do not broadcast against values of shape {tuple(like.shape)}"
        ) from None
    return weights.to(like)


def nested_tilt(
    losses: Tensor, groups: Sequence[Tensor], tilts: Sequence[float | Tensor], weights: Tensor | None = None
) -> Tensor:
    """A tilted mean of tilted means of … over nested groups; a group weighs as much as its members together.

    Equal tilts collapse to one level, which is exact because groups are weighted by size.

    Args:
        losses: Per-sample losses (…, n).
        groups: Integer labels (…, n), from fine to coarse. Samples are in one group if this label and all coarser ones
            are equal.
        tilts: One more than groups: the first over the samples of the finest groups, the last over the coarsest groups.
        weights: Non-negative sample weights; samples of weight 0, NaN included, have no effect.

    >>> losses, label = torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 0, 1])
    >>> nested_tilt(losses, [label], [0.0, float("inf")]).item()  # the worst class mean
    8.0
    >>> nested_tilt(losses, [label], [float("inf"), 0.0]).item()  # (2 · 3 + 1 · 8) / 3
    4.666666...
    """
    x, levels, last, w = _check_levels(losses, groups, tilts, weights)
    for t, group in levels:
        x = _tilted_mean(x, t, w, group)
    return tilted_mean(x, last, weights=w).to(losses.dtype)


def nested_tilt_grad(
    losses: Tensor, groups: Sequence[Tensor], tilts: Sequence[float | Tensor], weights: Tensor | None = None
) -> Tensor:
    """The gradient of `nested_tilt` by the losses, without autograd: the weight of each sample in the update.

    >>> nested_tilt_grad(torch.tensor([1.0, 3.0, 8.0]), [torch.tensor([0, 0, 1])], [0.0, 0.0]).tolist()
    [0.333..., 0.333..., 0.333...]
    """
    is_small = losses.dim() == 1 and len(losses) <= _SMALL_BATCH and losses.device.type == "cpu" and weights is None
    if is_small and not any(isinstance(t, Tensor) for t in tilts):
        return small_batch_tilt_grad(losses, groups, [float(t) for t in tilts])
    x, levels, last, w = _check_levels(losses, groups, tilts, weights)
    total = torch.ones_like(x)
    finer = None
    for t, group in [*levels, (_as_tilt(last, x), ONE_GROUP)]:
        s = _terms(x, t, w, group)
        grad = _grad(s, group)
        total = total * (grad if finer is None else finer.sum(grad))
        x, finer = _value(s, group), group
    return total


def _check_levels(
    losses: Tensor, groups: Sequence[Tensor], tilts: Sequence[float | Tensor], weights: Tensor | None
) -> tuple[Tensor, list[tuple[Tensor | float, Groups]], float | Tensor, Tensor | None]:
    """The checked losses, a (tilt, groups) pair for every level but the last, the last tilt, and the weights."""
    _check_values(losses, "losses")
    if len(tilts) != len(groups) + 1:
        raise InputError(f"tilts must be one more than groups, got {len(tilts)} tilts for {len(groups)} groups")
    for tilt in tilts:
        _check_tilt(tilt)
    for label in groups:
        if label.is_floating_point() or label.shape[-1:] != losses.shape[-1:]:
            raise InputError(
                f"groups must have one integer label per loss {tuple(losses.shape)}, "
                f"got {label.dtype} of shape {tuple(label.shape)}"
            )
    # equal tilts are one level
    is_level = [isinstance(a, Tensor) or isinstance(b, Tensor) or a != b for a, b in pairwise(tilts)]
    x = _to_float(losses)
    w = None if weights is None else _check_weights(weights, x)
    levels: list[tuple[Tensor | float, Groups]] = []
    if any(is_level):  # groups need samples, labels and tilts of one shape
        of_tilts = [(*tilt.shape, 1) if isinstance(tilt, Tensor) else (1,) for tilt in tilts]
        shape = torch.broadcast_shapes(x.shape, *(g.shape for g in groups), *of_tilts)
        x = x.expand(shape)
        w = None if w is None else w.expand(shape)
        for keep, tilt, group in zip(is_level, tilts[:-1], nested_groups(groups, x.shape[-1]), strict=True):
            if keep:
                levels.append((_as_tilt(tilt, x), group))
    return x, levels, tilts[-1], w
