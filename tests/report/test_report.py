"""The numbers of a report are those of the run folder."""

import base64
import csv
import hashlib
import html
import io
import json
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from markupsafe import escape

from fedtilt import report
from fedtilt.cli.console import Console
from fedtilt.cli.tables import legend
from fedtilt.data.sampling import DrawnRows
from fedtilt.errors import InputError
from fedtilt.files import read_toml
from fedtilt.report.compare import (
    METRICS,
    best_by,
    check_splits,
    comparison_cells,
    comparison_table,
    draws_of,
)
from fedtilt.report.figure import styles
from fedtilt.report.figures import build_figures
from fedtilt.report.notes import notes
from fedtilt.report.run_reader import read_run
from fedtilt.report.summary import headline, worst_clients, worst_scores
from tests.helpers.hostile_names import CLIENT, NASTY


def _figures(page: str) -> list[dict[str, Any]]:
    return [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)]


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_csv_has_the_numbers_of_results_json(run_folder: Path) -> None:
    results = json.loads((run_folder / "results.json").read_text())["methods"]
    rows = list(csv.DictReader(io.StringIO(report.csv([run_folder]))))
    evaluated = {row["method"]: row for row in rows if row["models"] == "evaluated"}
    assert list(evaluated) == list(results)
    for method, row in evaluated.items():
        for m in METRICS:
            assert float(row[m.key]) == results[method][m.key]["mean"]
            assert float(row[f"{m.key}_seed_std"]) == pytest.approx(results[method][m.key]["std"], rel=1e-12)
    for view in ("shared", "personal", "clean"):
        for row in (row for row in rows if row["models"] == view):
            accuracy = [last[view]["accuracy"] for last in results[row["method"]]["last"]]
            assert float(row["accuracy"]) == pytest.approx(sum(accuracy) / 2, rel=1e-12)
    assert {row["models"] for row in rows} == {"evaluated", "shared", "personal", "ever_selected", "clean"}


def test_page_table_has_the_numbers_of_results_json(run_folder: Path, page: str) -> None:
    results = json.loads((run_folder / "results.json").read_text())["methods"]
    evaluated = page[page.index('id="run-0-evaluated"') : page.index('id="run-0-shared"')]
    values = [float(value) for value in re.findall(r'data-value="([^"]+)"', evaluated)]
    assert values == [row[m.key]["mean"] for row in results.values() for m in METRICS]


def test_curves_end_at_the_numbers_of_results_json(run_folder: Path, page: str) -> None:
    results = json.loads((run_folder / "results.json").read_text())["methods"]
    for figure, metric in zip(_figures(page)[:3], METRICS[:3], strict=True):
        lines = [trace for trace in figure["data"] if "method" in trace["meta"]]
        bands = [trace for trace in figure["data"] if "band" in trace["meta"]]
        assert [trace["meta"]["method"] for trace in lines] == list(results)
        assert len(bands) == len(lines)
        assert figure["layout"]["xaxis"]["dtick"] == 1  # three rounds: no label at 1.5
        for trace in lines:
            assert trace["x"] == [1, 2, 3]
            assert trace["y"][-1] == pytest.approx(results[trace["meta"]["method"]][metric.key]["mean"], abs=1e-4)


def test_sorted_clients_and_heat_map_include_every_client(run_folder: Path) -> None:
    run = read_run(run_folder)
    sections = build_figures(run, styles(run.methods))
    for trace in sections["clients"][0].data:
        assert len(trace["y"]) == 16
        mean = sum(trace["y"]) / 16
        evaluated = [seed_run.last(trace["meta"]["method"]).evaluated.accuracy for seed_run in run.compared]
        assert mean == pytest.approx(sum(evaluated) / 2, abs=1e-3)
    heat_map = sections["classes"][0]
    assert len(heat_map.data) == 6
    assert [trace["visible"] for trace in heat_map.data] == [True] + [False] * 5
    for seed_run in run.compared:
        for method in run.methods:
            rows = [row for row in heat_map.rows if row[:2] == (method, seed_run.seed)]
            assert sum(row[4] for row in rows) == int(seed_run.sums(method).sum())
            assert sum(row[5] for row in rows) == int(seed_run.total.sum())


def test_plotly_accepts_every_key_of_the_figures(run_folder: Path) -> None:
    go = pytest.importorskip("plotly.graph_objects")
    run = read_run(run_folder)
    for section in build_figures(run, styles(run.methods)).values():
        for figure in section:
            accepted = go.Figure({"data": figure.data, "layout": figure.layout}).to_plotly_json()
            assert [trace.keys() for trace in accepted["data"]] == [trace.keys() for trace in figure.data]
            assert [trace["meta"] for trace in accepted["data"]] == [trace["meta"] for trace in figure.data]
            template = accepted["layout"].pop("template", None)  # plotly's own default
            assert template is not None
            assert accepted["layout"] == figure.layout


def test_histogram_counts_every_client_once(run_folder: Path) -> None:
    run = read_run(run_folder)
    histogram = build_figures(run, styles(run.methods))["clients"][1]
    assert all(sum(trace["customdata"]) == 16 for trace in histogram.data)
    largest = max(share for trace in histogram.data for share in trace["y"])
    assert all(largest <= histogram.layout[name]["range"][1] < largest + 20 for name in ("yaxis", "yaxis2"))


