"""Read a file as a `ClientTable`: CSV and TSV, also compressed, Parquet, and Excel's .xlsx."""

import contextlib
import csv
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from fedtilt.data.naming import FileRows, decoded_text
from fedtilt.data.tables.client_table import TEXT, ClientTable, check_header, from_arrow, is_number, is_text
from fedtilt.data.tables.settings import Files
from fedtilt.data.tables.text_values import MISSING_WORDS, is_code_text, parse_number, written_cells
from fedtilt.errors import InputError
from fedtilt.files import reading
from fedtilt.imports import install_command
from fedtilt.text_tables import first_names

_MISSING_SPELLINGS = tuple(
    sorted({spell(word) for word in MISSING_WORDS for spell in (str, str.upper, str.capitalize)} | {"NaN", "-NaN"})
)
_CODES = re.compile(rb'[,;|\t\r\n"](0\d{2,}|[+-]?\d{16,})(?=[,;|\t\r\n"])')  # digits that are names
_MAX_ABOVE = 20  # lines above the header
_HEAD = 1 << 16  # bytes of a file that tell what its columns are
_COMMA, _POINT = (  # cells such as 12,5 and 12.5: not of three digits behind the separator
    re.compile(rb"[;\t\r\n][+-]?\d+" + mark + rb"(\d{1,2}|\d{4,})(?=[;\t\r\n])") for mark in (b",", rb"\.")
)


def read_csv(path: Path, text: Sequence[str], files: Files) -> ClientTable:
    """Read a text file with Arrow; the columns in `text` are read as they are written."""
    types: dict[str, pa.DataType] = dict.fromkeys(
        [*text, *(old for old, new in files.rename.items() if new in text)], TEXT
    )
    content, encoding = _content(path, files.encoding) if path.suffix.lower() == ".gz" else (None, None)
    head = _head(path) if content is None else content[:_HEAD]
    skipped = _lines_above(head)
    found = None
    if not skipped and b"\n" in head:
        separator = _separator(path, head)
        point = _decimal_point(head, separator)
        found = _try(path, content, head, separator, point, types, files)
    if found is None:  # as UTF-8, from the header on
        content, encoding = _content(path, files.encoding)
        skipped = _lines_above(content[:_HEAD])
        content = content.split(b"\n", skipped)[skipped]
        head, separator = content[:_HEAD], _separator(path, content)
        point = _decimal_point(head, separator)
        found = _try(path, content, head, separator, point, types, files)
    if found is None:
        assert content is not None
        _raise_problem(path, content, separator, skipped)

    rows = FileRows(str(path), found.num_rows, separator, encoding, skipped=skipped)
    rows, kept = _without_empty_rows(rows, found)
    names = {name.strip(): name for name in found.column_names}

    def read_text(column: str, first: bool) -> pa.ChunkedArray:
        name = names[column]
        source = head[: head.rfind(b"\n") + 1] if first else content
        array = _read(path if source is None else source, separator, {name: TEXT}, columns=[name]).column(0)
        return array if kept is None else array.filter(kept[: len(array)])

    table = from_arrow(str(path), found if kept is None else found.filter(kept), rows)
    return replace(table, read_text=read_text, point=point)


def _without_empty_rows(rows: FileRows, table: pa.Table) -> tuple[FileRows, pa.Array | None]:
    """The rows that are not separators alone, and which these are; None: all."""
    blank = np.ones(len(rows), bool)
    for column in table.columns:
        is_blank = pc.equal(column, "").fill_null(True) if is_text(column.type) else column.is_null()
        blank &= is_blank.to_numpy()
        if not blank.any():
            return rows, None
    cells = enumerate((cells for _, cells in rows.lines()), -1)  # words may mean missing, too: they are not empty
    empty = frozenset(n for n, row in cells if n >= 0 and blank[n] and len(row) > 1 and not any(row))
    if not empty:
        return rows, None
    kept = pa.array([n not in empty for n in range(len(rows))])
    return replace(rows, length=len(rows) - len(empty), empty=empty), kept


def _content(path: Path, encoding: str | None) -> tuple[bytes, str | None]:
    """The text of a file as UTF-8, and its encoding if that is another."""
    text, found = decoded_text(path, encoding)
    if "\0" in text:
        raise InputError(f"table {path} is not a readable text table; save it as UTF-8 CSV")
    if "\n" not in text:  # lines of old Macs
        text = text.replace("\r", "\n")
    return text.encode(), None if found == "utf-8-sig" else found


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.readline() + file.read(_HEAD)
    except OSError as error:
        raise InputError(f"table {path} cannot be read: {error.strerror}; check its permissions") from error


def _try(
    path: Path, content: bytes | None, head: bytes, separator: str, point: str, types: dict[str, pa.DataType],
    files: Files,
) -> pa.Table | None:  # fmt: skip
    """The file as Arrow reads it; None if it cannot, or if text is not UTF-8."""
    for options in _attempts(head, separator, point, types, files.missing):
        try:
            with reading(path):
                table = _read(path if content is None else content, separator, point=point, **options)
            names = table.column_names
        except pa.ArrowInvalid:
            continue
        except UnicodeDecodeError:
            return None
        has_bytes = any(pa.types.is_binary(getattr(kind, "value_type", kind)) for kind in table.schema.types)
        return table if names and not has_bytes else None
    return None


