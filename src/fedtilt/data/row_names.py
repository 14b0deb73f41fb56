"""The names of rows, as the user finds them in a file or a list: they stay with every sample."""

import bisect
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from fedtilt.errors import InputError
from fedtilt.files import reading


@dataclass(frozen=True)
class FileRows:
    """The rows of a file, by their number in it; the header of a text file is row 1, and so is a Parquet file's."""

    path: str
    length: int
    separator: str | None = None  # of a text file; None: Parquet
    is_one_of_several: bool = False

    def __len__(self) -> int:
        return self.length

    def row_name(self, position: int) -> str:
        """`row 17`, or `north.csv, row 17` of one of several files."""
        file = f"{Path(self.path).name}, " if self.is_one_of_several else ""
        return f"{file}row {self._numbers[position]}"

    @cached_property
    def _numbers(self) -> Sequence[int]:
        """Row numbers; empty lines and newlines inside quotes make them differ from 2, 3, 4, …"""
        plain = range(2, self.length + 2)
        if self.separator is None:
            return plain
        with reading(Path(self.path)):
            content = Path(self.path).read_bytes()
        if content.count(b"\n") + (not content.endswith(b"\n")) == self.length + 1:
            return plain
        with reading(Path(self.path)), Path(self.path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=self.separator)
            numbers = [reader.line_num for row in reader if row][1:]
        if len(numbers) != self.length:
            raise InputError(
                f"{self.path} has {len(numbers)} rows and had {self.length}; it was changed since it was read"
            )
        return numbers


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
    """The name of every row of a data set that has several parts."""

    parts: Sequence[FileRows | IndexRows | SampleRows]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(part) for part in self.parts))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, position):  # type: ignore[no-untyped-def]  # of a slice: a list
        if isinstance(position, slice):
            return [self[n] for n in range(*position.indices(len(self)))]
        position = range(len(self))[position]
        number = bisect.bisect_right(self._ends, position)
        part = self.parts[number]
        return part.row_name(position - self._ends[number] + len(part))
