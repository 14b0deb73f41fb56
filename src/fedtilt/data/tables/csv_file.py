"""A CSV or TSV file, in memory: Arrow reads on all cores and knows missing values in columns of every type."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.csv

from fedtilt.data.naming import FileRows
from fedtilt.data.tables.client_table import TEXT, ClientTable, from_arrow, is_number, is_text
from fedtilt.errors import InputError
from fedtilt.files import reading

MISSING_WORDS = ("", "-", "--", ".", "?", "#n/a", "#na", "-nan", "<na>", "n/a", "na", "nan", "none", "null")
_MISSING_SPELLINGS = tuple(
    sorted({spell(word) for word in MISSING_WORDS for spell in (str, str.upper, str.capitalize)} | {"NaN", "-NaN"})
)
_HEAD = 1 << 16  # bytes of a file that tell what its columns are


def read_csv(path: Path, text: Sequence[str]) -> ClientTable:
    """Read a file; the columns in `text` are read as they are written, without looking for numbers."""
    try:
        with path.open("rb") as file:
            head = file.readline()
            separator = "\t" if path.suffix.lower() == ".tsv" else _separator(head.decode("utf-8-sig"))
            head += file.read(_HEAD)
    except OSError as error:
        raise InputError(f"table {path} cannot be read: {error.strerror}; check its permissions") from error
    except UnicodeDecodeError as error:
        raise _not_text(path, error) from error
    problem: Exception | None = None
    for options in _attempts(head, separator, dict.fromkeys(text, TEXT)):
        try:
            with reading(path):
                table = _read(path, separator, **options)
            break
        except pa.ArrowInvalid as error:
            problem = error
    else:
        assert problem is not None
        _raise_problem(path, separator, problem)
    found = from_arrow(str(path), table, FileRows(str(path), table.num_rows, separator))
    for name, kind in zip(found.header, table.schema.types, strict=True):
        if pa.types.is_binary(getattr(kind, "value_type", kind)):
            raise InputError(f"table {path} has a column {name!r} that is not UTF-8 text; save it as UTF-8 CSV")
    return found


def _read(
    source: Path | pa.BufferReader, separator: str, types: Mapping[str, pa.DataType],
    missing: Sequence[str] = _MISSING_SPELLINGS, *, quoted_newlines: bool = True,
) -> pa.Table:  # fmt: skip
    """Read with Arrow; `types` are those of some columns, the others are inferred."""
    return pyarrow.csv.read_csv(
        source,
        parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=quoted_newlines),
        convert_options=pyarrow.csv.ConvertOptions(null_values=missing, column_types=types, auto_dict_encode=True),
    )


def _attempts(head: bytes, separator: str, types: dict[str, pa.DataType]) -> Iterator[dict[str, Any]]:
    """The options of `_read` to try, the fastest first: what they rule out is an error.

    Newlines inside quotes are rare, and reading is faster without them, with known types and, if all columns are
    numbers or text, without words for missing values that begin like a negative number.
    """
    try:
        schema = _read(pa.BufferReader(head[: head.rfind(b"\n") + 1]), separator, types, quoted_newlines=False).schema
    except pa.ArrowInvalid:
        yield {"types": types}
        return
    if all(is_number(kind) or is_text(kind) for kind in schema.types):
        numbers = {field.name: pa.float64() for field in schema if is_number(field.type)}
        words = [word for word in _MISSING_SPELLINGS if not word.startswith("-")]
        yield {"types": numbers | types, "missing": words, "quoted_newlines": False}
    fractions = {field.name: field.type for field in schema if pa.types.is_float64(field.type)}
    yield {"types": fractions | types, "quoted_newlines": False}
    yield {"types": types}


def _separator(header: str) -> str:
    """The separator, from the header; spreadsheets write semicolons where decimals have a comma.

    >>> _separator('age;"dose, in mg";well')
    ';'
    """
    return max(",;\t", key=re.sub('"[^"]*"', "", header).count)


def _raise_problem(path: Path, separator: str, problem: Exception) -> NoReturn:
    """Read a file that Arrow rejects again, slowly, to name the row."""
    try:
        with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=separator)
            header = next((row for row in reader if row), None)
            if header is None:
                raise InputError(f"table {path} is empty; add a header and rows")
            for row in reader:
                if row and len(row) != len(header):
                    raise InputError(
                        f"table {path} has {len(row)} cells in row {reader.line_num} but {len(header)} columns; fix "
                        "that row"
                    )
    except (UnicodeDecodeError, csv.Error) as error:
        raise _not_text(path, error) from error
    raise _not_text(path, problem)


def _not_text(path: Path, error: Exception) -> InputError:
    return InputError(f"table {path} is not a readable text table ({error}); save it as UTF-8 CSV")
