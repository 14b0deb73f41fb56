"""docs/benchmarks.md and docs/attacks.md match the recorded results; operations and steps are counted correctly."""

import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import fedtilt as ft
from benchmarks.markdown import machine_text
from benchmarks.measure import step_operations
from benchmarks.page import add_records, read_records, render_attacks, render_page
from benchmarks.page_speed import figures, median_seconds, our_names
from benchmarks.rounds import TASKS, same_loss

ROOT = Path(__file__).parents[2]
MACHINE = {"processor": "Some CPU", "cores": 2, "memory_gib": 24, "system": "Linux", "python": "3.11", "torch": "2.13"}


def record(kind: str, date: str = "2030-01-02T03:04:05Z", **content: Any) -> dict[str, Any]:
    return {"kind": kind, "date": date, "fedtilt": "9.9", "machine": MACHINE} | content


def implementation(seconds: list[float], **versions: str) -> dict[str, Any]:
    losses = {"loss_start": 2.3, "loss_shared": 0.5}
    return {"seconds": seconds, "peak_memory_mib": 100.0, "versions": versions} | losses


def rounds_record(date: str = "2030-01-02T03:04:05Z", seconds: float = 0.5) -> dict[str, Any]:
    implementations = {
        "fedtilt: fedavg": implementation([seconds + 1, seconds / 2, seconds], backend="native"),
        "fedtilt: fedavg, backend fused": implementation([0.75], backend="fused"),
        "plain PyTorch loop": implementation([4.0, 5.0, 3.0], torch="2.13.0+cpu"),
        "Simulator": implementation([3.0, 2.0, 1.0], simulator="1.0"),
        "Other": {"error": "not installed: no such package"},
    }
    task = {
        "title": "A task", "clients": 10, "total_clients": 100, "samples": 600, "epochs": 10, "batch_size": 10,
        "steps": 6000, "operations": 50e9, "peak_operations_per_second": 200e9, "implementations": implementations,
    }  # fmt: skip
    return record("rounds", date, tasks={"fedavg": task}, repeats=2)


def scale_record() -> dict[str, Any]:
    points = [
        {"clients": n, "steps": n, "seconds": n / 50, "microseconds_per_step": 2e4, "operations": n * 10**6}
        for n in (10, 100, 1000)
    ]
    return record("scale", curves={"clients": {"label": "clients per round", "points": points}})


