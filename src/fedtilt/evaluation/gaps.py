"""How far apart groups are in a metric: the highest value minus the lowest, and the lowest over the highest."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedtilt.evaluation.estimates import Estimate
from fedtilt.evaluation.intervals import expansion

Array = np.ndarray
Range = tuple[float, float]
_UNKNOWN = math.nan, math.nan


class Gap(NamedTuple):
    """How far apart the groups are in one metric; NaN where nothing is known."""

    lowest: str  # the group
    highest: str
    minimum: float
    maximum: float
    difference: float  # maximum − minimum
    difference_low: float
    difference_high: float
    ratio: float  # minimum / maximum
    ratio_low: float
    ratio_high: float


def gap_between(estimates: Mapping[str, Estimate], confidence: float) -> Gap:
    """The gap between groups with an interval, if every group has one.

    The highest and the lowest of many groups differ by chance alone, so the interval holds for all pairs of groups at
    once. If all groups were resampled, it is that of `_range_of_pairs`; otherwise it follows from intervals of the
    groups that hold together: the highest value is between the highest lower and the highest upper end.

    Args:
        estimates: by group; the second interval of each holds together with those of all other groups
        confidence: of the interval
    """
    defined = {group: estimate for group, estimate in estimates.items() if not math.isnan(estimate.value)}
    if not defined:
        return Gap("", "", *[math.nan] * 8)
    lowest, highest = (choose(defined, key=lambda group: defined[group].value) for choose in (min, max))
    minimum, maximum = defined[lowest].value, defined[highest].value
    found = list(defined.values())
    resampled = [estimate.resampled for estimate in found if estimate.resampled is not None]
    if len(resampled) == len(found) > 1:
        wider = max(expansion(estimate.units, confidence) for estimate in found)
        difference, ratio = _from_resamples(np.array([e.value for e in found]), np.stack(resampled), confidence, wider)
    else:
        difference, ratio = _from_intervals(np.array([estimate.intervals[1][:2] for estimate in found]))
    ratio_value = minimum / maximum if maximum and minimum >= 0 else math.nan  # of signed values it means nothing
    return Gap(lowest, highest, minimum, maximum, maximum - minimum, *difference, ratio_value, *ratio)


def _from_intervals(intervals: Array) -> tuple[Range, Range]:
    """Intervals of the difference and the ratio from intervals of the groups, (groups, 2); NaN if a group has none."""
    low, high = intervals.T
    if np.isnan(intervals).any():
        return _UNKNOWN, _UNKNOWN
    difference = max(0.0, low.max() - high.min()), high.max() - low.min()
    if low.min() < 0:
        return (float(difference[0]), float(difference[1])), _UNKNOWN
    ratio = low.min() / high.max() if high.max() else math.nan, min(1.0, high.min() / low.max()) if low.max() else 1.0
    return (float(difference[0]), float(difference[1])), (float(ratio[0]), float(ratio[1]))


def _from_resamples(values: Array, resampled: Array, confidence: float, wider: float) -> tuple[Range, Range]:
    """Intervals of the difference and the ratio from resamples (groups, B); the ratio is a difference of logarithms."""
    difference = _range_of_pairs(values, resampled, confidence, wider)
    if (resampled <= 0).any() or (values <= 0).any():
        return difference, _UNKNOWN
    low, high = _range_of_pairs(np.log(values), np.log(resampled), confidence, wider)
    return difference, (math.exp(-high), math.exp(-low))


def _range_of_pairs(values: Array, resampled: Array, confidence: float, wider: float) -> Range:
    """An interval of the highest minus the lowest of several values, from resamples (groups, B) of all of them at once.

    With s_ij the standard deviation of the resampled v_i − v_j, and c the quantile of the largest deviation over all
    pairs in units of s_ij, all differences are within c · s_ij of v_i − v_j at once, as in Tukey's method; so is the
    largest. (J. P. Romano and M. Wolf, Exact and approximate stepdown methods for multiple hypothesis testing, JASA
    100, 2005.)
    """
    resampled = resampled[:, ~np.isnan(resampled).any(0)]
    if resampled.shape[1] < 20:
        return _UNKNOWN
    largest = np.zeros(resampled.shape[1])
    differences, errors = [], []
    for i in range(len(values) - 1):
        deviation = resampled[i] - resampled[i + 1 :] - (values[i] - values[i + 1 :])[:, None]  # (pairs, B)
        error = deviation.std(1)
        if (error < 1e-12).any():
            return _UNKNOWN
        largest = np.maximum(largest, np.abs(deviation / error[:, None]).max(0))
        differences.append(np.abs(values[i] - values[i + 1 :]))
        errors.append(error)
    margin = float(np.quantile(largest, confidence)) * wider * np.concatenate(errors)
    difference = np.concatenate(differences)
    return float(max(0.0, (difference - margin).max())), float((difference + margin).max())
