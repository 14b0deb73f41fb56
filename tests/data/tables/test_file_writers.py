"""Tables that are written have the cells that they were given, whatever these are."""

import io
from pathlib import Path

import openpyxl
import pyarrow.parquet
import pytest

from fedtilt.data.tables.file_writers import table_writer
from fedtilt.data.tables.reader import open_reader
from fedtilt.errors import InputError


def parquet(*rows: list[object]) -> pyarrow.Table:
    return pyarrow.parquet.read_table(io.BytesIO(table_writer(Path("t.parquet"))(rows)))


def test_a_column_that_arrow_has_no_type_for_is_text() -> None:
    table = parquet(["n", "mixed", "large"], [1, "a", 2**70], [None, 2, None])
    assert table.to_pydict() == {"n": [1, None], "mixed": ["a", "2"], "large": [str(2**70), None]}
    assert parquet(["n", "m"]).to_pydict() == {"n": [], "m": []}


def test_text_in_excel_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    content = table_writer(Path("t.xlsx"))([["x"], ["#N/A"], ["=1+1"], ["01"], [2.5], [True], [None]])
    cells = [row[0] for row in openpyxl.load_workbook(io.BytesIO(content)).active.iter_rows()]
    assert [cell.value for cell in cells[1:6]] == ["#N/A", "=1+1", "01", 2.5, True]
    assert [cell.data_type for cell in cells[1:4]] == ["s"] * 3
    monkeypatch.setattr("fedtilt.data.tables.file_writers._EXCEL_ROWS", 2)
    with pytest.raises(InputError, match="3 rows are too many for an .xlsx file, which has 2; write .parquet"):
        table_writer(Path("t.xlsx"))([["x"], [1], [2]])


class Closed:
    """A table of another library that fails."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise ValueError("the data base is closed")


def test_what_is_no_table_says_why() -> None:
    with pytest.raises(InputError, match=r"the Closed is no table \(the data base is closed\)"):
        open_reader(Closed())
    with pytest.raises(InputError, match="not a list"):
        open_reader([1, 2])
