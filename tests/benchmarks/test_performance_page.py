"""docs/performance.md says what the kept results say, and the benchmarks count what they claim to count."""

import importlib
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fedtilt as ft

ROOT = Path(__file__).parents[2]
MACHINE = {"processor": "Some CPU", "cores": 2, "memory_gib": 24, "system": "Linux", "python": "3.11", "torch": "2.13"}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script of benchmarks/ as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def page(module: Any) -> ModuleType:
    return module("page")


def record(kind: str, date: str = "2030-01-02T03:04:05Z", **content: Any) -> dict[str, Any]:
    return {"kind": kind, "date": date, "fedtilt": "9.9", "machine": MACHINE} | content


def contender(seconds: list[float], **versions: str) -> dict[str, Any]:
    loss = {"loss_start": 2.3, "loss_shared": 0.5}
    return {"seconds": seconds, "peak_memory_mib": 100.0, "versions": versions} | loss


def rounds(date: str = "2030-01-02T03:04:05Z", engine: float = 0.5) -> dict[str, Any]:
    contenders = {
        "fedtilt: fedavg": contender([engine + 1, engine / 2, engine], way="native"),
        "fedtilt: fedavg, backend fused": contender([0.75], way="fused"),
        "plain PyTorch loop": contender([4.0, 5.0, 3.0], torch="2.13.0+cpu"),
        "Peer": contender([3.0, 2.0, 1.0], peer="1.0"),
        "Other": {"out": "not installed: no such package"},
    }
    task = {
        "title": "A task", "clients": 10, "of": 100, "samples": 600, "epochs": 10, "batch_size": 10, "steps": 6000,
        "operations": 50e9, "peak": 200e9, "contenders": contenders,
    }  # fmt: skip
    return record("rounds", date, tasks={"fedavg": task}, turns=2)


def scale() -> dict[str, Any]:
    points = [
        {"clients": n, "steps": n, "seconds": n / 50, "microseconds_per_step": 2e4, "operations": n * 10**6}
        for n in (10, 100, 1000)
    ]
    return record("scale", curves={"clients": {"label": "clients per round", "points": points}})


