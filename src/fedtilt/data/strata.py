"""Drawing a share of samples that keeps the classes' proportions."""

import numpy as np


def shares(counts: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Split `total` over groups of `counts` members in proportion, by largest remainder with ties broken at random.

    >>> shares(np.array([6, 3, 1]), 5, np.random.default_rng(0)).sum()
    np.int64(5)
    """
    exact = counts * (total / counts.sum())
    whole = np.floor(exact).astype(np.int64)
    remainder = exact - whole + 1e-9 * rng.random(len(counts))
    whole[np.argsort(-remainder)[: total - whole.sum()]] += 1
    return whole


def stratified(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A mask of `count` random samples whose classes keep their proportions to within one sample.

    >>> labels = np.array([0, 0, 0, 0, 1, 1])
    >>> labels[stratified(labels, 3, np.random.default_rng(0))].tolist()
    [0, 0, 1]
    """
    _, group, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.lexsort((rng.random(len(labels)), group))
    place = np.empty(len(labels), np.int64)  # each sample's random place within its class
    place[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(place < shares(counts, count, rng)[group])


def held_out(size: int, share: float) -> int:
    """How many of `size` samples a share sets aside: at least one where two exist, never all of them.

    >>> held_out(10, 0.25), held_out(2, 0.01), held_out(1, 0.5), held_out(10, 0.0)
    (2, 1, 0, 0)
    """
    return min(max(1, round(share * size)), size - 1) if share > 0 else 0
