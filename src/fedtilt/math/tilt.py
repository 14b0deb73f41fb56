"""The tilted mean, 1/t · log(mean(exp(t · x))), and its nesting over groups.

Tilt 0 is the mean, +inf the maximum, -inf the minimum; a positive tilt listens to the large values, a negative one to
the small. Losses and the server's objective come here. For speed the formula stands again in `few` (mini-batches in
plain floats), in C (`descend/c/tilted.h`) and in Triton (`descend/kernels.py`), and in `experiments/convex.py` as an
independent check; tests hold them all together.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math.groups import ONE_GROUP, GroupReduction, nested_groups
from fedtilt.math.small_batch import ZERO, small_batch_shares

_EXPM1_RANGE = 20.0  # up to this t · (max − min), shifting by the min keeps every digit; beyond, exp could overflow
_FEW = 64  # up to this many samples of one batch, plain floats are faster than tensors


def _either(condition: Tensor | bool, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """`torch.where` that computes only one side of what is known beforehand: most tilts are plain numbers."""
    if isinstance(condition, Tensor):
        return torch.where(condition, yes(), no())
    return yes() if condition else no()


class _Shifted(NamedTuple):
    """z = t · (x − m) and what belongs to it: everything a tilted mean and its derivatives are made of."""

    x: Tensor  # (…, n), finite where the weight is 0
    w: Tensor  # (…, n) or (…, 1), summing to 1 in every cell that has any weight
    held: Tensor | bool  # whether the cell has any weight
    t: Tensor | float  # the tilt to divide by, 1 where it is 0 or infinite
    zero: Tensor | bool
    infinite: Tensor | bool
    edge: Tensor  # the value at an infinite tilt
    m: Tensor
    z: Tensor


def _shifted(x: Tensor, t: Tensor | float, w: Tensor | None, group: GroupReduction) -> _Shifted:
    seen = x.detach()
    held: Tensor | bool = True
    if w is None:
        w, lo, hi = 1 / group.total(torch.ones_like(seen)), group.lowest(seen), group.highest(seen)
    else:
        present = w > 0
        lo = group.lowest(torch.where(present, seen, math.inf))
        hi = group.highest(torch.where(present, seen, -math.inf))
        mass = group.total(w)
        held = mass > 0
        lo, hi = torch.where(held, lo, 0.0), torch.where(held, hi, 0.0)
        x = torch.where(present, x, lo)  # whatever stands at a zero weight, NaN included, ends here
        w = w / torch.where(held, mass, 1.0)
    infinite: Tensor | bool = t.isinf() if isinstance(t, Tensor) else math.isinf(t)
    zero: Tensor | bool = (t.abs() if isinstance(t, Tensor) else abs(t)) < ZERO
    finite = _either(infinite | zero, lambda: 0.0, lambda: t)
    # The min keeps every digit of small tilts; the max is needed where exp could overflow.
    m = _either(t > 0, lambda: torch.where(finite * (hi - lo) > _EXPM1_RANGE, hi, lo), lambda: lo)
    return _Shifted(
        x=x,
        w=w,
        held=held,
        t=_either(infinite | zero, lambda: 1.0, lambda: t),
        zero=zero,
        infinite=infinite,
        edge=_either(t > 0, lambda: hi, lambda: lo),
        m=m,
        z=finite * (x - m),
    )


def _value(s: _Shifted, group: GroupReduction) -> Tensor:
    """Each cell's tilted mean, seen from every member: m + log(mean(exp z)) / t, accurate for every tilt.

    With e = mean(expm1 z), log1p(e) is the accurate logarithm unless e is close to −1.
    """

    def finite() -> Tensor:
        excess = group.total(s.w * s.z.expm1())
        log = torch.where(excess > -0.5, excess.log1p(), _sum_exp(s, group).log())
        return s.m + log / s.t

    value = _either(s.zero, lambda: group.total(s.w * s.x), finite)
    return _either(s.held, lambda: _either(s.infinite, lambda: s.edge, lambda: value), lambda: 0.0)


def _sum_exp(s: _Shifted, group: GroupReduction) -> Tensor:
    return _either(s.held, lambda: group.total(s.w * s.z.exp()), lambda: 1.0)


def _share(s: _Shifted, group: GroupReduction) -> Tensor:
    """The derivative of each cell's tilted mean by each member: w · exp(z) / Σ w · exp(z); ties at ±inf share."""

    def at_edge() -> Tensor:
        tied = s.w * (s.x == s.edge)
        total = group.total(tied)
        none = _either(s.held, lambda: math.nan, lambda: 1.0)  # nothing is at the edge where a loss is NaN
        return tied / torch.where(total > 0, total, none)

    def finite() -> Tensor:
        return s.w * s.z.exp() / _sum_exp(s, group)

    share = _either(s.infinite, at_edge, lambda: _either(s.zero, lambda: s.w, finite))
    return share.expand_as(s.x)