def test_published_numbers_are_below_ours(run_folder: Path, tmp_path: Path) -> None:
    published = {"ditto": {"accuracy": 90.0}}
    ours = json.loads((run_folder / "results.json").read_text())["methods"]["ditto"]["accuracy"]["mean"]
    gap = f"{ours - 90:+.2f}".replace("-", "−")
    page = report.write([run_folder], tmp_path / "r.html", published=[published]).read_text()
    assert f'<div class="published">90.00 ({gap})</div>' in page
    text = report.markdown([run_folder], published=[published])
    assert "| published | 90.00 |" in text
    assert f"| difference | {gap} |" in text


# -- summary -----------------------------------------------------------------------------------------------------------


def test_the_summary_names_the_best_method_and_the_lowest_accuracies(run_folder: Path) -> None:
    run = read_run(run_folder)
    results = json.loads((run_folder / "results.json").read_text())["methods"]
    top = max(results, key=lambda m: results[m]["accuracy"]["mean"])
    names = best_by(comparison_table(run, "evaluated"), METRICS[0], draws_of(run))
    assert names[0] == top
    best = f"{top} has the highest accuracy ({results[top]['accuracy']['mean']:.1f} %)"
    assert (best in headline(run)) == (len(names) == 1)
    assert ("not told apart in accuracy" in headline(run)) == (len(names) > 1)
    assert f"{results[top]['accuracy']['mean']:.1f} %" in headline(run)
    for method in run.methods:
        assert min(results[method]["minimum"]["seeds"]) == 0
        named = r"client .+? of seed [01]: 0 % \(0 to \d\)"
        assert re.search(rf"{re.escape(method)}, ({named}|no client), and", worst_scores(run))
    assert any("never selected" in note.text for note in notes(run))
    assert any("share test rows, so that p is twice the median of theirs" in note.text for note in notes(run))
    assert min(min(s.values.values()) for s in worst_clients(run, run.methods)) == pytest.approx(
        min(min(row["minimum"]["seeds"]) for row in results.values())
    )


def test_marked_are_those_not_told_apart_from_the_best_and_none_where_these_are_all(run_folder: Path) -> None:
    run = read_run(run_folder)
    table, draws = comparison_table(run, "evaluated"), draws_of(run)
    cells = comparison_cells(table, METRICS, draws)
    for number, metric in enumerate(METRICS):
        names = best_by(table, metric, draws)
        marked = {method for method, row in cells.items() if row[number].is_best}
        assert marked == (set(names) if len(names) < len(table) else set())
    one = {"fedavg": table[next(iter(table))]}
    assert not any(cell.is_best for cell in comparison_cells(one, METRICS[:1], draws)["fedavg"])


def test_runs_with_other_splits_are_not_compared(run_folder: Path) -> None:
    run = read_run(run_folder)
    other = replace(run, seed_runs=tuple(replace(s, drawn=DrawnRows("time")) for s in run.seed_runs))
    check_splits([run, run])
    with pytest.raises(InputError, match="split = 'given' and those of .+ with 'time'.+ run one of them again"):
        check_splits([run, other])


# -- a self-contained page ---------------------------------------------------------------------------------------------


def test_the_terminal_and_both_reports_have_every_note(run_folder: Path, page: str) -> None:
    run, console = read_run(run_folder), Console(width=400)
    with console.capture() as printed:
        console.print(legend(run))
    shown = html.unescape(page), report.markdown([run_folder]).replace("\\", ""), printed.get()
    *pages, terminal = (" ".join(text.split()) for text in shown)  # with one blank for a no-break space
    assert len(notes(run)) > 2
    for title, text in notes(run):
        assert f"{title} {text}" in terminal
        for found in pages:
            assert text in found


def test_names_are_escaped(page: str, run_folder: Path) -> None:
    body = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)  # without page.js
    assert NASTY not in body
    assert "<img" not in body
    assert escape(NASTY) in body
    assert escape(CLIENT) in body
    assert any(NASTY in figure["csv"] for figure in _figures(page))
    assert NASTY not in report.markdown([run_folder])


def test_the_page_loads_nothing(page: str) -> None:
    body = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["'](?!#)""", body.replace(escape(CLIENT), ""))
    assert "default-src 'none'" in body


def test_the_page_has_the_settings_and_the_command_to_run_again(page: str, run_folder: Path) -> None:
    assert escape(read_toml(run_folder / "spec.toml")) in page
    assert escape(f"fedtilt run '{run_folder / 'spec.toml'}' --out 'runs/a & b-again'") in page
    assert torch.__version__ in page


# -- what is refused ------------------------------------------------------------------------------------------------


def test_the_page_has_the_bundle_as_published(page: str) -> None:
    packed = re.search(r'<script type="text/plain" id="plotly">([^<]*)</script>', page)
    source = zlib.decompress(base64.b64decode(packed[1]))
    published = "79542150855a52c5"  # of plotly.js-cartesian-dist-min 4.1.1
    assert hashlib.sha256(source).hexdigest().startswith(published)
    assert len(page) < 1_000_000


def test_the_output_path_is_checked(run_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder; name a file"):
        report.write([run_folder], tmp_path)
    with pytest.raises(InputError, match="one or more run folders"):
        report.write([], tmp_path / "r.html")
