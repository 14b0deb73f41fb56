"""Toy experiments: closed-form accuracy, measured boundaries, verdicts."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedtilt.data import Federation
from fedtilt.data.published.toy import SETUPS, Group, toy
from reproduction import Options, load
from reproduction.chapter import CaptionedFigure, Table
from reproduction.experiments.toy import best_worst_class, cases, chapter, dataset, expected_accuracy, measure

GROUPS = [groups for setup in SETUPS.values() for groups in setup.groups]


@pytest.mark.parametrize("groups", GROUPS)
def test_no_line_beats_the_closed_form_for_the_worse_class(
    groups: tuple[Group, Group],
) -> None:
    first, second = groups
    normal = torch.tensor(second.centre, dtype=torch.float64) - torch.tensor(first.centre, dtype=torch.float64)
    part = first.deviation / (first.deviation + second.deviation)
    foot = torch.tensor(first.centre, dtype=torch.float64) + part * normal
    shares = expected_accuracy(normal, -float(normal @ foot), groups)
    assert shares == pytest.approx([best_worst_class(groups)] * 2, abs=1e-12)
    for _ in range(500):
        direction, offset = torch.randn(2, dtype=torch.float64), float(torch.randn(()) * 3)
        assert min(expected_accuracy(direction, offset, groups)) <= best_worst_class(groups) + 1e-12


def test_expected_accuracy_matches_many_samples() -> None:
    group, normal, offset = Group((1.0, -2.0), 0.7), torch.tensor([0.4, 0.9], dtype=torch.float64), 1.1
    x = torch.tensor(group.centre, dtype=torch.float64) + 0.7 * torch.randn(200_000, 2, dtype=torch.float64)
    share = (x @ normal + offset > 0).double().mean().item()
    assert expected_accuracy(normal, offset, (group, group))[1] == pytest.approx(share, abs=0.005)
    assert sum(expected_accuracy(normal, offset, (group, group))) == pytest.approx(1.0)


def test_extra_noise_moves_only_a_tenth_of_the_first_class() -> None:
    plain, far = toy("toy-3", 1), dataset("toy-3", 3.0, 1)
    moved = (plain.x_train != far.x_train).any(1)
    assert moved.sum() == 30  # a tenth of 150, on two clients
    assert (plain.y_train[moved] == 0).all()
    assert torch.equal(plain.y_train, far.y_train)
    assert torch.equal(plain.x_test, far.x_test)
    assert 1.5 < (far.x_train - plain.x_train)[moved].std() < 4.5


def test_cases_are_every_data_set_and_seed() -> None:
    names = [case.name for case in cases(load("toy"), Options(seeds=2))]
    assert names[:3] == ["toy-1-seed-0", "toy-1-seed-1", "toy-2-seed-0"]
    assert len(set(names)) == len(names) == 8


def test_a_measured_boundary_has_the_counted_accuracy() -> None:
    experiment = replace(load("toy"), settings=dict(load("toy").settings) | {"data": ["toy-2"]})
    experiment.settings["train"]["rounds"] = 2
    (case,) = cases(experiment, Options(seeds=1, device="cpu"))
    result = measure(case, Options(device="cpu"), lambda *_: None)
    federation = Federation.build(toy("toy-2", 0), partition="column", seed=0)
    assert list(result["boundaries"])[:2] == ["fedavg", "ditto"]
    for clients in result["boundaries"].values():
        for client, boundary in enumerate(clients):
            x, y = federation.test(client)
            second = x.double() @ torch.tensor(boundary["normal"], dtype=torch.float64) + boundary["offset"] > 0
            for k in (0, 1):
                accuracy = 100 * (second[y == k] == bool(k)).double().mean().item()
                assert boundary["tested"][k] == pytest.approx(accuracy, abs=1e-3)
    assert [len(points) for points in result["points"]] == [200, 200]
    report = chapter(experiment, {case.name: result})
    table, figure = report.parts
    assert isinstance(table, Table)
    assert isinstance(figure, CaptionedFigure)
    assert len(figure.figure["data"]) == 2 * (2 + len(result["boundaries"]))
    measured = {v.claim: v.holds for v in report.verdicts}
    assert [holds for claim, holds in measured.items() if "Third" in claim or "First" in claim] == ["not measured"] * 3


def _handmade(shares: dict[str, tuple[float, float]]) -> dict[str, Any]:
    """A result where both clients have these accuracies of their two classes."""
    boundaries = {
        m: {"normal": [1.0, 0.0], "offset": 0.0, "expected": list(s), "tested": list(s)} for m, s in shares.items()
    }
    return {"boundaries": {m: [b, b] for m, b in boundaries.items()}, "points": None}


def test_verdicts_follow_the_numbers() -> None:
    lams = (-100, -10, -1, 0, 1, 10, 100)
    good = {"fedavg": (90.0, 88.0), "ditto": (90.0, 88.0)} | {f"tau 10, lam {lam}": (91.0, 91.0) for lam in lams}
    moved = dict.fromkeys(good, (60.0, 60.0)) | {"tau 10, lam -100": (91.0, 90.5)}
    experiment = load("toy")

    def verdicts(near: dict[str, Any], far: dict[str, Any], seeds: int = 2) -> list[str]:
        both = {"toy-3": _handmade(near), "toy-3-far": _handmade(far)}
        results = {f"{name}-seed-{seed}": result for name, result in both.items() for seed in range(seeds)}
        return [v.holds for v in chapter(experiment, results).verdicts[-2:]]

    assert verdicts(good, moved) == ["holds", "holds"]
    assert verdicts(good | {"tau 10, lam -100": (75.0, 99.0)}, moved) == ["holds partly", "holds partly"]
    assert verdicts(good, good) == ["holds", "does not hold"]  # no outlier moves a boundary: no more robust than FedAvg
    assert verdicts(good, moved, seeds=1) == ["one seed", "one seed"]


def test_line_ends_are_on_the_line() -> None:
    from reproduction.experiments.toy import _line_ends

    x, y = _line_ends([3.0, -4.0], 2.0)
    for a, b in zip(x, y, strict=True):
        assert 3 * a - 4 * b + 2 == pytest.approx(0, abs=1e-3)
    assert math.dist((x[0], y[0]), (x[1], y[1])) == pytest.approx(40, abs=1e-3)
