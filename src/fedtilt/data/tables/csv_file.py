"""A CSV or TSV file as an Arrow table: Arrow reads on all cores and knows missing values in columns of every type."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.csv

from fedtilt.data.tables.arrow_types import TEXT, is_number, is_text
from fedtilt.errors import InputError
from fedtilt.files import reading

MISSING_WORDS = ("", "-", "--", ".", "?", "#n/a", "#na", "-nan", "<na>", "n/a", "na", "nan", "none", "null")
_MISSING_SPELLINGS = tuple(
    sorted({spell(word) for word in MISSING_WORDS for spell in (str, str.upper, str.capitalize)} | {"NaN", "-NaN"})
)
_HEAD = 1 << 16  # bytes of a file that tell what its columns are


def read_csv(path: Path, text: Sequence[str]) -> tuple[pa.Table, str]:
    """The table in a file, and its separator.

    Args:
        path: the file
        text: columns to read as they are written, without looking for numbers
    """
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
    for options in _attempts(head, _Options(separator, dict.fromkeys(text, TEXT))):
        try:
            with reading(path):
                return options.read(path), separator
        except pa.ArrowInvalid as error:
            problem = error
    assert problem is not None
    _raise_problem(path, separator, problem)


@dataclass(frozen=True)
class _Options:
    """How Arrow reads a file."""

    separator: str
    types: dict[str, pa.DataType]  # by column; others are found out
    missing: Sequence[str] = _MISSING_SPELLINGS
    quoted_newlines: bool = True

    def read(self, source: Path | pa.BufferReader) -> pa.Table:
        return pyarrow.csv.read_csv(
            source,
            parse_options=pyarrow.csv.ParseOptions(delimiter=self.separator, newlines_in_values=self.quoted_newlines),
            convert_options=pyarrow.csv.ConvertOptions(
                null_values=self.missing, column_types=self.types, auto_dict_encode=True
            ),
        )


def _attempts(head: bytes, general: _Options) -> Iterator[_Options]:
    """The options to try, the fastest first: what they rule out is an error.

    Newlines inside quotes are rare, and reading is faster without them, with known types and, if all columns are
    numbers or text, without words for missing values that begin like a negative number.
    """
    one_line = replace(general, quoted_newlines=False)
    try:
        schema = one_line.read(pa.BufferReader(head[: head.rfind(b"\n") + 1])).schema
    except pa.ArrowInvalid:
        yield general
        return
    if all(is_number(kind) or is_text(kind) for kind in schema.types):
        numbers = {field.name: pa.float64() for field in schema if is_number(field.type)}
        words = [word for word in general.missing if not word.startswith("-")]
        yield replace(one_line, types=numbers | general.types, missing=words)
    fractions = {field.name: field.type for field in schema if pa.types.is_float64(field.type)}
    yield replace(one_line, types=fractions | general.types)
    yield general


def _separator(header: str) -> str:
    """The separator, from the header; spreadsheets write semicolons where decimals have a comma.

    >>> _separator('age;"dose, in mg";well')
    ';'
    """
    return max(",;\t", key=re.sub('"[^"]*"', "", header).count)


def _raise_problem(path: Path, separator: str, problem: Exception) -> NoReturn:
    """Read a file that Arrow refuses again, slowly, to name the row."""
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
