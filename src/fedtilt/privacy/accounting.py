"""Epsilon of a sequence of rounds, and the noise for a given epsilon, by Google's `dp-accounting`.

Every round is a Gaussian mechanism, on all clients or on C of them that are drawn without replacement. Two bounds hold,
and the smaller one counts:

    exact        all rounds as Gaussian mechanisms on all clients (Balle and Wang, ICML 2018, arXiv 1805.06530)
    amplified    Rényi differential privacy under sampling without replacement (Wang, Balle and Kasiviswanathan, AISTATS
                 2019, arXiv 1808.00087; see also Balle, Barthe and Gaboardi, NeurIPS 2018, arXiv 1807.01647)

The first holds for any sampling, because a client that is not drawn has no effect. It is the smaller one where most
clients are drawn. Both are for replacing one client, so that `ratio`, the noise multiplier of the library, is the
standard deviation of the noise divided by the distance that replacing one client can move the aggregate.
"""

import functools
import math
from typing import Any

from fedtilt.imports import import_extra

# Between two integers the bound is interpolated, so that other orders are never better.
_ORDERS = (*range(2, 33), *range(36, 65, 4), 128, 256, 512)
_DIGITS = 4  # of a calibrated ratio, which is rounded up: the same on every machine


def epsilon(ratio: float, rounds: int, delta: float, *, population: int, selected: int) -> float:
    """Epsilon after some rounds.

    Args:
        ratio: standard deviation of the noise / sensitivity
        rounds: how many
        delta: the delta that it is for
        population: how many clients the selected ones are drawn from
        selected: how many clients are drawn in a round; all of them: no amplification
    """
    exact = _library().get_epsilon_gaussian(ratio / math.sqrt(rounds), delta)
    if selected >= population:
        return float(exact)
    return min(float(exact), _sampled(ratio, population, selected).epsilon_of(rounds, delta))


def ratio_for(target: float, rounds: int, delta: float, *, population: int, selected: int) -> float:
    """The smallest ratio, to four digits, with which this many rounds have at most this epsilon."""
    largest = _round_up(_library().get_sigma_gaussian(target, delta) * math.sqrt(rounds))

    def fits(ratio: float) -> bool:
        return epsilon(ratio, rounds, delta, population=population, selected=selected) <= target

    high, low = largest, largest / 2
    while fits(low):
        high, low = low, low / 2
    while high / low > 1 + 10.0**-_DIGITS:
        middle = math.sqrt(low * high)
        high, low = (middle, low) if fits(middle) else (high, middle)
    return min(largest, _round_up(high))


def _round_up(value: float) -> float:
    scale = 10.0 ** (_DIGITS - 1 - math.floor(math.log10(value)))
    return math.ceil(value * scale) / scale


@functools.lru_cache(maxsize=256)
def _sampled(ratio: float, population: int, selected: int) -> Any:
    """An accountant with one round."""
    dp = _library()

    class Accountant(dp.rdp.RdpAccountant):  # type: ignore[name-defined]
        def epsilon_of(self, rounds: int, delta: float) -> float:
            """Epsilon of this many of the composed rounds; composing them again would compute every order again."""
            return float(dp.rdp.compute_epsilon(self._orders, rounds * self._rdp, delta)[0])

    event = dp.SampledWithoutReplacementDpEvent(population, selected, dp.GaussianDpEvent(ratio))
    return Accountant(_ORDERS, neighboring_relation=dp.NeighboringRelation.REPLACE_ONE).compose(event)


def _library() -> Any:
    return import_extra("dp_accounting", "privacy", "privacy")
