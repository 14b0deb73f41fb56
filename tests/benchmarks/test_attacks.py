"""docs/attacks.md shows points lost and rules that fail."""

import math

from benchmarks.attacks import losses, render


def test_points_lost_and_rules_that_do_not_withstand() -> None:
    found = {
        "none": {"mean": (90.0, 90.0), "median": (89.0, 89.0)},
        "alie": {"mean": (80.0, 81.0), "median": (88.0, 88.0)},
        "ipm": {"mean": (None, 80.0), "median": (89.0, 88.0)},  # the mean diverges
    }
    cases = [
        {"division": "iid", "seed": seed, "attack": attack, "measured": f"machine {seed}",
         "rules": {rule: {"accuracy": accuracies[seed]} for rule, accuracies in by_rule.items()}}
        for seed in (0, 1) for attack, by_rule in found.items()
    ]  # fmt: skip
    assert losses(cases) == {
        "alie": {"mean": [10.0, 9.0], "median": [1.0, 1.0]},
        "ipm": {"mean": [math.inf, 10.0], "median": [0.0, 1.0]},
    }
    record = {"data": "mnist", "divisions": {"iid": {"clients": 20}}, "train": {"rounds": 3}, "hidden": [5]}
    machine = {"processor": "X", "cores": 2, "memory_gib": 4, "system": "Linux", "python": "3.11", "torch": "2.13"}
    text = render(record | {"cases": cases, "machine": machine, "date": "2026-01-01T00:00:00Z", "fedtilt": "0"})
    assert "| mean | 90.0 | **+9.5 ± 0.5** | **diverges** |" in text
    assert "| median | 89.0 | +1.0 ± 0.0 | +0.5 ± 0.5 |" in text
    assert "Of 2 rules, these numbers withstand: alie 1; ipm 1. **All of these attacks: median.**" in text
    assert "Measured with machine 0; and with machine 1." in text
    assert "Not measured yet: alie, strongest; ipm, strongest; sign_flip;" in text
