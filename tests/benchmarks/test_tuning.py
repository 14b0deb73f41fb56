"""The verdict of the tuning benchmark: the mean gain is not below minus one standard error."""

import pytest

from benchmarks.tuning import STARTS, gains


@pytest.mark.parametrize(
    ("found", "text", "verdict"),
    [
        ([1.0, 2.0, 3.0], "+2.00 ± 0.58", "holds"),
        ([-3.0, 2.0], "-0.50 ± 2.50", "holds"),
        ([-1.0, -2.0, -3.0], "-2.00 ± 0.58", "WORSE"),
        ([1.0], "+1.00", "one seed has no standard error"),
    ],
)
def test_verdict(found: list[float], text: str, verdict: str) -> None:
    name = STARTS[0].name
    gain = gains([{"start": name, "gain": value, "kept": value < 0, "saving": 0.5} for value in found])[name]
    assert (str(gain), gain.verdict) == (text, verdict)
    assert (gain.seeds, gain.kept, gain.saving) == (len(found), sum(value < 0 for value in found), 0.5)


def test_every_start_has_a_name_of_its_own() -> None:
    assert len({start.name for start in STARTS}) == len(STARTS)
