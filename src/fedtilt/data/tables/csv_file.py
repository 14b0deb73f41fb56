"""A CSV or TSV file, also compressed, in memory: Arrow reads on all cores and knows missing values of every type."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.csv

from fedtilt.data.naming import FileRows, decoded_text
from fedtilt.data.tables.client_table import MISSING_WORDS, TEXT, ClientTable, from_arrow, is_number, is_text
from fedtilt.data.tables.settings import Files
from fedtilt.errors import InputError
from fedtilt.files import reading

_MISSING_SPELLINGS = tuple(
    sorted({spell(word) for word in MISSING_WORDS for spell in (str, str.upper, str.capitalize)} | {"NaN", "-NaN"})
)
_HEAD = 1 << 16  # bytes of a file that tell what its columns are
_COMMA, _POINT = (  # cells such as 12,5 and 12.5: not of three digits behind the separator
    re.compile(rb"[;\t\r\n][+-]?\d+" + mark + rb"(\d{1,2}|\d{4,})(?=[;\t\r\n])") for mark in (b",", rb"\.")
)


def read_csv(path: Path, text: Sequence[str], files: Files) -> ClientTable:
    """Read a file; the columns in `text` are read as they are written, without looking for numbers."""
    types: dict[str, pa.DataType] = dict.fromkeys(
        [*text, *(old for old, new in files.rename.items() if new in text)], TEXT
    )
    content, encoding = _content(path, files.encoding) if path.suffix.lower() == ".gz" else (None, None)
    head = _head(path) if content is None else content[:_HEAD]
    separator = _separator(path, head)
    point = _decimal_point(head, separator)
    found = _try(path, content, head, separator, point, types, files)
    if found is None:  # as UTF-8
        content, encoding = _content(path, files.encoding)
        head, separator = content[:_HEAD], _separator(path, content)
        point = _decimal_point(head, separator)
        found = _try(path, content, head, separator, point, types, files)
    if found is None:
        assert content is not None
        _raise_problem(path, content, separator)

    def read_text(column: str, first: bool) -> pa.ChunkedArray:
        name = found.column_names[header.index(column)]
        source = head[: head.rfind(b"\n") + 1] if first else content
        return _read(path if source is None else source, separator, {name: TEXT}, columns=[name]).column(0)

    table = from_arrow(str(path), found, FileRows(str(path), found.num_rows, separator, encoding))
    header = table.header
    return replace(table, read_text=read_text, point=point)


def _content(path: Path, encoding: str | None) -> tuple[bytes, str | None]:
    """The text of a file as UTF-8, and its encoding if that is another."""
    text, found = decoded_text(path, encoding)
    if "\0" in text:
        raise InputError(f"table {path} is not a readable text table; save it as UTF-8 CSV")
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
    try:
        first = head[: head.rfind(b"\n") + 1]
        schema = _read(first, separator, types, words, quoted_newlines=False, point=point).schema
    except (pa.ArrowInvalid, UnicodeDecodeError):
        yield {"types": types, "missing": words}
        return
    if all(is_number(kind) or is_text(kind) for kind in schema.types):
        numbers = {field.name: field.type for field in schema if is_number(field.type)}
        plain = [word for word in words if not word.startswith("-")]
        yield {"types": numbers | types, "missing": plain, "quoted_newlines": False}
    fractions = {field.name: field.type for field in schema if pa.types.is_float64(field.type)}
    yield {"types": fractions | types, "missing": words, "quoted_newlines": False}
    yield {"types": types, "missing": words}


def _decimal_point(head: bytes, separator: str) -> str:
    """A comma if the first rows have numbers that prove it and none that prove a point, which is the default."""
    if separator == "," or not _COMMA.search(head) or _POINT.search(head):
        return "."
    return ","


def _separator(path: Path, head: bytes) -> str:
    """The separator, from the header; spreadsheets write semicolons where decimals have a comma."""
    if ".tsv" in map(str.lower, path.suffixes):
        return "\t"
    header = re.sub(b'"[^"]*"', b"", head.partition(b"\n")[0])
    return max(",;\t", key=lambda mark: header.count(mark.encode()))


def _raise_problem(path: Path, content: bytes, separator: str) -> NoReturn:
    """Read a file that Arrow rejects again, slowly, to name the row."""
    problem = ""
    try:
        reader = csv.reader(io.StringIO(content.decode(), newline=""), delimiter=separator)
        header = next((row for row in reader if row), None)
        if header is None:
            raise InputError(f"table {path} is empty; add a header and rows")
        for row in reader:
            if row and len(row) != len(header):
                raise InputError(
                    f"table {path} has {len(row)} cells in row {reader.line_num} but {len(header)} columns; fix "
                    "that row"
                )
    except csv.Error as error:
        problem = f" ({error})"
    raise InputError(f"table {path} is not a readable text table{problem}; save it as UTF-8 CSV")
