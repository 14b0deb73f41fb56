"""Names of classes, clients and rows, as the user finds them in a file or a list."""

import bisect
import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from fedtilt.checks import whole
from fedtilt.errors import InputError
from fedtilt.files import reading
from fedtilt.text_tables import first_names

_WESTERN = ("cp1252", "latin-1")  # of text that is not UTF-8; the second can decode everything


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort by value if all names are finite numbers, else as text: 'nan' cannot be ordered.

    >>> sort_names(["10", "9"]), sort_names(["10", "9", "nan"])
    (('9', '10'), ('10', '9', 'nan'))
    """
    texts = sorted(names)
    try:
        value = {name: float(name) for name in texts}
    except ValueError:
        return tuple(texts)
    if not all(map(math.isfinite, value.values())):
        return tuple(texts)
    return tuple(sorted(texts, key=lambda name: value[name]))


def client_number(client: int | str, names: Sequence[str]) -> int:
    """The number of a client, from its number or its name."""
    if not names:
        raise InputError(f"client {client} does not exist; there are no clients")
    number = names.index(client) if client in names else client
    if isinstance(number, str) and number.isdecimal():
        number = int(number)
    if isinstance(number, str):
        raise InputError(f"client {client} does not exist; {_known_clients(names)}")
    number = whole(number, "a client's number")
    if not 0 <= number < len(names):
        if str(number) in names:
            raise InputError(f"client {client} does not exist: numbers begin at 0; give the name as text, '{client}'")
        raise InputError(f"client {client} does not exist; {_known_clients(names)}")
    return number


def _known_clients(names: Sequence[str]) -> str:
    """The clients that exist: a range of numbers, or names.

    >>> _known_clients(["0", "1", "2"]), _known_clients(["Zürich Süd", "south"])
    ('the clients are 0 to 2', 'the clients are Zürich Süd, south')
    """
    if list(names) == [str(number) for number in range(len(names))]:
        return f"the clients are 0 to {len(names) - 1}"
    return f"the clients are {first_names(names, 10)}"


def decoded_text(path: Path, encoding: str | None = None) -> tuple[str, str]:
    """The text of a file and its encoding: UTF-8 or UTF-16, else the given one; default: one of Western languages."""
    with reading(path):
        content = path.read_bytes()
    if path.suffix.lower() == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{path} is not a readable gzip file ({error}); compress it again") from error
    utf16 = ["utf-16"] if content[:2] in (b"\xff\xfe", b"\xfe\xff") else []
    problem: UnicodeDecodeError | None = None
    for name in [*utf16, "utf-8-sig", *([encoding] if encoding else _WESTERN)]:
        try:
            return content.decode(name), name
        except UnicodeDecodeError as error:
            problem = error
    assert problem is not None
    raise InputError(f"{path} is not text in {problem.encoding} (byte {problem.start}); set another encoding")


@dataclass(frozen=True)
class FileRows:
    """The rows of a file, by their number in it; the header, which a Parquet file does not show, is row 1."""

    path: str
    length: int
    separator: str | None = None  # of a text file, whose rows can span lines; None: of another kind
    encoding: str | None = None  # of a text file that is not UTF-8
    is_one_of_several: bool = False
    skipped: int = 0  # lines above the header
    empty: frozenset[int] = frozenset()  # rows of separators alone, by position, which are skipped

    def __len__(self) -> int:
        return self.length

    def row_name(self, position: int) -> str:
        """`row 17`, or `north.csv, row 17` of one of several files."""
        file = f"{Path(self.path).name}, " if self.is_one_of_several else ""
        return f"{file}row {self._numbers[position]}"

    @cached_property
    def _numbers(self) -> Sequence[int]:
        """Row numbers; empty lines and newlines inside quotes make them differ from 2, 3, 4, …"""
        plain = range(2 + self.skipped, self.length + len(self.empty) + 2 + self.skipped)
        if self.separator is None:
            return [number for n, number in enumerate(plain) if n not in self.empty] if self.empty else plain
        text, _ = decoded_text(Path(self.path), self.encoding)
        if not self.empty and text.count("\n") + (not text.endswith("\n")) == self.length + 1 + self.skipped:
            return plain
        numbers = [number for number, _ in self.lines()][1:]
        if len(numbers) != self.length:
            raise InputError(
                f"{self.path} has {len(numbers)} rows and had {self.length}; it was changed since it was read"
            )
        return numbers

    def lines(self) -> Iterator[tuple[int, list[str]]]:
        """Of a text file, the number and the cells of the header and of every row."""
        text, _ = decoded_text(Path(self.path), self.encoding)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self.separator or ",")
        lines = ((reader.line_num, cells) for cells in reader if cells and reader.line_num > self.skipped)
        return (line for n, line in enumerate(lines, -1) if n not in self.empty)


@dataclass(frozen=True)
class IndexRows:
    """The rows of a data frame, by their label in its index."""

    index: Sequence[object]

    def __len__(self) -> int:
        return len(self.index)

    def row_name(self, position: int) -> str:
        """`row patient 3`."""
        return f"row {self.index[position]}"


@dataclass(frozen=True, eq=False)
class SampleRows:
    """Samples of a client or another source, by their names, or else by their numbers."""

    origin: str  # such as "client 'north'"
    length: int
    names: Sequence[str] | None = None

    def __len__(self) -> int:
        return self.length

    def row_name(self, position: int) -> str:
        """`sample 3 of client 'north'`."""
        return f"sample {position} of {self.origin}" if self.names is None else self.names[position]


@dataclass(frozen=True, eq=False)
class RowNames(Sequence[str]):
    """The name of every row of a data set that comes from several files, data frames or clients."""

    parts: Sequence[FileRows | IndexRows | SampleRows]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(part) for part in self.parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def locate(self, position: int) -> tuple[FileRows | IndexRows | SampleRows, int]:
        """The part that a row is in, and its position there."""
        number = bisect.bisect_right(self._ends, position)
        part = self.parts[number]
        return part, position - self._ends[number] + len(part)

    def __getitem__(self, position):  # type: ignore[no-untyped-def]  # of a slice: a list
        if isinstance(position, slice):
            return [self[n] for n in range(*position.indices(len(self)))]
        part, row = self.locate(range(len(self))[position])
        return part.row_name(row)
