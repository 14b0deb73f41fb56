"""One measured promise, as the table in docs/metrics.md has it."""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from fedtilt.errors import InputWarning

AGAIN = 3  # cells of a promise that are measured again: the largest of many numbers is also the luckiest
TIMES = 4  # as many draws as before


class Row(NamedTuple):
    """How often a printed statement held in one cell of a simulation, against its bar."""

    promise: str
    cell: str
    bar: str
    measured: float  # percent, or the unit of the bar
    standard_error: float
    kept: bool
    note: str = ""  # such as how often the statement is printed at all
    again: bool = False  # measured again, because it looked bad

    @property
    def margin(self) -> float:
        """How far the row is on the right side of its bar, and of two standard errors."""
        sign, bar = (1 if self.bar.startswith("≥") else -1), float(self.bar.split()[1])
        return sign * (self.measured - bar) + 2 * self.standard_error

    @property
    def is_broken(self) -> bool:
        """Whether a test should fail: beyond three standard errors, because a grid has many cells at their bar."""
        return self.margin < -self.standard_error


Simulation = Callable[[int, int], Sequence[Row]]  # of how many draws, and the seed of the first


def measured(cells: Sequence[Simulation], draws: int, workers: int = 1) -> list[Row]:
    """The rows of all cells; of each promise, the worst ones and those not kept are measured again on other draws."""
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        each = (lambda run, of: pool.map(run, of)) if workers > 1 else map
        found = list(each(partial(_quietly, draws=draws, first=0), cells))
        rows = {(row.promise, row.cell): (number, row) for number, part in enumerate(found) for row in part}
        doubtful: dict[tuple[str, str], int] = {}
        for promise in dict.fromkeys(promise for promise, _ in rows):
            keys = sorted((key for key in rows if key[0] == promise), key=lambda key: rows[key][1].margin)
            doubtful |= {k: rows[k][0] for n, k in enumerate(keys) if n < AGAIN or not rows[k][1].kept}
        numbers = sorted(set(doubtful.values()))
        second = each(partial(_quietly, draws=TIMES * draws, first=1_000_000), [cells[n] for n in numbers])
        again = {(row.promise, row.cell): row._replace(again=True) for part in second for row in part}
    return [again[key] if key in doubtful and key in again else row for key, (_, row) in rows.items()]


def _quietly(cell: Simulation, draws: int, first: int) -> Sequence[Row]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # about small clients and rare classes
        return cell(draws, first)


def shares_row(promise: str, cell: str, promised: float, shares: Sequence[float]) -> Row:
    """The mean of a share in percent over independent draws: at least what is promised less two standard errors."""
    mean, error = float(np.mean(shares)), float(np.std(shares, ddof=1)) / np.sqrt(len(shares))
    bar = 100 * promised
    return Row(promise, cell, f"≥ {bar:g} %", mean, float(error), bool(mean >= bar - 2 * error))


def covered_row(promise: str, cell: str, promised: float, held: Sequence[float], note: str = "") -> Row:
    """How often a statement held, at least as often as is promised less two standard errors of that."""
    error = float(np.sqrt(promised * (1 - promised) / len(held)))
    mean = float(np.mean(held))
    kept = mean >= promised - 2 * error
    return Row(promise, cell, f"≥ {100 * promised:g} %", 100 * mean, 100 * error, kept, note)


def false_row(promise: str, cell: str, level: float, false: Sequence[float]) -> Row:
    """How often a statement was false, at most as often as is allowed and two standard errors of that."""
    error = float(np.sqrt(level * (1 - level) / len(false)))
    mean = float(np.mean(false))
    return Row(promise, cell, f"≤ {100 * level:g} %", 100 * mean, 100 * error, mean <= level + 2 * error)
