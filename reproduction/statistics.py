"""Statistics that several experiments share; scipy.stats is slow to import, so functions import it themselves."""

from collections.abc import Sequence


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rho; 0 where one of the two is constant.

    >>> round(rank_correlation([3.0, 1.0, 3.0], [5.0, 2.0, 9.0]), 3), rank_correlation([1.0, 1.0], [1.0, 2.0])
    (0.866, 0.0)
    """
    from scipy.stats import spearmanr

    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return float(spearmanr(a, b).statistic)
