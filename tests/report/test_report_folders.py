"""Run folders that are unfinished, damaged, from Python, or large."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import fedtilt as ft
from fedtilt import report
from fedtilt.data.sampling import AS_GIVEN
from fedtilt.errors import InputError, InputWarning
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.round_metrics import round_metrics
from fedtilt.report.figure import styles
from fedtilt.report.figures import MAX_HEAT_CLIENTS, MAX_METHODS, MAX_POINTS, build_figures
from fedtilt.report.notes import notes
from fedtilt.report.run_reader import read_run
from fedtilt.storage.run_folder import RunFolder
from tests.helpers.hostile_names import NASTY


def test_an_unfinished_run_has_a_report_that_says_so(copy: Path) -> None:
    (copy / "results.json").unlink()
    metrics = copy / "seed-1" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(lines[:5]) + lines[5][:40])  # killed while it wrote the last line of round 2
    (copy / "seed-1/counts/round-00003.safetensors").unlink()
    with pytest.warns(InputWarning, match="round 2 is skipped") as warned:
        run = read_run(copy)
    assert [str(w.message).partition(" (")[0] for w in warned] == [
        f"{metrics} is damaged in line 6",
        f"{metrics} has no metrics of {NASTY} after round 2; round 2 is skipped",
    ]
    assert (run.round, [seed_run.seed for seed_run in run.compared], run.finished) == (3, [0], False)
    assert run.seed_runs[1].round == 1
    assert "Unfinished: compared after round 3 of 3, without seed 1" in notes(run)[0].text
    shutil.rmtree(copy / "seed-0")
    with pytest.warns(InputWarning, match="round 2 is skipped"):
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
        ("seed-0/metrics.jsonl", b"\xff\n", "metrics.jsonl is damaged in line 1"),
        ("seed-0/metrics.jsonl", b"", "metrics.jsonl has no metrics of fedavg, ditto,"),
        ("seed-0/counts/round-00002.safetensors", b"", "round-00002.safetensors is missing; resume the run"),
        (
            "seed-0/counts/round-00003.safetensors",
            b"xx",
            "round-00003.safetensors is not a safetensors file, or damaged",
        ),
        ("spec.toml", b"rounds = 3\n# sha256:12\n", "spec.toml was damaged or changed after it was written"),
        ("seed-0/federation.json", b'{"clients": [], "classes": [], "has_outliers": []}', "names 0 clients"),
        ("seed-0/federation.json", b"{}", "federation.json is damaged"),
        ("seed-0/federation.json", b"", "federation.json is missing or damaged"),
    ],
)
def test_a_damaged_folder_raises_a_one_line_error(copy: Path, file: str, content: bytes, sentence: str) -> None:
    _break(copy, file, content)
    with pytest.raises(InputError, match=re.escape(sentence)) as caught:
        report.write([copy], copy / "report.html")
    assert "\n" not in str(caught.value)
    assert not (copy / "report.html").exists()


def test_a_run_without_an_evaluated_round_says_how_to_continue(copy: Path) -> None:
    for seed in (0, 1):
        (copy / f"seed-{seed}" / "metrics.jsonl").unlink()
        shutil.rmtree(copy / f"seed-{seed}" / "counts")
    with pytest.raises(InputError, match="no evaluated round yet; continue with: fedtilt resume"):
        report.csv([copy])


def test_a_run_from_python(tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=4, max_train=10, seed=0)
    ft.run([ft.fedavg()], federation, ft.models.mlp, rounds=1, epochs=1, out=tmp_path / "run")
    page = report.write([tmp_path / "run"], tmp_path / "r.html").read_text()
    assert "started from Python" in page
    assert "fedavg reaches" in page


def _random_run(folder: Path, clients: int, methods: list[str]) -> Path:
    """A run folder with random counts; each method is a little better than the one before."""
    generator = torch.Generator().manual_seed(0)
    total = torch.full((clients, 10), 10)
    nobody = torch.zeros(clients, dtype=torch.bool)
    counts = {}
    for i, name in enumerate(methods):
        correct = torch.randint(i // 3, 11, (clients, 10), generator=generator)
        counts[name] = Counts(correct, None, nobody.clone())
    summaries = {name: round_metrics(count, total, nobody) for name, count in counts.items()}
    run_folder = RunFolder(folder / "seed-0")
    names = {"clients": [*map(str, range(clients))], "classes": [*map(str, range(10))]}
    run_folder.describe(**names, has_outliers=[], drawn=AS_GIVEN)
    run_folder.evaluations.record(1, summaries, counts, total)
    settings = {"methods": {name: {} for name in methods}, "train": {"rounds": 1}, "data": "x", "clients": clients,
                "outliers": {"kind": "none", "rate": 0.3, "clients": 1.0}}  # fmt: skip
    (folder / "seed-0" / "fingerprint.json").write_text(json.dumps(settings))
    (folder / "run.json").write_text(json.dumps({"started": "?", "seeds": [0], "environment": {}}))
    return folder


@pytest.mark.slow
def test_of_ten_thousand_clients_figures_show_a_sample_and_say_so(tmp_path: Path) -> None:
    folder = _random_run(tmp_path, 10_000, ["fedavg"])
    run = read_run(folder)
    sections = build_figures(run, styles(run.methods))
    sorted_clients, heat_map = sections["clients"][0], sections["classes"][0]
    assert len(sorted_clients.data[0]["x"]) <= MAX_POINTS
    assert len(heat_map.data[0]["x"]) <= MAX_HEAT_CLIENTS
    assert min(sorted_clients.data[0]["y"]) == pytest.approx(
        run.seed_runs[0].last("fedavg").evaluated.worst_client, abs=1e-3
    )
    page = report.write([folder], tmp_path / "r.html").read_text()
    assert f"Shows {MAX_POINTS:,} clients per method" in page
    assert "Shows 120 of 10,000 clients: the 60 worst and a sample." in page
    assert len(page) < 1_500_000  # plotly.js is 0.7 million of it


def test_of_many_methods_tables_have_all_and_figures_the_most_accurate(tmp_path: Path) -> None:
    methods = [f"tilt {i}" for i in range(20)]
    folder = _random_run(tmp_path, 10, methods)
    run = read_run(folder)
    accuracy = {name: run.seed_runs[0].last(name).evaluated.accuracy for name in methods}
    for section in build_figures(run, styles(methods)).values():
        for figure in section:
            in_figure = [trace["meta"]["method"] for trace in figure.data]
            assert len(in_figure) == MAX_METHODS
            assert min(accuracy[name] for name in in_figure) >= sorted(accuracy.values())[-MAX_METHODS]
    page = report.write([folder], tmp_path / "r.html").read_text()
    assert "Figures show the 8 most accurate of 20 methods" in page
    assert report.csv([folder]).count(",evaluated,") == 20
