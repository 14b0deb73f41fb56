"""Differences between two methods over seeds: interval, p-value and effect size.

scipy is slow to import, so functions import it themselves.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

CONFIDENCE = 0.95
_ROUNDING = 1e-9  # equal numbers may differ by this much when computed differently


class PairedDifference(NamedTuple):
    """The mean of the differences between two methods, seed by seed, and how certain it is."""

    mean: float
    low: float  # of the interval; −inf for one pair, which has no interval
    high: float
    p_value: float  # two-sided, of a mean difference of 0
    effect_size: float  # mean / standard deviation of the differences; nan for one pair
    pairs: int

    def sign(self, margin: float = 0.0) -> int:
        """1 or −1 where the whole interval is above `margin` or below −`margin`; else 0.

        >>> paired_difference([1.0, 1.1, 1.2], [0.0, 0.0, 0.0]).sign()
        1
        """
        return (self.low > margin) - (self.high < -margin)


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], confidence: float = CONFIDENCE
) -> PairedDifference:
    """The difference ours − theirs over pairs of values, by Student's t (the paired t test).

    >>> difference = paired_difference([3.0, 5.0, 4.0], [1.0, 2.0, 3.0])
    >>> difference.mean, round(difference.low, 3), round(difference.high, 3)
    (2.0, -0.484, 4.484)
    >>> round(difference.p_value, 4), difference.effect_size, difference.pairs
    (0.0742, 2.0, 3)
    """
    return mean_difference([a - b for a, b in zip(ours, theirs, strict=True)], confidence)


def mean_difference(differences: Sequence[float], confidence: float = CONFIDENCE) -> PairedDifference:
    """`paired_difference` from the differences themselves.

    The interval is d ± t · s / √n, with the mean d and the standard deviation s of n differences, and t the quantile
    of Student's t with n − 1 degrees of freedom. One difference has no interval. If all differences are equal, the
    interval is a point; p is then 1 for a difference of 0, and 0 for any other.

    >>> mean_difference([2.0, 2.0])
    PairedDifference(mean=2.0, low=2.0, high=2.0, p_value=0.0, effect_size=inf, pairs=2)
    >>> mean_difference([2.0])
    PairedDifference(mean=2.0, low=-inf, high=inf, p_value=1.0, effect_size=nan, pairs=1)
    """
    from scipy.special import stdtr, stdtrit

    pairs, mean = len(differences), fmean(differences)
    if pairs == 1:
        return PairedDifference(mean, -math.inf, math.inf, 1.0, math.nan, 1)
    std = stdev(differences)
    if std <= _ROUNDING:
        if abs(mean) <= _ROUNDING:
            return PairedDifference(0.0, 0.0, 0.0, 1.0, 0.0, pairs)
        return PairedDifference(mean, mean, mean, 0.0, math.copysign(math.inf, mean), pairs)
    error = std / math.sqrt(pairs)
    margin = float(stdtrit(pairs - 1, (1 + confidence) / 2)) * error
    p_value = 2 * float(stdtr(pairs - 1, -abs(mean) / error))
    return PairedDifference(mean, mean - margin, mean + margin, p_value, mean / std, pairs)