def _read(
    source: Path | bytes, separator: str, types: Mapping[str, pa.DataType],
    missing: Sequence[str] = _MISSING_SPELLINGS, *, quoted_newlines: bool = True, columns: Sequence[str] = (),
    point: str = ".",
) -> pa.Table:  # fmt: skip
    """Read with Arrow; `types` are those of some columns, the others are inferred."""
    return pyarrow.csv.read_csv(
        source if isinstance(source, Path) else pa.BufferReader(source),
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=quoted_newlines),
        convert_options=pyarrow.csv.ConvertOptions(
            null_values=missing, column_types=types, auto_dict_encode=True, include_columns=columns, decimal_point=point
        ),
    )


def _attempts(
    head: bytes, separator: str, point: str, types: dict[str, pa.DataType], missing: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """The options of `_read` to try, the fastest first: what they rule out is an error.

    Newlines inside quotes are rare, and reading is faster without them, with known types and, if all columns are
    numbers or text, without words for missing values that begin like a negative number.
    """
    words = [*_MISSING_SPELLINGS, *missing]
    first = head[: head.rfind(b"\n") + 1]
    types = _code_columns(first, separator) | types
    try:
        schema = _read(first, separator, types, words, quoted_newlines=False, point=point).schema
        kinds = dict(zip(schema.names, schema.types, strict=True))  # a name that is not UTF-8 raises here
    except (pa.ArrowInvalid, UnicodeDecodeError):
        yield {"types": types, "missing": words}
        return
    if all(is_number(kind) or is_text(kind) for kind in kinds.values()):
        numbers = {name: kind for name, kind in kinds.items() if is_number(kind)}
        plain = [word for word in words if not word.startswith("-")]
        yield {"types": numbers | types, "missing": plain, "quoted_newlines": False}
    fractions = {name: kind for name, kind in kinds.items() if pa.types.is_float64(kind)}
    yield {"types": fractions | types, "missing": words, "quoted_newlines": False}
    yield {"types": types, "missing": words}


def _code_columns(head: bytes, separator: str) -> dict[str, pa.DataType]:
    """The columns whose first rows have digits that are names, such as 00123: they are read as they are written."""
    if not _CODES.search(head):
        return {}
    rows = csv.reader(
        io.StringIO(head.decode(errors="replace").removeprefix("\ufeff"), newline=""), delimiter=separator
    )
    with contextlib.suppress(csv.Error, StopIteration):
        header = next(rows)
        return {
            header[k]: TEXT for row in rows for k, cell in enumerate(row[: len(header)]) if is_code_text(cell.strip())
        }
    return {}


def _decimal_point(head: bytes, separator: str) -> str:
    """A comma if the first rows have numbers that prove it and none that prove a point, which is the default."""
    if separator == "," or not _COMMA.search(head) or _POINT.search(head):
        return "."
    return ","


def _lines_above(head: bytes) -> int:
    """How many lines stand above the header: Excel's sep=;, comments that begin with # and a title.

    >>> _lines_above(b"# of 2026\\nage,ill\\n63,yes"), _lines_above(b"sep=;\\nage;ill"), _lines_above(b"#id,age\\n1,63")
    (1, 1, 0)
    >>> _lines_above(b"Ward 3;\\n\\nage;ill\\n63;yes"), _lines_above(b"age\\n1,5\\n2,5")
    (2, 0)
    """
    lines = head.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if title := _title_lines(lines[:_MAX_ABOVE]):
        return title
    above = int(re.fullmatch(rb"sep=[,;\t|]\s*", lines[0]) is not None)
    while above < len(lines) - 1 and lines[above].startswith(b"#"):
        above += 1
    last, header = (re.sub(b'"[^"]*"', b"", line) for line in (lines[above - 1], lines[min(above, len(lines) - 1)]))
    is_header = (
        above and last.startswith(b"#") and any(last.count(m) == header.count(m) > 0 for m in (b",", b";", b"\t"))
    )
    return above - 1 if is_header else above


def _title_lines(lines: Sequence[bytes]) -> int:
    """How many lines above the first with several cells have at most one; 0 if that one has numbers."""
    mark = max(b",;\t|", key=lambda each: b"".join(lines).count(each))
    rows = [[cell for cell in re.sub(rb'"[^"]*"', b'""', line).split(bytes([mark])) if cell.strip()] for line in lines]
    above = next((k for k, row in enumerate(rows) if len(row) > 1), 0)
    is_comment = any(line.startswith((b"#", b"sep=")) for line in lines[:above])
    header = [cell.decode(errors="replace").strip() for cell in rows[above]] if rows else []
    return 0 if is_comment or any(parse_number(cell).is_number for cell in header) else above


def _separator(path: Path, head: bytes) -> str:
    """The separator, from the header; spreadsheets write semicolons where decimals have a comma."""
    if ".tsv" in map(str.lower, path.suffixes):
        return "\t"
    header = re.sub(b'"[^"]*"', b"", head.partition(b"\n")[0])
    return max(",;\t|", key=lambda mark: header.count(mark.encode()))


def _raise_problem(path: Path, content: bytes, separator: str, skipped: int) -> NoReturn:
    """Read a file that Arrow rejects again, slowly, to name the row."""
    problem = ""
    try:
        reader = csv.reader(io.StringIO(content.decode(), newline=""), delimiter=separator)
        header = next((row for row in reader if row), None)
        if header is None:
            raise InputError(f"table {path} is empty; add a header and rows")
        for n, row in enumerate(filter(None, reader)):
            if len(row) != len(header):
                remedy = "fix that row"
                if not any(row[len(header) :]) and len(row) > len(header):
                    remedy = f"its last cell is empty: end the header with {separator!r} too, or no row"
                elif n == 0 or len(header) == 1:
                    title = f"row {1 + skipped} ({separator.join(header)[:40]!r})"
                    remedy = f"fix that row or, if {title} is a title, delete what is above the header"
                raise InputError(
                    f"table {path} has {len(row)} cells in row {skipped + reader.line_num} but {len(header)} columns; "
                    f"{remedy}"
                )
    except csv.Error as error:
        problem = f" ({error})"
    raise InputError(f"table {path} is not a readable text table{problem}; save it as UTF-8 CSV")


def read_parquet(path: Path, text: Sequence[str], files: Files) -> ClientTable:
    """Open a Parquet file, of which one column is read at a time, so that it is never in memory twice."""
    with _parquet(path) as file:
        index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
        names = [name for name in file.schema_arrow.names if name not in index]
        length = file.metadata.num_rows
    header = check_header(str(path), names)
    stored = dict(zip(header, names, strict=True))

    def read(column: str) -> pa.ChunkedArray:
        with _parquet(path) as file:
            array = file.read(columns=[stored[column]]).column(0)
            array.validate(full=is_text(array.type))  # of text, that it is UTF-8
            return array

    return ClientTable(str(path), header, read, FileRows(str(path), length))


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[pyarrow.parquet.ParquetFile]:
    """A Parquet file; damage that is found while it is open is an `InputError`."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, TypeError, AttributeError, pa.ArrowException) as error:
        raise InputError(f"table {path} is not a readable Parquet file ({error}); write it again") from error


def read_xlsx(path: Path, text: Sequence[str], files: Files) -> ClientTable:
    """Read a sheet, the only one that has cells by default; the first row is the header, mixed types are text."""
    try:
        import openpyxl
    except ModuleNotFoundError:
        raise InputError(f"table {path} needs openpyxl: {install_command('excel')}; or save it as CSV") from None
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        sheets = {s.title: [list(row) for row in s.iter_rows(values_only=True)] for s in book.worksheets}
        book.close()
    except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile) as error:
        raise InputError(f"table {path} is not a readable .xlsx file ({error}); save it again") from error
    filled = {name: rows for name, rows in sheets.items() if any(cell is not None for row in rows for cell in row)}
    titles = first_names([repr(name) for name in filled], 6)  # some may be hidden
    if files.sheet is not None and files.sheet not in sheets:
        raise InputError(f"table {path} has no sheet {files.sheet!r}; its sheets are {titles}")
    if files.sheet is None and len(filled) > 1:
        raise InputError(f"table {path} has the sheets {titles}; set sheet to the one with the table")
    rows = next(iter(filled.values()), []) if files.sheet is None else sheets[files.sheet]
    while rows and all(cell is None for cell in rows[-1]):  # a formatted row without cells
        rows.pop()
    if not rows:
        raise InputError(f"table {path} is empty; add a header and rows")
    heads = [[cell for cell in row if cell is not None] for row in rows[:_MAX_ABOVE]]
    skipped = next((k for k, head in enumerate(heads) if len(head) > 1), 0)  # a title
    skipped = skipped if all(isinstance(cell, str) for cell in heads[skipped]) else 0
    header, rows = rows[skipped], rows[skipped + 1 :]
    empty = frozenset(n for n, row in enumerate(rows) if all(cell is None for cell in row))
    rows = [row for n, row in enumerate(rows) if n not in empty]
    names = ["" if cell is None else str(cell) for cell in header]
    columns = [_typed_column([row[k] if k < len(row) else None for row in rows]) for k in range(len(names))]
    table = pa.table(columns, names=names)
    return from_arrow(str(path), table, FileRows(str(path), table.num_rows, skipped=skipped, empty=empty))


def _typed_column(cells: Sequence[object]) -> pa.Array:
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {int, float}:
        return pa.array(cells, pa.float64())
    if kinds <= {bool} or kinds <= {datetime, date}:
        return pa.array(cells)
    return pa.array(written_cells(cells), pa.string())


# suffix → function of the path, the columns to read as text and how files are written
READERS: dict[str, Callable[[Path, Sequence[str], Files], ClientTable]] = {
    **dict.fromkeys((".csv", ".tsv", ".csv.gz", ".tsv.gz"), read_csv),
    **dict.fromkeys((".parquet", ".pq"), read_parquet),
    ".xlsx": read_xlsx,
}