def table_row(page: str, start: str) -> list[str]:
    """The cells of the one table row that starts with this text."""
    (line,) = [line for line in page.splitlines() if line.startswith(f"| {start}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def by_kind(*records: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {record["kind"]: record for record in records}


def test_the_pages_and_figures_match_the_records() -> None:
    records = read_records()
    assert (ROOT / "docs/benchmarks.md").read_text() == render_page(records), "run python -m benchmarks.page"
    assert (ROOT / "docs/attacks.md").read_text() == render_attacks(records), "run python -m benchmarks.page"
    drawn = {path.name: path.read_text() for path in (ROOT / "docs/benchmarks").glob("*.svg")}
    assert drawn == figures(records)
    assert all(record["kind"] == name for name, record in records.items())
    released = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert released
    assert {record["fedtilt"] for record in records.values()} <= {released[1], ft.__version__}


def test_the_readme_has_the_speed_ups_of_the_records() -> None:
    records, gains = read_records(), {}
    for name, task in records["rounds"]["tasks"].items():
        seconds = median_seconds(task["implementations"])
        ours = our_names(task["implementations"])
        gains[name] = [round(seconds["plain PyTorch loop"] / seconds[one], 1) for one in ours]
    cnn, mlp = gains.pop("cnn"), [gain for of_task in gains.values() for gain in of_task]
    cifar10 = {r["implementation"]: r["round_seconds"] for r in records["others"]["rows"] if r["case"] == "pfl-cifar10"}
    tf32, bfloat16 = (round(cifar10["pfl"] / cifar10[f"fedtilt, {name}"]) for name in ("tf32", "bfloat16"))
    assert (
        f"perceptron is {min(mlp):.0f} to {max(mlp):.0f} times as fast as a plain PyTorch loop, "
        f"of its CNN {cnn[0]} times; on an H200, {tf32} to {bfloat16} times as fast as pfl"
    ) in (ROOT / "README.md").read_text()


def test_without_records_the_page_names_the_commands() -> None:
    page = render_page({})
    assert page.count("Not recorded yet") == 15
    assert "run `make bench`" in page
    assert render_attacks({}).count("Not recorded yet") == 4
    assert figures({}) == {}


def test_benchmarks_of_others_have_the_speed_up_over_pfl_in_the_same_run() -> None:
    def row(name: str, case: str, seconds: float) -> dict[str, Any]:
        return {
            "case": case, "title": f"The {case}", "implementation": name, "rounds": 1500, "round_seconds": seconds,
            "first_round_seconds": 4.0,
        }  # fmt: skip

    rows = [row("fedtilt, tf32", "a", 0.02), row("pfl", "a", 0.5), row("fedtilt, tf32", "b", 0.1)]
    page = render_page(by_kind(record("others", rows=rows)))
    assert table_row(page, "The a | **fedtilt")[2:] == ["20.0", "1,500 rounds: 30 s", "4.0 s", "25 ×"]
    assert table_row(page, "The a | pfl")[2:] == ["500.0", "1,500 rounds: 12.5 min", "4.0 s", ""]
    assert table_row(page, "The b")[-1] == ""


def test_a_benchmark_on_the_cpu_has_a_speed_up_over_every_simulator() -> None:
    row = {"case": "flute-mnist", "title": "LR", "rounds": 100, "first_round_seconds": 1.0}
    names = {"fedtilt, float32": 0.01, "pfl": 0.05, "Flower": 0.2}
    rows = [row | {"implementation": name, "round_seconds": seconds} for name, seconds in names.items()]
    page = render_page(by_kind(record("others-cpu", rows=rows)))
    assert table_row(page, "LR | **fedtilt")[-2:] == ["5.0 ×", "20 ×"]
    assert table_row(page, "LR | Flower")[-2:] == ["", ""]
    assert "Flower 30:14" in page


def test_accuracies_are_compared_at_the_last_rounds_of_both() -> None:
    ours = {"implementation": "fedtilt, tf32", "seed": 0, "rounds": [800, 1500], "accuracy": [69.0, 70.45]}
    pfl = {"implementation": "pfl, 5 processes", "seed": 0, "rounds": [800], "accuracy": [69.04]}
    page = render_page(by_kind(record("others-accuracy", rows=[ours, pfl])))
    assert table_row(page, "**fedtilt, tf32** | 0")[1:] == ["0", "", "", "69.00", "70.45"]
    assert table_row(page, "pfl, 5 processes")[1:] == ["0", "", "", "69.04", ""]


def test_a_table_has_the_median_round_the_speed_up_and_the_share_of_the_peak() -> None:
    page = render_page(by_kind(rounds_record()))
    assert table_row(page, "**fedtilt: fedavg**")[1:4] == ["0.500 (0.250 to 1.500)", "", "50 %"]
    plain = table_row(page, "plain PyTorch loop")
    assert plain[0] == "plain PyTorch loop (torch 2.13.0)"
    assert plain[1:] == ["4.000 (3.000 to 5.000)", "8.0 ×", "6 %", "100 MiB", "2.30 → 0.50"]
    assert table_row(page, "Simulator")[1:3] == ["2.000 (1.000 to 3.000)", "4.0 ×"]
    assert table_row(page, "Other")[1] == "not installed: no such package"
    assert table_row(page, "fedtilt: fedavg, backend fused")[2] == "1.5 ×"


def test_the_page_shows_gpu_memory_and_aggregation() -> None:
    step = {"model": "mlp", "models": 320, "precision": "tf32", "microseconds_per_step": 412.4}
    run = {
        "dataset": "mnist", "samples_from": "random", "precision": "tf32", "rounds": 50, "seconds": 3.21,
        "accuracy": 10.0,
    }  # fmt: skip
    real = run | {"samples_from": "mnist", "precision": "bfloat16"}
    page = render_page(
        by_kind(
            record(
                "gpu",
                machine=MACHINE | {"gpu": "Some GPU"},
                steps=[step | {"first_round_seconds": 9.0, "peak_memory_mib": 2048.0}],
                runs=[run, run | {"seconds": 3.5}, real, real | {"accuracy": 12.0}],
            ),
            record("memory", clients=10_000, trace_mib=[100.0, 110.0, 111.0, 112.0], slope_mib_per_round=0.5),
            record("aggregation", ratios={"tilted q=5": 2.5}),
        )
    )
    assert table_row(page, "MLP")[1:] == ["320", "tf32", "412", "2,048 MiB"]
    whole_run = table_row(page, "FedTilt on mnist (random samples of its size) | tf32")
    assert whole_run[1:] == ["tf32", "50", "3.4", ""]  # the accuracy on random samples means nothing
    assert table_row(page, "FedTilt on mnist | bf")[4] == "11.00 ± 1.41 % (mean ± std of 2 seeds)"
    assert "110 MiB resident after 1 rounds, 112 MiB at the end" in page
    assert "+512.0 KiB per round" in page
    assert "float32 Gram product: tilted q=5 2.50." in page


def test_the_page_shows_recipes_on_a_gpu() -> None:
    steps = {name: {"microseconds_per_step": us} for name, us in (("plain", 50), ("momentum", 60), ("adam", 100))}
    times = {"loop_milliseconds": 200.04, "stacked_milliseconds": 25.0, "ratio": 8.0016, "first_call_seconds": 16.4}
    loop = {"processes": {"0": {"round": 3.0}, "2": {"round": 1.5}, "4": {"round": 1.0}}}
    tasks = {"mlp 20": steps, "resnet18 float32 second": times, "loop lstm": loop}
    page = render_page(by_kind(record("gpu_recipes", **tasks)))
    assert table_row(page, "two LSTM layers")[1:] == ["3.00 (1.0 ×)", "1.50 (2.0 ×)", "1.00 (3.0 ×)"]
    assert table_row(page, "20 models") == ["20 models", "50 (1.00 ×)", "60 (1.20 ×)", "100 (2.00 ×)"]
    assert table_row(page, "float32, second process")[1:] == ["200.0", "25.0", "8.0 ×", "16 s"]


def test_a_figure_has_logarithmic_axes() -> None:
    svg = ElementTree.fromstring(figures(by_kind(scale_record()))["clients.svg"])
    circles = svg.findall("{http://www.w3.org/2000/svg}circle")
    x, y = ([float(circle.get(key, "nan")) for circle in circles] for key in ("cx", "cy"))
    assert len(circles) == 3
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.2)  # a factor of ten each
    assert y[0] - y[1] == pytest.approx(y[1] - y[2], abs=0.2)
    page = render_page(by_kind(scale_record()))
    assert "![clients](benchmarks/clients.svg)" in page
    assert table_row(page, "clients per round: 1,000") == ["clients per round: 1,000", "20000.0"]


def test_records_are_named_by_kind_and_smoke_tests_are_not_recorded(tmp_path: Path) -> None:
    paths = []
    for i, content in enumerate((rounds_record(), record("quick"))):
        paths.append(tmp_path / f"{i}.json")
        paths[-1].write_text(json.dumps(content))
    added = add_records(paths, tmp_path / "records")
    assert [path.name for path in added] == ["rounds.json"]
    assert read_records(tmp_path / "records") == by_kind(rounds_record())


def test_what_is_measured_in_several_calls_is_recorded_together(tmp_path: Path) -> None:
    records = tmp_path / "records"

    def add(day: int, content: dict[str, Any], machine: str = "a") -> dict[str, Any]:
        path = tmp_path / "new.json"
        path.write_text(json.dumps(content | {"date": f"2026-01-0{day}T00:00:00Z", "machine": {"processor": machine}}))
        add_records([path], records)
        return read_records(records)[content["kind"]]

    rows = [{"case": c, "implementation": i, "seconds": n} for n, (c, i) in enumerate(product("ab", ("ours", "pfl")))]
    add(1, {"kind": "others", "rows": rows})
    found = add(2, {"kind": "others", "rows": [rows[0] | {"seconds": 9}, {"case": "c", "implementation": "ours"}]})
    assert [row.get("seconds") for row in found["rows"]] == [9, 1, 2, 3, None]
    assert [row.get("date", found["date"])[9] for row in found["rows"]] == list("21112")
    assert len(add(3, {"kind": "others", "rows": rows[:1]}, machine="b")["rows"]) == 1  # of another machine
    add(1, {"kind": "gpu_recipes", "mlp": {"us": 1}, "loop": {"s": 1}})
    found = add(2, {"kind": "gpu_recipes", "loop": {"s": 2}})
    assert found["mlp"] == {"us": 1, "date": "2026-01-01T00:00:00Z"}
    assert found["loop"] == {"s": 2}
    of_two_days = found | {"fedtilt": "1", "machine": dict.fromkeys(("processor", "cores", "memory_gib", "torch"), 1)}
    assert machine_text(of_two_days).endswith("fedtilt 1, 2026-01-01 to 2026-01-02")


def test_operations_of_a_step_match_a_count_by_hand() -> None:
    first, second, last = 784 * 200, 200 * 200, 200 * 10
    assert step_operations(ft.models.mlp(), (1, 28, 28), 10) == 10 * (4 * first + 6 * second + 6 * last)
    convolutions = [3 * 9 * 32 * 32 * 32, 32 * 9 * 64 * 16 * 16, 64 * 9 * 128 * 8 * 8]
    by_hand = 4 * convolutions[0] + 6 * sum(convolutions[1:]) + 6 * 2048 * 10
    assert step_operations(ft.models.cnn(), (3, 32, 32), 1) == by_hand


def test_tasks_have_the_steps_of_the_papers_setting() -> None:
    steps = {"fedavg": 6000, "momentum": 6000, "adam": 6000, "two-models": 12000, "cnn": 500}
    assert {task.name: task.steps for task in TASKS} == steps


def test_an_implementation_whose_loss_falls_less_is_recognised() -> None:
    plain = {"loss_start": 2.3, "loss_shared": 0.5}
    assert same_loss({"loss_start": 2.3, "loss_shared": 0.6}, plain)
    assert not same_loss({"loss_start": 2.3, "loss_shared": 1.5}, plain)
    assert same_loss({"error": "not installed"}, plain)
