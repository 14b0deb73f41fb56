"""Write a table as the kind of file that its suffix says: CSV and TSV, also compressed, Parquet, and Excel's .xlsx."""

import gzip
import io
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from fedtilt.data.tables.reader import SUFFIXES, table_suffix
from fedtilt.errors import InputError, printable
from fedtilt.imports import import_extra
from fedtilt.text_tables import csv_text

_EXCEL_ROWS = 2**20
Rows = Sequence[Sequence[object]]  # the header, then a list of cells per row, None where missing


def table_writer(path: Path) -> Callable[[Rows], bytes]:
    """What turns rows into the content of this file."""
    writer = WRITERS.get(table_suffix(path))
    if writer is None:
        raise InputError(f"table {path} has the suffix {table_suffix(path)!r}; write {SUFFIXES}")
    return writer


def _csv(rows: Rows) -> bytes:
    return csv_text(rows).encode()


def _tsv(rows: Rows) -> bytes:
    return csv_text(rows, "\t").encode()


def _parquet(rows: Rows) -> bytes:
    header, *cells = rows
    file = io.BytesIO()
    columns = [_column(column) for column in zip(*cells, strict=True)] or [pa.nulls(0)] * len(header)
    pyarrow.parquet.write_table(pa.table(columns, names=list(map(str, header))), file)
    return file.getvalue()


def _column(cells: Sequence[object]) -> pa.Array:
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError):  # of several types, or numbers of more than 64 bits
        return pa.array([None if cell is None else str(cell) for cell in cells], pa.string())


def _xlsx(rows: Rows) -> bytes:
    openpyxl = import_extra("openpyxl", "an .xlsx file", "excel")
    if len(rows) > _EXCEL_ROWS:
        raise InputError(
            f"{len(rows):,} rows are too many for an .xlsx file, which has {_EXCEL_ROWS:,}; write .parquet"
        )
    book = openpyxl.Workbook()
    for n, row in enumerate(rows, 1):
        for k, value in enumerate(row, 1):
            is_value = isinstance(value, int | float | date | None) and getattr(value, "tzinfo", None) is None
            cell = book.active.cell(n, k, value if is_value else printable(str(value)))
            cell.data_type = cell.data_type if is_value else "s"  # a text is no formula, and no error
    file = io.BytesIO()
    book.save(file)
    return file.getvalue()


WRITERS: dict[str, Callable[[Rows], bytes]] = {
    ".csv": _csv,
    ".tsv": _tsv,
    ".csv.gz": lambda rows: gzip.compress(_csv(rows), mtime=0),
    ".tsv.gz": lambda rows: gzip.compress(_tsv(rows), mtime=0),
    ".parquet": _parquet,
    ".pq": _parquet,
    ".xlsx": _xlsx,
}
