"""The results folder: one JSON Lines file per experiment, OUT/NAME.jsonl, one record per case."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import first_difference, write_bytes
from reproduction.experiment import Case

try:
    import fcntl
except ImportError:  # Windows has no cluster whose nodes append to one file
    fcntl = None  # type: ignore[assignment]

RESULTS = Path(__file__).parent / "results"  # of this repository


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The record of a case."""

    case: str
    what: str
    quick: bool
    seeds: int | None  # Options.seeds: None if the experiment's own number was used
    settings: dict[str, Any]
    environment: dict[str, Any]  # versions and device
    seconds: float
    result: dict[str, Any]


class ResultsFolder:
    """The results of all experiments under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def caution(self) -> str:
        """What to know before trusting the results, shown at the top of the page: caution.md, or an empty string."""
        return self._markdown("caution.md")

    @property
    def notes(self) -> str:
        """Notes on the runs, shown on the page: the Markdown in notes.md, or an empty string."""
        return self._markdown("notes.md")

    def _markdown(self, name: str) -> str:
        path = self.folder / name
        return path.read_text("utf-8").strip() if path.exists() else ""

    def path(self, experiment: str) -> Path:
        """The file of an experiment."""
        return self.folder / f"{experiment}.jsonl"

    def work(self, experiment: str, case: str = "") -> Path:
        """The folder for the checkpoints of unfinished cases."""
        return self.folder / "unfinished" / experiment / case

    def records(self, experiment: str) -> dict[str, CaseResult]:
        """Case → its record, by name; lines that cannot be read are dropped, see `damage`."""
        found = {line.case: line for _, line in self._lines(experiment) if isinstance(line, CaseResult)}
        return dict(sorted(found.items()))

    def damage(self, experiment: str) -> list[str]:
        """Why lines of an experiment are dropped, such as the last one of a process that was killed."""
        return [f"line {number} {line}" for number, line in self._lines(experiment) if isinstance(line, str)]

    def append(self, experiment: str, record: CaseResult) -> None:
        """Append a record; a process that is killed here leaves all records, and at most an incomplete last line.

        An older record of the case and damaged lines are removed, by replacing the file.
        """
        path = self.path(experiment)
        new = (json.dumps(vars(record), separators=(",", ":"), allow_nan=False, ensure_ascii=False) + "\n").encode()
        with _exclusive(self.work(experiment) / ".append"):
            lines = list(self._lines(experiment))
            kept = {number for number, line in lines if isinstance(line, CaseResult) and line.case != record.case}
            if len(kept) < len(lines):
                old = path.read_bytes().split(b"\n")
                write_bytes(path, b"".join(old[number - 1] + b"\n" for number in sorted(kept)) + new)
                return
            with path.open("ab") as file:
                file.write(new)
                file.flush()
                os.fsync(file.fileno())

    def _lines(self, experiment: str) -> Iterator[tuple[int, CaseResult | str]]:
        """Line number → its record, or why there is none."""
        path = self.path(experiment)
        if path.exists():
            status = path.stat()
            yield from _read_lines(path, status.st_mtime_ns, status.st_size)


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Wait until no other process has locked a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if fcntl is not None:
            fcntl.lockf(file, fcntl.LOCK_EX)
        yield


@lru_cache(maxsize=64)  # a page reads every file several times
def _read_lines(path: Path, modified: int, size: int) -> tuple[tuple[int, CaseResult | str], ...]:
    *lines, rest = path.read_bytes().split(b"\n")
    found = [(number, _parse(line, path)) for number, line in enumerate(lines, start=1)]
    if rest:
        found.append((len(lines) + 1, "is incomplete: a process was killed while it wrote it"))
    return tuple(found)


def _parse(line: bytes, path: Path) -> CaseResult | str:
    try:
        content = json.loads(line)
    except ValueError as error:
        return f"is damaged ({error})"
    known = CaseResult.__dataclass_fields__
    if not isinstance(content, dict) or not known.keys() & content.keys():
        raise InputError(f"{path} is not a file of results; move it, or choose another folder")
    missing = [key for key in known if key not in content]
    if missing or len(content) > len(known):
        return f"lacks {missing[0]}" if missing else "has unknown keys"
    return CaseResult(**content)


def stale_reason(stored: CaseResult, case: Case) -> str | None:
    """Why a stored result is not that of the case: a part it lacks, or a setting (dotted) that differs; else None."""
    missing = [part for part in case.parts if part not in stored.result]
    if missing:
        return f"its record lacks {missing[0]}"
    difference = first_difference(stored.settings, json.loads(json.dumps(case.settings)))
    return difference and "{} was {} and is {}".format(difference[0], *map(json.dumps, difference[1:]))


def round_floats(value: Any, form: str = "{:.4f}") -> Any:
    """A JSON value with rounded numbers: digits after the fourth decimal of a percentage are noise."""
    if isinstance(value, float):
        return float(form.format(value))
    if isinstance(value, dict):
        return {key: round_floats(part, form) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(part, form) for part in value]
    return value
