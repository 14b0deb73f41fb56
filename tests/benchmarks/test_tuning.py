"""The verdict of the tuning benchmark: the mean gain is not below minus one standard error."""

import pytest

from benchmarks.tuning import STARTS, summary


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([1.0, 2.0, 3.0], "gain +2.00 ± 0.58 points on test data, kept 0 of 3, 50% fewer rounds: holds"),
        ([-3.0, 2.0], "gain -0.50 ± 2.50 points on test data, kept 0 of 2, 50% fewer rounds: holds"),
        ([-1.0, -2.0, -3.0], "gain -2.00 ± 0.58 points on test data, kept 0 of 3, 50% fewer rounds: WORSE"),
        ([1.0], "gain +1.00 points on test data, kept 0 of 1, 50% fewer rounds: one seed has no standard error"),
    ],
)
def test_summary(gains: list[float], verdict: str) -> None:
    assert summary("x", [{"gain": gain, "kept": False, "saving": 0.5} for gain in gains]) == f"x: {verdict}"


def test_every_start_has_a_name_of_its_own() -> None:
    assert len({start.name for start in STARTS}) == len(STARTS)
