"""The notebook of the site runs, and shows tables and figures."""

from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parent.parent.parent / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def notebook() -> Any:
    import nbformat  # takes seconds

    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_notebook_is_stored_without_outputs(notebook: Any) -> None:
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) >= 5
    assert not [cell for cell in cells if cell.outputs]
    for cell in cells:
        compile(cell.source, "notebook.ipynb", "exec")


@pytest.mark.slow
def test_the_notebook_runs(notebook: Any) -> None:
    from nbclient import NotebookClient

    executed = NotebookClient(notebook, timeout=300).execute()
    shown = {
        cell.source.splitlines()[-1]: [output for output in cell.outputs if output.output_type != "stream"]
        for cell in executed.cells
        if cell.cell_type == "code"
    }
    for last_line in ("federation", "result", "result.plot()"):
        assert "text/html" in shown[last_line][-1]["data"], last_line
