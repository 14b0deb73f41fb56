"""What a notebook shows, in a real kernel: progress that changes in place, and objects as HTML."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import fedtilt as ft
from fedtilt.report import write
from fedtilt.runs.notebook import with_notebook_progress

CODE = """
import fedtilt as ft
federation = ft.Federation.build(ft.data.load("digits"), clients=3, max_train=20, seed=0)
methods = [ft.fedavg(), ft.ditto(0.1, name="<i>ditto")]
result = ft.run(methods, federation, ft.models.mlp, rounds=4, epochs=1, workers=0)
"""


def execute(*cells: str) -> list[list[Any]]:
    """The outputs of the cells of a notebook."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    return [cell.outputs for cell in notebook.cells]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's client
def test_a_run_shows_its_progress_in_one_output_and_no_terminal_codes() -> None:
    quiet = CODE.replace("workers=0", "workers=0, progress=False")
    progress, result, figures, nothing = execute(CODE, "result", "result.plot()", quiet)
    (output,) = progress
    shown = output["data"]["text/html"]
    assert '<progress value="4" max="4"' in shown
    assert re.search(r"seed 0, round 4/4, \d+\.\d s", shown)
    assert "after round 4" in shown
    assert "&lt;i&gt;ditto" in shown
    assert "<i>" not in shown
    (output,) = result
    assert "Result after 4 rounds" in output["data"]["text/html"]
    assert "\x1b" not in str(progress) + str(result)
    (output,) = figures
    assert output["data"]["text/html"].startswith('<iframe title="figures"')
    assert nothing == []


def test_the_figures_are_those_of_the_report(tmp_path: Path) -> None:
    federation = ft.Federation.build(ft.data.load("digits"), clients=3, max_train=20, seed=0)
    methods = [ft.fedavg(), ft.ditto(0.1)]
    result = ft.run(methods, federation, ft.models.mlp, rounds=2, epochs=1, workers=0, out=tmp_path / "run")
    pages = [result.plot().save(tmp_path / "figures.html"), write([tmp_path / "run"], tmp_path / "report.html")]
    drawn, reported = (re.findall(r'"data":\[\{.*?\}\],"layout"', page.read_text()) for page in pages)
    assert len(drawn) == 6
    assert set(drawn) <= set(reported)
    frame = result.plot()._repr_html_()
    assert unescape(re.search(r'srcdoc="([^"]*)"', frame)[1]) == pages[0].read_text()
    assert result.only(["ditto"]).plot()


def test_outside_a_notebook_nothing_is_shown() -> None:
    assert with_notebook_progress([], progress=True) == []


def test_a_federation_shows_its_clients_escaped() -> None:
    clients = [([[0.0], [1.0]], [0, 1]), ([[0.0], [1.0], [2.0]], [0, 1, 1])]
    names = ["<script>", "south"]
    shown = ft.Federation.from_clients(clients, names=names, test_share=0.5)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;</td><td>1</td><td>1</td><td>1</td>" in shown


def test_a_federation_of_many_clients_shows_the_first() -> None:
    shown = ft.Federation.build(ft.data.load("digits"), clients=25, seed=0)._repr_html_()
    assert shown.count("<tr>") == 21
    assert "and 5 more clients" in shown


def test_a_method_shows_the_settings_that_are_not_the_defaults() -> None:
    shown = ft.fedtilt(tau=2, lam=-1, name="a<b")._repr_html_()
    assert "a&lt;b" in shown
    assert "objective</td><td>{ rule = &quot;tilted&quot;, tau = 2.0, lam = -1.0 }<" in shown
    assert "personal</td><td>{ rule = &quot;proximal&quot; }<" in shown
    assert "aggregator" not in shown