def cells(text: str, first: str) -> list[str]:
    """The row of a table that starts so."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_page_and_figures_are_written_from_the_kept_results(page: ModuleType) -> None:
    found = page.records()
    assert (ROOT / "docs/performance.md").read_text() == page.text(found), "run python benchmarks/page.py"
    drawn = {path.name: path.read_text() for path in (ROOT / "docs/performance").glob("*.svg")}
    assert drawn == page.figures(found)


def test_an_empty_history_names_the_commands(page: ModuleType) -> None:
    text = page.text([])
    assert text.count("Not recorded yet") == 5
    assert "`make bench` measures it" in text
    assert text.endswith("Nothing recorded yet.\n\n")
    assert page.figures([]) == {}


def test_a_table_has_the_median_round_the_ratios_and_the_share_of_the_peak(page: ModuleType) -> None:
    text = page.text([rounds()])
    assert cells(text, "**fedtilt: fedavg**")[1:4] == ["0.500 (0.250 to 1.500)", "", "50 %"]
    assert cells(text, "plain PyTorch loop")[0] == "plain PyTorch loop (torch 2.13.0)"
    assert cells(text, "plain PyTorch loop")[1:] == ["4.000 (3.000 to 5.000)", "8.0", "6 %", "100 MiB", "2.30 → 0.50"]
    assert cells(text, "Peer")[1:3] == ["2.000 (1.000 to 3.000)", "4.0"]
    assert cells(text, "Other")[1] == "not installed: no such package"
    assert cells(text, "fedtilt: fedavg, backend fused")[2] == "1.5"


def test_the_newest_is_shown_and_all_are_in_the_history(page: ModuleType) -> None:
    text = page.text([rounds("2030-01-01T00:00:00Z", engine=1.0), rounds("2030-02-01T00:00:00Z", engine=0.25)])
    assert cells(text, "**fedtilt: fedavg**")[1] == "0.250 (0.125 to 1.250)"
    assert cells(text, "2030-01-01")[3] == "1.000 (4.0 ×, 2.0 ×)"
    assert cells(text, "2030-02-01")[3] == "0.250 (16.0 ×, 8.0 ×)"


def test_gpu_memory_and_aggregation_are_shown(page: ModuleType) -> None:
    step = {"model": "mlp", "models": 320, "precision": "tf32", "microseconds_per_step": 412.4}
    run = {"asked": "mnist", "data": "random", "precision": "tf32", "rounds": 50, "seconds": 3.21, "accuracy": 10.0}
    text = page.text(
        [
            record(
                "gpu",
                machine=MACHINE | {"gpu": "Some GPU"},
                steps=[step | {"first_round_seconds": 9.0, "peak_memory_mib": 2048.0}],
                runs=[run, run | {"seconds": 3.5, "accuracy": 12.0}, run | {"precision": "bfloat16", "accuracy": 11.5}],
            ),
            record("memory", clients=10_000, trace_mib=[100.0, 110.0, 111.0, 112.0], slope_mib_per_round=0.5),
            record("aggregation", ratios={"tilted q=5": 2.5}),
        ]
    )
    assert cells(text, "MLP")[1:] == ["320", "tf32", "412", "2,048 MiB"]
    whole = cells(text, "FedTilt on mnist (random samples of its size) | tf32")
    assert whole[1:] == ["tf32", "50", "3.4", "11.00 ± 1.41 % (mean ± std of 2 seeds)"]
    assert "at most 0.50 points on mnist apart in accuracy" in text
    assert cells(text, "2030-01-02")[2:] == ["Some GPU", "412"]
    assert "110 MiB resident after 1 rounds, 112 MiB at the end" in text
    assert "+512.0 KiB a round" in text
    assert cells(text, "tilted q=5") == ["tilted q=5", "2.50"]


def test_a_figure_places_its_points_on_logarithmic_axes(page: ModuleType) -> None:
    drawing = ElementTree.fromstring(page.figures([scale()])["clients.svg"])
    marks = drawing.findall("{http://www.w3.org/2000/svg}circle")
    x, y = ([float(mark.get(key, "nan")) for mark in marks] for key in ("cx", "cy"))
    assert len(marks) == 3
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)  # a factor of ten each
    assert y[0] - y[1] == pytest.approx(y[1] - y[2], abs=0.2)
    assert "![clients](performance/clients.svg)" in page.text([scale()])


def test_results_are_kept_under_their_date_and_trial_runs_are_not(page: ModuleType, tmp_path: Path) -> None:
    paths = []
    for i, content in enumerate((rounds(), record("quick"))):
        paths.append(tmp_path / f"{i}.json")
        paths[-1].write_text(json.dumps(content))
    kept = page.keep(paths, tmp_path / "kept")
    assert [path.name for path in kept] == ["20300102T030405Z-rounds.json"]
    assert page.records(tmp_path / "kept") == [rounds()]


def test_operations_of_a_step_are_counted_by_hand(module: Any) -> None:
    count = module("measure").step_operations
    first, second, last = 784 * 200, 200 * 200, 200 * 10
    assert count(ft.models.mlp(), (1, 28, 28), 10) == 10 * (4 * first + 6 * second + 6 * last)
    convolutions = [3 * 9 * 32 * 32 * 32, 32 * 9 * 64 * 16 * 16, 64 * 9 * 128 * 8 * 8]
    by_hand = 4 * convolutions[0] + 6 * sum(convolutions[1:]) + 6 * 2048 * 10
    assert count(ft.models.cnn(), (3, 32, 32), 1) == by_hand


def test_tasks_have_the_steps_of_the_papers_setting(module: Any) -> None:
    tasks = {task.name: task for task in module("rounds").TASKS}
    assert {name: task.steps for name, task in tasks.items()} == {"fedavg": 6000, "two-models": 12000, "cnn": 500}
