"""The cells of single rows of a table's files, as text, to show beside a sample."""

import bisect
import csv
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from fedtilt.data.dataset import Dataset
from fedtilt.data.row_names import FileRows, RowNames
from fedtilt.files import reading

Cells = Mapping[str, str]  # column → text


def raw_rows(dataset: Dataset, samples: Sequence[int]) -> dict[int, Cells]:
    """Training sample → the cells of its row; without those that do not come from the file of a table."""
    names, positions = dataset.row_names, dataset.rows_train
    if dataset.schema is None or positions is None or not isinstance(names, RowNames):
        return {}
    ends = list(accumulate(len(part) for part in names.parts))
    by_file: dict[int, dict[int, int]] = {}  # number of the file → row in it → training sample
    for sample in samples:
        position = int(positions[sample])
        file = bisect.bisect_right(ends, position)
        by_file.setdefault(file, {})[position - ends[file] + len(names.parts[file])] = sample
    found: dict[int, Cells] = {}
    for file, wanted in by_file.items():
        part = names.parts[file]
        if isinstance(part, FileRows):
            cells = _read(part, wanted)
            found |= {wanted[row]: values for row, values in cells.items()}
    return found


def _read(part: FileRows, rows: Iterable[int]) -> dict[int, Cells]:
    wanted = sorted(rows)
    if part.separator is None:
        import pyarrow.parquet

        found = pyarrow.parquet.read_table(part.path).take(wanted).to_pylist()
        texts = [{key: str(value) for key, value in cells.items()} for cells in found]
        return dict(zip(wanted, texts, strict=True))
    with reading(Path(part.path)), Path(part.path).open(newline="", encoding="utf-8-sig") as file:
        lines = (line for line in csv.reader(file, delimiter=part.separator) if line)
        header, chosen = next(lines), set(wanted)
        return {row: dict(zip(header, line, strict=False)) for row, line in enumerate(lines) if row in chosen}
