"""docs/tuning-benchmark.md matches the recorded results."""

from typing import Any

from benchmarks.learned_tilts import GRID, LEARNED
from benchmarks.tuning import STARTS
from benchmarks.tuning_page import PAGE, read_records, render

MACHINE = {"processor": "x", "cores": 2, "memory_gib": 4, "torch": "2"}
HEADER = {"date": "2026-01-01", "fedtilt": "1", "machine": MACHINE}


def cell_case(setting: str, accuracy: float) -> dict[str, Any]:
    values = {"accuracy": accuracy, "client_fairness": 5.0, "class_fairness": 3.0, "tau": 0.5, "lam": -1.0}
    return {"data": "mnist", "outliers": "flips", "setting": setting, "seed": 0} | values


def test_the_page_matches_the_records() -> None:
    assert PAGE.read_text() == render(read_records()), "run python -m benchmarks.tuning_page"


def test_the_page_of_other_records() -> None:
    searches = [{"start": STARTS[0].name, "gain": gain, "kept": False, "saving": 0.5} for gain in (1.0, 2.0, 3.0)]
    cases = [cell_case(name, 90.0 + (name == "tau 0, lam -2")) for name in GRID] + [cell_case(LEARNED, 90.5)]
    cost = {"run": 10.0, "search": 52.0, "ratio": 5.2, "max_train": 300}
    page = render(
        {
            "tuning": HEADER | {"cases": searches},
            "tuning-cost-cpu": HEADER | cost,
            "learned-tilts": HEADER | {"rounds": 50, "max_train": 100, "cases": cases},
        }
    )
    assert f"| {STARTS[0].name} | 3 | +2.00 ± 0.58 | 0 of 3 | 50 % | holds |" in page
    assert "| 2 CPU cores | at most 300 | 10.0 s | 52.0 s | 5.20 | 6 |" in page
    assert "Not recorded yet: `python -m benchmarks.tuning --cost --device cuda`." in page
    assert "`python -m benchmarks.learned_tilts --max-train 100`: at most 100 samples per client, 50 rounds." in page
    best = "91.00 / 5.00 / 3.00 (tau 0, lam -2)"
    assert f"| mnist | flips | 1 | 0.5, -1.0 | 90.50 / 5.00 / 3.00 | {best} | dominated by 1 of 9 |" in page
    assert (
        "Of 1 cells, the grid dominates the learned tilts in 1; they are more accurate than the whole grid in 0" in page
    )
