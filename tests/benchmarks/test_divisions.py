"""The table rule × attack × division has the accuracies of the record, and its sentences name the best rules of it."""

from typing import Any

import torch

from benchmarks.divisions import (
    ATTACKS,
    BACKDOOR,
    DIVISIONS,
    HELD_OUT_ATTACKS,
    HONEST_ALONE,
    NONE,
    PERSONAL,
    ROOT_ALONE,
    HonestAlone,
    RootAlone,
    accuracies,
    render,
    render_held_out,
)  # fmt: skip
from fedtilt.methods import ServerRound

ACCURACY = {  # rule → without attackers, under all attacks
    HONEST_ALONE: (95.0, 95.0), ROOT_ALONE: (99.0, 99.0), "mean": (90.0, 50.0), "median": (89.0, 70.0),
    "multi_krum": (60.0, 80.0), "fltrust": (85.0, 84.0), "root_selected": (91.0, 90.0), "screened": (90.0, 60.0),
    PERSONAL[0]: (99.0, 98.0),
}  # fmt: skip


def rules(attack: str, seed: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rule, (without, under) in ACCURACY.items():
        diverges = rule == "mean" and attack == "ipm" and seed == 1
        found[rule] = {"accuracy": None if diverges else without if attack == NONE else under + seed}
        if attack in (NONE, BACKDOOR):
            found[rule]["success"] = 2.0 if attack == NONE else 90.0 if rule == "mean" else 7.0
    return found


def test_the_table_and_its_sentences() -> None:
    cases = [
        {"division": division, "seed": seed, "attack": attack, "measured": "M", "rules": rules(attack, seed)}
        for division in DIVISIONS for seed in (0, 1) for attack in ATTACKS
    ]  # fmt: skip
    under = dict.fromkeys([attack for attack in ATTACKS if attack != NONE], 50.5) | {"ipm": 0.0}
    assert accuracies(cases, "iid")["mean"] == {NONE: 90.0, "trigger": 2.0, "success": 90.0, **under}
    text = render({"cases": cases, "train": {"rounds": 3}})
    count = len(ATTACKS) - 1
    assert f"| iid | root_selected | 91.0 | {'90.5 | ' * count}**90.5** | 2 % | **7 %** |" in text
    assert "| diverges | 2 % | 90 % |" in text  # the mean, once
    (line,) = [line for line in text.splitlines() if line.startswith("* **two classes**")]
    assert "points without attackers is that of `median`, 70.5 (89.0 without attackers)" in line  # multi_krum costs 30
    assert "the default, `screened`, has 60.5. With a root set: `root_selected`, 90.5" in line
    assert "Personal models: 99.0 without attackers, 98.5 at worst, backdoors 7 %." in line
    assert "seeds 2." in text


def test_the_rows_for_comparison() -> None:
    models = torch.tensor([[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]])
    root = torch.tensor([7.0, 7.0])
    round = ServerRound(clients=(0, 1, 2), received=models[0], selected=3, population=3, root=root)
    assert torch.equal(HonestAlone((2,)).apply(models, round, {}).models, models[:2])
    assert torch.equal(RootAlone(10).aggregate(models, round, {})[0], root)


def test_data_that_no_rule_was_chosen_by_has_its_own_table() -> None:
    cases = [
        {"division": "two classes", "seed": seed, "attack": attack, "measured": "M", "rules": rules(attack, seed)}
        for seed in (10, 11) for attack in HELD_OUT_ATTACKS
    ]  # fmt: skip
    text = render_held_out({"divisions-mnist": {"cases": cases}})
    count = len(HELD_OUT_ATTACKS) - 1
    assert f"| mnist | root_selected | 91.0 | {'100.5 | ' * count}100.5 | 7 % |" in text
    assert "fashion" not in text
    assert text.endswith("Seeds 10, 11. Measured with M.")
    assert render_held_out({}) == "Not recorded yet."
