"""A spreadsheet of Excel's .xlsx format: its first sheet, whose first row is the header."""

import zipfile
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa

from fedtilt.data.naming import FileRows
from fedtilt.data.tables.client_table import ClientTable, from_arrow
from fedtilt.data.tables.settings import Files
from fedtilt.errors import InputError
from fedtilt.imports import install_command


def read_xlsx(path: Path, text: Sequence[str], files: Files) -> ClientTable:
    """Read a spreadsheet; a column of different types is text."""
    try:
        import openpyxl
    except ModuleNotFoundError:
        raise InputError(f"table {path} needs openpyxl: {install_command('excel')}; or save it as CSV") from None
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        rows = [list(row) for row in book.worksheets[0].iter_rows(values_only=True)]
        sheets = len(book.worksheets)
        book.close()
    except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile) as error:
        raise InputError(f"table {path} is not a readable .xlsx file ({error}); save it again") from error
    if sheets > 1:
        raise InputError(f"table {path} has {sheets} sheets; save the one with the table as a file of its own")
    while rows and all(cell is None for cell in rows[-1]):  # a formatted row without cells
        rows.pop()
    if not rows:
        raise InputError(f"table {path} is empty; add a header and rows")
    names = ["" if cell is None else str(cell) for cell in rows[0]]
    columns = [_column([row[k] if k < len(row) else None for row in rows[1:]]) for k in range(len(names))]
    named = [k for k, name in enumerate(names) if name or columns[k].null_count < len(rows) - 1]
    table = pa.table([columns[k] for k in named], names=[names[k] for k in named])
    return from_arrow(str(path), table, FileRows(str(path), table.num_rows))


def _column(cells: Sequence[object]) -> pa.Array:
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {int, float}:
        return pa.array(cells, pa.float64())
    if kinds <= {bool} or kinds <= {datetime, date}:
        return pa.array(cells)
    return pa.array([None if cell is None else _text(cell) for cell in cells], pa.string())


def _text(cell: object) -> str:
    """A cell as it is shown: whole numbers without a point."""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)
