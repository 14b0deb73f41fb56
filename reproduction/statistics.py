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


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values of several tests, by Holm's step-down method.

    The k-th smallest of m p-values is multiplied by m − k + 1, is at least the one before it, and at most 1. The tests
    whose adjusted p-value is below 0.05 contain a false positive with a probability of at most 5 %. (S. Holm, A simple
    sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.)

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
