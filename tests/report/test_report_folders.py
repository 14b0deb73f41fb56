"""Run folders that are unfinished, damaged, from Python, or large."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt import report
from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.results import summarise
from fedtilt.report.figures import CLIENTS, METHODS, POINTS, figures
from fedtilt.report.run_reader import read_run
from fedtilt.report.style import styles
from fedtilt.report.summary import cautions
from fedtilt.storage.run_folder import RunFolder


def test_an_unfinished_run_is_reported_and_said_so(copy: Path) -> None:
    (copy / "results.json").unlink()
    metrics = copy / "seed-1" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:5]) + lines[5][:40])  # killed while it wrote the last line of round 2
    run = read_run(copy)
    assert (run.round, [part.seed for part in run.compared], run.finished) == (3, [0], False)
    assert run.parts[1].round == 1
    assert "Unfinished: compared after round 3 of 3, without seed 1" in cautions(run)[0]
    shutil.rmtree(copy / "seed-0")
    assert "compared after round 1 of 3, without seed 0" in report.markdown([copy])


def _break(folder: Path, file: str, content: bytes) -> None:
    path = folder / file
    path.unlink()
    if content:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("run.json", b"", "is not a run folder: it has no run.json"),
        ("run.json", b"{", "run.json is missing or damaged"),
        ("run.json", b"[]", "run.json is damaged"),
        ("seed-0/fingerprint.json", b"{}", "fingerprint.json is damaged"),
        ("seed-0/metrics.jsonl", b"{}\n{}\n", "metrics.jsonl is damaged in line 1"),
        ("seed-0/metrics.jsonl", b"\xff\n", "metrics.jsonl cannot be read"),
        ("seed-0/counts/round-00003.safetensors", b"", "round-00003.safetensors cannot be read"),
        ("seed-0/counts/round-00003.safetensors", b"xx", "round-00003.safetensors is damaged"),
        ("seed-0/federation.json", b'{"clients": [], "classes": [], "has_outliers": []}', "names 0 clients"),
        ("seed-0/federation.json", b"{}", "federation.json is damaged"),
    ],
)
def test_a_damaged_folder_is_one_sentence(copy: Path, file: str, content: bytes, sentence: str) -> None:
    _break(copy, file, content)
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        report.write([copy], copy / "report.html")
    assert "\n" not in str(caught.value)
    assert not (copy / "report.html").exists()


def test_a_run_without_a_judged_round_says_how_to_go_on(copy: Path) -> None:
    for seed in (0, 1):
        (copy / f"seed-{seed}" / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match="no judged round yet; go on with: fedtilt resume"):
        report.csv([copy])


def test_a_run_from_python(tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=4, max_train=10, seed=0)
    ft.run([ft.fedavg()], federation, ft.models.mlp, rounds=1, epochs=1, out=tmp_path / "run")
    page = report.write([tmp_path / "run"], tmp_path / "r.html").read_text()
    assert "started from Python" in page
    assert "fedavg reaches" in page


def _made_up(folder: Path, clients: int, methods: list[str]) -> Path:
    """A run folder with drawn counts, method by method a little better."""
    draw = torch.Generator().manual_seed(0)
    total = torch.full((clients, 10), 10)
    absent = torch.zeros(clients, dtype=torch.bool)
    counts = {}
    for i, name in enumerate(methods):
        right = torch.randint(i // 3, 11, (clients, 10), generator=draw)
        counts[name] = Counts(right, None, absent.clone())
    summaries = {name: summarise(count, total, absent) for name, count in counts.items()}
    RunFolder(folder / "seed-0").record(1, summaries, counts, total)
    job = {"methods": {name: {} for name in methods}, "train": {"rounds": 1}, "data": "x", "clients": clients,
           "outliers": {"kind": "none", "rate": 0.3, "clients": 1.0}}  # fmt: skip
    (folder / "seed-0" / "fingerprint.json").write_text(json.dumps(job))
    (folder / "run.json").write_text(json.dumps({"started": "?", "seeds": [0], "environment": {}}))
    return folder


def test_ten_thousand_clients_are_thinned_out_and_said_so(tmp_path: Path) -> None:
    folder = _made_up(tmp_path, 10_000, ["fedavg"])
    run = read_run(folder)
    drawn = figures(run, styles(run.methods))
    strip, cells = drawn["clients"][0], drawn["cells"][0]
    assert len(strip.data[0]["x"]) <= POINTS
    assert len(cells.data[0]["x"]) <= CLIENTS
    assert min(strip.data[0]["y"]) == pytest.approx(run.parts[0].last("fedavg").evaluated.minimum, abs=1e-3)
    page = report.write([folder], tmp_path / "r.html").read_text()
    assert f"{POINTS:,} of a method, are shown" in page
    assert "Of 10,000 clients the 60 served worst and an even sample are shown" in page
    assert len(page) < 5_500_000  # plotly.js is 4.8 million of it


def test_of_many_methods_the_tables_hold_all_and_the_figures_the_most_accurate(tmp_path: Path) -> None:
    methods = [f"tilt {i}" for i in range(20)]
    folder = _made_up(tmp_path, 10, methods)
    run = read_run(folder)
    table = {name: run.parts[0].last(name).evaluated.accuracy for name in methods}
    drawn = figures(run, styles(methods))
    for figure in (*drawn["curves"], *drawn["clients"], *drawn["cells"]):
        shown = [trace["meta"]["method"] for trace in figure.data]
        assert len(shown) == METHODS
        assert min(table[name] for name in shown) >= sorted(table.values())[-METHODS]
    page = report.write([folder], tmp_path / "r.html").read_text()
    assert "Figures show the 8 most accurate methods of 20" in page
    assert report.csv([folder]).count(",evaluated,") == 20