def _tilted(x: Tensor, t: Tensor | float, w: Tensor | None, group: GroupReduction) -> Tensor:
    """`_value`, differentiable to any order by plain operations, so that it batches, traces and compiles.

    The accurate form is poor to differentiate and log-sum-exp poor to evaluate: take the value of one and the
    derivatives of the other.
    """
    s = _shifted(x, t, w, group)
    detached = s._replace(x=s.x.detach(), z=s.z.detach())
    value = _value(detached, group)

    def smooth() -> Tensor:
        return _either(s.zero, lambda: group.total(s.w * s.x), lambda: _sum_exp(s, group).log() / s.t)

    slope = _either(s.infinite, lambda: group.total(_share(detached, group) * s.x), smooth)
    return value + (slope - slope.detach())


def _floats(x: Tensor) -> Tensor:
    """Half types are computed in float32 and rounded once at the end."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _as_tilt(tilt: float | Tensor, like: Tensor) -> Tensor | float:
    if isinstance(tilt, Tensor):
        return tilt.to(like).unsqueeze(-1)
    return float(tilt) if abs(tilt) <= torch.finfo(like.dtype).max else math.copysign(math.inf, tilt)


def _checked(values: Tensor, what: str, dim: int = -1) -> None:
    if not values.is_floating_point():
        raise InputError(f"{what} must be floating point, got {values.dtype}")
    if values.dim() == 0 or values.shape[dim] == 0:
        raise InputError(f"{what} must not be empty, got shape {tuple(values.shape)}")


def _checked_tilt(tilt: float | Tensor) -> None:
    if not isinstance(tilt, Tensor) and math.isnan(tilt):
        raise InputError(f"a tilt must be a number or ±inf, got {tilt}")


def tilted_mean(values: Tensor, tilt: float | Tensor, dim: int = -1, weights: Tensor | None = None) -> Tensor:
    """The tilted mean 1/t · log(Σ w · exp(t · x) / Σ w) over `dim`, for any real tilt, 0 and ±inf included.

    Tilt 0 is the (weighted) mean, +inf the maximum, -inf the minimum; tied values share the gradient. The tilt may be
    a tensor: it broadcasts against the result, so `(S,)` tilts of `(n,)` values give `(S,)` means. `weights` are
    non-negative and broadcast against `values`; what stands at a zero weight, NaN included, takes no part, and where
    all weights are zero the result is 0. Half types are computed in float32.

    >>> losses = torch.tensor([0.0, 1.0, 5.0])
    >>> [round(tilted_mean(losses, t).item(), 3) for t in (float("-inf"), -1, 0, 1, float("inf"))]
    [0.0, 0.78, 2.0, 3.926, 5.0]
    >>> tilted_mean(losses, torch.tensor([0.0, 1e6])).tolist()
    [2.0, 4.99999...]
    """
    _checked(values, "values", dim)
    _checked_tilt(tilt)
    if not isinstance(tilt, Tensor) and tilt == 0 and weights is None:
        return _floats(values).mean(dim).to(values.dtype)
    x = _floats(values)
    dim = dim if dim < 0 else dim - x.dim()
    w = None
    if weights is not None:
        w = _weights(weights, x)
        x, w = torch.broadcast_tensors(x, w)
        w = w.movedim(dim, -1)
    x, t = x.movedim(dim, -1), _as_tilt(tilt, x)
    if isinstance(t, Tensor):
        x = x.expand(torch.broadcast_shapes(x.shape, t.shape))
    return _tilted(x, t, None if w is None else w.expand_as(x), ONE_GROUP).squeeze(-1).to(values.dtype)


def _weights(weights: Tensor, like: Tensor) -> Tensor:
    try:
        torch.broadcast_shapes(weights.shape, like.shape)
    except RuntimeError:
        raise InputError(
            f"weights of shape {tuple(weights.shape)} do not broadcast against values of shape {tuple(like.shape)}"
        ) from None
    return weights.to(like)


def nested_tilt(
    losses: Tensor,
    groups: Sequence[Tensor],
    tilts: Sequence[float | Tensor],
    weights: Tensor | None = None,
) -> Tensor:
    """A tilted mean of tilted means of … over nested groups, each cell weighing what its members weigh together.

    `groups` are labels (…, n) from fine to coarse; a cell is identified by its own label and all coarser ones, and a
    label that no sample carries takes no part. `tilts` are one more than groups: the first over the samples of the
    finest cells, the last over the coarsest cells. Equal tilts collapse to one level (sizes weigh, so this is exact).

    >>> losses, label = torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 0, 1])
    >>> nested_tilt(losses, [label], [0.0, float("inf")]).item()  # the worst class mean
    8.0
    >>> nested_tilt(losses, [label], [float("inf"), 0.0]).item()  # (2 · 3 + 1 · 8) / 3
    4.666666...
    """
    x, levels, last, w = _levels(losses, groups, tilts, weights)
    for t, group in levels:
        x = _tilted(x, t, w, group)
    return tilted_mean(x, last, weights=w).to(losses.dtype)


def nested_shares(
    losses: Tensor,
    groups: Sequence[Tensor],
    tilts: Sequence[float | Tensor],
    weights: Tensor | None = None,
) -> Tensor:
    """The gradient of `nested_tilt` by the losses, without autograd: what each sample counts for.

    >>> nested_shares(torch.tensor([1.0, 3.0, 8.0]), [torch.tensor([0, 0, 1])], [0.0, 0.0]).tolist()
    [0.333..., 0.333..., 0.333...]
    """
    few = losses.dim() == 1 and len(losses) <= _FEW and losses.device.type == "cpu" and weights is None
    if few and not any(isinstance(t, Tensor) for t in tilts):
        return small_batch_shares(losses, groups, [float(t) for t in tilts])
    x, levels, last, w = _levels(losses, groups, tilts, weights)
    shares = torch.ones_like(x)
    finer = None
    for t, group in [*levels, (_as_tilt(last, x), ONE_GROUP)]:
        s = _shifted(x, t, w, group)
        share = _share(s, group)
        shares = shares * (share if finer is None else finer.total(share))
        x, finer = _value(s, group), group
    return shares


def _levels(
    losses: Tensor, groups: Sequence[Tensor], tilts: Sequence[float | Tensor], weights: Tensor | None
) -> tuple[Tensor, list[tuple[Tensor | float, GroupReduction]], float | Tensor, Tensor | None]:
    """The losses, a (tilt, cells) pair for every level but the last, the last tilt, and the weights, checked."""
    _checked(losses, "losses")
    if len(tilts) != len(groups) + 1:
        raise InputError(f"tilts must be one more than groups, got {len(tilts)} tilts for {len(groups)} groups")
    for tilt in tilts:
        _checked_tilt(tilt)
    for label in groups:
        if label.is_floating_point() or label.shape[-1:] != losses.shape[-1:]:
            raise InputError(
                f"a group holds one integer label per loss {tuple(losses.shape)}, "
                f"got {label.dtype} of shape {tuple(label.shape)}"
            )
    kept = [not _equal(a, b) for a, b in pairwise(tilts)]  # equal tilts are one level
    x = _floats(losses)
    w = None if weights is None else _weights(weights, x)
    levels: list[tuple[Tensor | float, GroupReduction]] = []
    if any(kept):  # cells need samples, labels and tilts of one shape
        shape = torch.broadcast_shapes(x.shape, *(g.shape for g in groups), *(_tilt_shape(t) for t in tilts))
        x = x.expand(shape)
        w = None if w is None else w.expand(shape)
        for own_level, tilt, group in zip(kept, tilts[:-1], nested_groups(groups, x.shape[-1]), strict=True):
            if own_level:
                levels.append((_as_tilt(tilt, x), group))
    return x, levels, tilts[-1], w


def _equal(a: float | Tensor, b: float | Tensor) -> bool:
    return not isinstance(a, Tensor) and not isinstance(b, Tensor) and a == b


def _tilt_shape(tilt: float | Tensor) -> tuple[int, ...]:
    return (*tilt.shape, 1) if isinstance(tilt, Tensor) else (1,)
