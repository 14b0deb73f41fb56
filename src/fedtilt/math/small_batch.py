"""The tilt of a mini-batch in plain floats: ten samples cost less than the fifty tensor calls of `fedtilt.tilt`."""

import math
import operator
from collections.abc import Sequence

from torch import Tensor

ZERO = 1e-30  # a tilt this small is 0: t/2 · var is below one rounding for any loss up to 1e4


def small_batch_shares(losses: Tensor, groups: Sequence[Tensor], tilts: Sequence[float]) -> Tensor:
    """What each sample of a mini-batch counts for: `nested_shares`, for numbers as tilts and no weights."""
    values: list[float] = losses.tolist()
    mass = [1.0] * len(values)
    keys = list(zip(*(label.tolist() for label in groups), strict=True)) or [()] * len(values)
    levels: list[list[tuple[list[int], list[float]]]] = []
    for level, tilt in enumerate(tilts):  # up: from samples to cells to cells of cells
        cells: dict[tuple[int, ...], list[int]] = {}
        for i, key in enumerate(keys):
            cells.setdefault(key[1:] if level else key, []).append(i)
        levels.append([])
        above, above_mass = [], []
        for members in cells.values():
            weights = [mass[i] for i in members]
            value, shares = _tilt_of_few([values[i] for i in members], weights, tilt)
            levels[-1].append((members, shares))
            above.append(value)
            above_mass.append(sum(weights))
        keys, values, mass = list(cells), above, above_mass
    total = [1.0]
    for level_shares in reversed(levels):  # and down: a member's share of its cell's share
        below = [0.0] * sum(len(members) for members, _ in level_shares)
        for share, (members, parts) in zip(total, level_shares, strict=True):
            for i, part in zip(members, parts, strict=True):
                below[i] = share * part
        total = below
    return losses.new_tensor(total)


def _tilt_of_few(x: list[float], w: list[float], t: float) -> tuple[float, list[float]]:
    """Value and shares of one cell, in double precision."""
    if len(x) == 1:
        return x[0], [1.0]
    mass = sum(w)
    if abs(t) < ZERO:
        return sum(map(operator.mul, w, x)) / mass, [v / mass for v in w]
    if any(map(math.isnan, x)):
        return math.nan, [math.nan] * len(x)
    m = max(x) if t > 0 else min(x)
    if math.isinf(t):
        tied = [v if value == m else 0.0 for v, value in zip(w, x, strict=True)]
        return m, [v / sum(tied) for v in tied]
    excess = [v * math.expm1(t * (value - m)) for v, value in zip(w, x, strict=True)]
    sum_excess = sum(excess)
    sum_exp = mass + sum_excess
    log = math.log1p(sum_excess / mass) if sum_excess > -0.5 * mass else math.log(sum_exp / mass)
    return m + log / t, [(v + e) / sum_exp for v, e in zip(w, excess, strict=True)]
