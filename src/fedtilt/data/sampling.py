"""Stratified sampling: random subsets in which the classes keep their proportions."""

from collections.abc import Callable

import numpy as np

from fedtilt import checks, seeds
from fedtilt.errors import InputError

DEFAULT_TEST_SHARE = 0.25
QUARTERS = ("0", "1", "2", "3")
_FEW = 16  # numbers that are looked for one by one in less time than they are sorted


def proportional_counts(counts: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Split `total` over groups in proportion to `counts`, by largest remainder with ties broken at random.

    >>> proportional_counts(np.array([6, 3, 1]), 5, np.random.default_rng(0)).sum()
    np.int64(5)
    """
    exact = counts * (total / counts.sum())
    rounded = np.floor(exact).astype(np.int64)
    remainder = exact - rounded + 1e-9 * rng.random(len(counts))
    rounded[np.argsort(-remainder)[: total - rounded.sum()]] += 1
    return rounded


def stratified_mask(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A mask of `count` random samples whose classes keep their proportions to within one sample.

    >>> labels = np.array([0, 0, 0, 0, 1, 1])
    >>> labels[stratified_mask(labels, 3, np.random.default_rng(0))].tolist()
    [0, 0, 1]
    """
    counts = np.bincount(labels)
    present = np.flatnonzero(counts)
    keys = rng.random(len(labels))
    chosen = proportional_counts(counts[present], count, rng)
    mask = np.zeros(len(labels), bool)
    members_of = positions_by_number(labels, len(counts))
    for number, size in zip(present.tolist(), chosen.tolist(), strict=True):
        if size:
            members = members_of[number]
            mask[members[np.argpartition(keys[members], size - 1)[:size]]] = True  # those with the smallest keys
    return mask


def positions_by_number(numbers: np.ndarray, count: int) -> list[np.ndarray]:
    """The positions of 0, 1, …, count − 1 among these numbers, ascending.

    >>> [positions.tolist() for positions in positions_by_number(np.array([1, 0, 1]), 3)]
    [[1], [0, 2], []]
    """
    small = numbers.astype(np.min_scalar_type(numbers.max(initial=0)))
    if count <= _FEW:
        return [np.flatnonzero(small == number) for number in range(count)]
    order = np.argsort(small, kind="stable")  # of small numbers, a radix sort
    return np.split(order, np.cumsum(np.bincount(numbers, minlength=count))[:-1])


def quarters(values: np.ndarray, client: np.ndarray) -> np.ndarray:
    """The quarter of its client's numbers that each row is in, so that a split has small and large ones alike.

    >>> quarters(np.array([5.0, 1.0, 7.0, 3.0]), np.zeros(4, np.int64)).tolist()
    [2, 0, 3, 1]
    """
    found = np.zeros(len(values), np.int64)
    for rows in positions_by_number(client, int(client.max(initial=0)) + 1):
        found[rows[np.argsort(values[rows], kind="stable")]] = np.arange(len(rows)) * len(QUARTERS) // max(1, len(rows))
    return found


def check_test_share(share: float | None, seed: int, *, given: bool) -> float:
    """The share of test data, by default 0.25; raise InputError if it is set although all test data is given."""
    checks.whole(seed, "seed")
    if share is None:
        return DEFAULT_TEST_SHARE
    share = checks.number(share, "test_share")
    if not 0 < share < 1:
        raise InputError(f"test_share = {share} must be > 0 and < 1; 0.25 is usual")
    if given:
        raise InputError(f"test_share = {share} has no effect, because test data is given; leave it out")
    return share


def holdout_size(size: int, share: float) -> int:
    """The number of samples to hold out of `size`: at least one if there are two, and never all of them.

    >>> holdout_size(10, 0.25), holdout_size(2, 0.01), holdout_size(1, 0.5), holdout_size(10, 0.0)
    (2, 1, 0, 0)
    """
    return min(max(1, round(share * size)), size - 1) if share > 0 else 0


def draw_test_data(
    labels: np.ndarray, client: np.ndarray, share: float, seed: int,
    draw: Callable[[np.ndarray, int, np.random.Generator], np.ndarray] | None = None,
) -> np.ndarray:  # fmt: skip
    """A mask of the samples that are test data, drawn client by client from its own samples alone.

    `draw` returns the mask of one client, from the positions of its samples, the number to draw and a generator; the
    default draws with the classes in proportion.
    """
    test = np.zeros(len(labels), bool)
    for number, rows in enumerate(positions_by_number(client, int(client.max(initial=0)) + 1)):
        if len(rows):
            count, rng = holdout_size(len(rows), share), seeds.generator(seeds.key(seed, "table/test", client=number))
            test[rows] = stratified_mask(labels[rows], count, rng) if draw is None else draw(rows, count, rng)
    return test
