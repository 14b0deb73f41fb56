"""Which of a client's rows are held out: drawn at random, with the classes in proportion, or the newest ones."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from fedtilt import checks, seeds
from fedtilt.errors import InputError

SPLITS = ("random", "proportional", "time")
DEFAULT_TEST_SHARE = 0.25
QUARTERS = ("0", "1", "2", "3")
_FEW = 16  # numbers that are looked for one by one in less time than they are sorted


GIVEN = "given"  # test data that was not drawn from the clients' rows
UNKNOWN = "unknown"  # of a run that did not record it


class DrawnRows(NamedTuple):
    """How the test rows of a federation came about, which every run records: chance in its scores depends on it."""

    split: str = GIVEN  # of `SPLITS`; or given, such as the published test data; or unknown
    fixed_shares: bool = False  # whether the shares of classes in the test rows of each client are fixed, not drawn
    generated: bool = False  # whether another seed draws new data

    def in_words(self) -> str:
        """A sentence for reports.

        >>> DrawnRows("proportional", fixed_shares=True).in_words()
        "test rows: drawn from each client's rows with the classes in proportion, rounded without bias"
        """
        rows = {
            GIVEN: "as given",
            UNKNOWN: "drawn in a way that the run did not record",
            "random": "drawn at random from each client's rows",
            "proportional": "drawn from each client's rows with the classes in proportion, rounded without bias",
            "time": "the newest of each client's rows",
        }[self.split]
        if self.split == GIVEN and self.fixed_shares:
            rows += ", with fixed shares of the classes at each client"
        return f"test rows: {rows}{'; seeds draw new data' if self.generated else ''}"


AS_GIVEN = DrawnRows()


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """How rows are drawn, and what is known of each row; all of one client's rows are drawn from by themselves.

    With "random", every row has the same chance, whatever its class; the rows of a group stay on one side. A model that
    only remembers a client's share of a class wins nothing by such rows. With "proportional", the classes keep their
    proportions, see `proportional_counts`; with "time", the newest rows are drawn.
    """

    how: str = "random"
    strata: np.ndarray | None = None  # (n,) the class of each row, for "proportional"
    group: np.ndarray | None = None  # (n,) rows of one number stay on one side, for "random"
    time: np.ndarray | None = None  # (n,) for "time"

    def of(self, rows: np.ndarray) -> Self:
        """The same for some of the rows."""
        taken = (None if values is None else values[rows] for values in (self.strata, self.group, self.time))
        strata, group, time = taken
        return type(self)(how=self.how, strata=strata, group=group, time=time)

    def draw(self, size: int, count: int, rng: np.random.Generator) -> np.ndarray:
        """A mask of about `count` of `size` rows, those of one client."""
        if self.how == "time":
            assert self.time is not None  # `check_split`
            return newest(self.time, count)
        if self.how == "proportional":
            assert self.strata is not None
            return stratified_mask(self.strata, count, rng)
        return random_mask(size, count, rng) if self.group is None else random_groups(self.group, count, rng)


def check_split(how: str | None, *, time: str | None = None, group: str | None = None) -> str:
    """How rows are drawn, by default at random, or by time if a column of times is named; else raise InputError."""
    if how is None:
        how = "random" if time is None else "time"
    if how not in SPLITS:
        raise InputError(
            f"split = {how!r} is not possible; choose {', '.join(SPLITS[:-1])} or {SPLITS[-1]}; a column with train "
            f"and test in it is split_column = {how!r}"
        )
    if how == "time" and time is None:
        raise InputError("split = 'time' needs a table and its column of times; name the column: time = …")
    if how != "time" and time is not None:
        raise InputError(f"time = {time!r} has no effect with split = {how!r}; set split = 'time', or leave time out")
    if how != "random" and group is not None:
        raise InputError(
            f"split_group = {group!r} and split = {how!r} are two ways to split; rows of a group stay on one side with "
            "split = 'random'"
        )
    return how


def random_mask(size: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """A mask of `count` of `size` rows, all with the same chance.

    >>> random_mask(6, 2, np.random.default_rng(0)).sum()
    np.int64(2)
    """
    mask = np.zeros(size, bool)
    mask[rng.permutation(size)[:count]] = True
    return mask


def random_groups(group: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A mask of the rows of some groups, all with the same chance: as many groups of all as `count` is of the rows.

    A group's size plays no part, so that the rows of people with many are as likely as others; the number of rows that
    are drawn varies with the groups. Of several groups, at least one is drawn and one is left.

    >>> random_groups(np.array([7, 7, 3, 3, 5, 5, 1, 1]), 4, np.random.default_rng(0)).sum()
    np.int64(4)
    """
    names, group = np.unique(group, return_inverse=True)
    chosen = random_mask(len(names), holdout_size(len(names), count / max(1, len(group))), rng)
    return np.asarray(chosen[group])


def newest(time: np.ndarray, count: int) -> np.ndarray:
    """A mask of the newest rows: at least `count`, because rows of one time stay together; never all.

    >>> newest(np.array([3.0, 1.0, 2.0, 2.0]), 2).tolist()
    [True, False, True, True]
    """
    if not count:
        return np.zeros(len(time), bool)
    drawn = time >= np.sort(time)[len(time) - count]
    return drawn if not drawn.all() else time > time.min()


def proportional_counts(counts: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Split `total` over classes in proportion to `counts`, rounded at random and without bias.

    Systematic rounding: with one u in [0, 1) for the client, class k gets floor(s_k + u) − floor(s_(k−1) + u), where
    s_k is the sum of the exact numbers up to k. Its expectation is the exact number, which is at most one away. The
    largest remainder always rounds alike: of 60 clients with a class of 4 %, test rows had 1.7 %.

    >>> draws = [proportional_counts(np.array([9, 1]), 5, np.random.default_rng(seed)) for seed in range(1000)]
    >>> np.round(np.mean(draws, 0), 1).tolist()
    [4.5, 0.5]
    """
    order = rng.permutation(len(counts))  # so that no class has a neighbour for ever
    ends = np.cumsum(counts[order]) * total
    ends = np.floor(ends / counts.sum() + rng.random() + 1e-9 / max(1, total)).astype(np.int64)
    ends[-1] = total  # despite rounding
    chosen = np.empty(len(counts), np.int64)
    chosen[order] = np.diff(ends, prepend=0)
    return chosen


def stratified_mask(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A mask of `count` random samples whose classes keep their proportions, see `proportional_counts`.

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
    """The quarter of its client's numbers that each row is in: the strata of numbers in place of classes.

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


def draw_test_data(split: Split, client: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A mask of the samples that are test data, drawn client by client from its own samples alone."""
    test = np.zeros(len(client), bool)
    for number, rows in enumerate(positions_by_number(client, int(client.max(initial=0)) + 1)):
        if len(rows):
            rng = seeds.generator(seeds.key(seed, "table/test", client=number))
            test[rows] = split.of(rows).draw(len(rows), holdout_size(len(rows), share), rng)
    return test
