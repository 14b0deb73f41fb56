"""The notebook of the site runs, and shows tables and figures."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parent.parent.parent / "docs" / "notebook.ipynb"


def test_the_notebook_is_stored_without_outputs() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert len(cells) >= 5
    assert not [cell for cell in cells if cell.outputs]
    for cell in cells:
        compile(cell.source, "notebook.ipynb", "exec")


@pytest.mark.slow
def test_the_notebook_runs() -> None:
    executed = NotebookClient(nbformat.read(NOTEBOOK, as_version=4), timeout=300).execute()
    shown = {
        cell.source.splitlines()[-1]: [output for output in cell.outputs if output.output_type != "stream"]
        for cell in executed.cells
        if cell.cell_type == "code"
    }
    for last_line in ("federation", "result", "result.plot()"):
        assert "text/html" in shown[last_line][-1]["data"], last_line
