"""The arithmetic of docs/cluster.md."""

from pathlib import Path

import pytest

from benchmarks import cluster


def test_the_table_of_the_docs_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    rows = cluster.arithmetic()["rows"]
    million = next(row for row in rows if row["parameters"] == 10_000_000 and row["clients"] == 1000)
    assert million["driver"] == 2 * 4 * 10_000_000 * 1000
    assert million["cores"] == pytest.approx(2 * 6 * 1e7 * 6000 * 1000 / (64 * 2e10))
    page = Path(cluster.__file__).parents[1] / "docs" / "cluster.md"
    assert capsys.readouterr().out in page.read_text()
