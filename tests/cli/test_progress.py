"""The lines of a run that is not on a terminal."""

import itertools
import re
from types import SimpleNamespace

import pytest


def test_the_time_left_counts_from_the_first_round_on(fedtilt, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes before it is no part of a round: workers start, and steps are compiled."""
    clock = itertools.count(1000.0, 3.0)
    monkeypatch.setattr("fedtilt.cli.progress.time", SimpleNamespace(monotonic=lambda: next(clock)))
    result = fedtilt("run", "--set", "train.rounds=4", "--seeds", "2", "--method", "fedavg", "--verbose")
    assert result.code == 0, result.err
    lines = [line for line in result.err.splitlines() if line.startswith("round ")]
    left = [re.findall(r", (\d+) s left$", line) for line in lines]
    assert left == [[], ["6"], ["3"], []] * 2
