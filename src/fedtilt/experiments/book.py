"""The results folder: one small JSON file per cell, OUT/NAME/CELL.json, whole or not there."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.experiments.experiment import Cell
from fedtilt.files import first_difference, read_json, write_bytes

_KEYS = {"cell", "what", "quick", "seeds", "settings", "environment", "seconds", "result"}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A measured cell as it lies in the folder."""

    cell: str
    what: str
    quick: bool
    seeds: int | None  # as asked for, None where the experiment's own number was taken
    settings: dict[str, Any]
    environment: dict[str, Any]  # versions and device
    seconds: float
    result: dict[str, Any]


class Book:
    """The results of all experiments under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def notes(self) -> str:
        """What those who ran it have to say: notes.md, Markdown for the page; empty where there is none."""
        path = self.folder / "notes.md"
        return path.read_text("utf-8").strip() if path.exists() else ""

    def path(self, experiment: str, cell: str) -> Path:
        """The file of a cell."""
        return self.folder / experiment / f"{cell}.json"

    def work(self, experiment: str, cell: str) -> Path:
        """Where a long cell keeps its checkpoints until it is done."""
        return self.folder / experiment / "unfinished" / cell

    def find(self, experiment: str, cell: Cell) -> Entry | None:
        """What lies there under a cell's name, with these settings or others; see `stale`."""
        path = self.path(experiment, cell.name)
        return _read(path) if path.exists() else None

    def entries(self, experiment: str) -> list[Entry]:
        """Every cell of an experiment that lies here, by name."""
        return [_read(path) for path in sorted((self.folder / experiment).glob("*.json"))]

    def write(self, experiment: str, entry: Entry) -> Path:
        """Keep a cell, in the place of what was there."""
        path = self.path(experiment, entry.cell)
        content = {key: getattr(entry, key) for key in Entry.__dataclass_fields__}
        write_bytes(path, (_lines(content, 3) + "\n").encode())
        return path


def stale(entry: Entry, cell: Cell) -> str | None:
    """The first setting, in dots, that a stored result was not made with; None where all agree."""
    found = first_difference(entry.settings, json.loads(json.dumps(cell.settings)))
    return found and "{} was {} and is {}".format(found[0], *map(json.dumps, found[1:]))


def rounded(value: Any, digits: int = 4) -> Any:
    """JSON with short numbers: what follows the fourth decimal of a percentage is noise."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part, digits) for part in value]
    return value


def _read(path: Path) -> Entry:
    content = read_json(path)
    if not isinstance(content, dict) or set(content) != _KEYS:
        raise InputError(f"{path} is not a result of this command; delete it, or name another folder")
    return Entry(**content)


def _lines(value: Any, depth: int) -> str:
    """Compact JSON that still differs line by line: tables open up to a depth, everything below is on one line."""
    if depth and isinstance(value, dict) and value:
        parts = [f"{json.dumps(key)}: {_lines(part, depth - 1)}" for key, part in value.items()]
        return "{\n" + ",\n".join(parts) + "\n}"
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
