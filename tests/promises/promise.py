"""One measured promise, as the table in docs/metrics.md has it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Row(NamedTuple):
    """How often a printed statement held in one cell of a simulation, against its bar."""

    promise: str
    cell: str
    bar: str
    measured: float  # percent
    standard_error: float
    kept: bool


def shares_row(promise: str, cell: str, promised: float, shares: Sequence[float]) -> Row:
    """The mean of a share in percent over independent draws: at least what is promised less two standard errors."""
    mean, error = float(np.mean(shares)), float(np.std(shares, ddof=1)) / np.sqrt(len(shares))
    bar = 100 * promised
    return Row(promise, cell, f"≥ {bar:g} %", mean, float(error), bool(mean >= bar - 2 * error))


def covered_row(promise: str, cell: str, promised: float, held: Sequence[bool]) -> Row:
    """How often a statement held, at least as often as is promised less two standard errors of that."""
    error = float(np.sqrt(promised * (1 - promised) / len(held)))
    mean = float(np.mean(held))
    return Row(promise, cell, f"≥ {100 * promised:g} %", 100 * mean, 100 * error, mean >= promised - 2 * error)


def false_row(promise: str, cell: str, level: float, false: Sequence[bool]) -> Row:
    """How often a statement was false, at most as often as is allowed and two standard errors of that."""
    error = float(np.sqrt(level * (1 - level) / len(false)))
    mean = float(np.mean(false))
    return Row(promise, cell, f"≤ {100 * level:g} %", 100 * mean, 100 * error, mean <= level + 2 * error)
