"""Statistics that several experiments share; scipy.stats is slow to import, so functions import it themselves."""

from collections.abc import Mapping, Sequence

from fedtilt.evaluation.over_seeds import SeedValues
from fedtilt.evaluation.statistics import paired_difference
from fedtilt.report.compare import Metric, Row


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rho; 0 where one of the two is constant.

    >>> round(rank_correlation([3.0, 1.0, 3.0], [5.0, 2.0, 9.0]), 3), rank_correlation([1.0, 1.0], [1.0, 2.0])
    (0.866, 0.0)
    """
    from scipy.stats import spearmanr

    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return float(spearmanr(a, b).statistic)


def best_and_tied(table: Mapping[str, Row], metric: Metric) -> list[str]:
    """The best method, then those whose 95 % interval of the difference to it, paired by seed, contains 0."""
    values = {method: row[metric.key] for method, row in table.items()}
    first = (max if metric.higher_is_better else min)(values, key=lambda method: values[method].mean)
    visible = 0.5 * 10**-metric.digits
    return [first] + [m for m in values if m != first and _is_tie(values[first], values[m], visible)]


def _is_tie(a: SeedValues, b: SeedValues, visible: float) -> bool:
    if abs(a.mean - b.mean) < visible:
        return True
    if len(a.values) != len(b.values) or len(a.values) < 2:
        return False
    return paired_difference(a.values, b.values).sign() == 0
