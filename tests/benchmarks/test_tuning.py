"""The gain of the tuning benchmark: its mean and standard deviation over the seeds."""

import pytest

from benchmarks.page_tuning import sections
from benchmarks.tuning import STARTS, gains


@pytest.mark.parametrize(
    ("found", "text"), [([1.0, 2.0, 3.0], "+2.00 ± 1.00"), ([-3.0, 2.0], "-0.50 ± 3.54"), ([1.0], "+1.00")]
)
def test_gain(found: list[float], text: str) -> None:
    name = STARTS[0].name
    gain = gains([{"start": name, "gain": value, "kept": value < 0, "saving": 0.5} for value in found])[name]
    assert str(gain) == text
    assert (gain.seeds, gain.kept, gain.saving) == (len(found), sum(value < 0 for value in found), 0.5)


def test_every_start_has_a_name_of_its_own() -> None:
    assert len({start.name for start in STARTS}) == len(STARTS)


def test_the_sections_of_the_page() -> None:
    machine = {"processor": "x", "cores": 2, "memory_gib": 4, "torch": "2"}
    header = {"date": "2026-01-01", "fedtilt": "1", "machine": machine}
    searches = [{"start": STARTS[0].name, "gain": gain, "kept": False, "saving": 0.5} for gain in (1.0, 2.0, 3.0)]
    cost = {"run": 10.0, "search": 52.0, "ratio": 5.2, "max_train": 300}
    found = sections({"tuning": header | {"cases": searches}, "tuning-cost-cpu": header | cost})
    assert f"| {STARTS[0].name} | 3 | +2.00 ± 1.00 | 0 of 3 | 50 % |" in found["tuning"]
    assert "| 2 CPU cores | at most 300 | 10.0 s | 52.0 s | 5.20 | 6 |" in found["tuning_cost"]
    assert "Not recorded yet; run `python -m benchmarks.tuning --cost --device cuda`." in found["tuning_cost"]
