"""The results folder: one small JSON file per case, OUT/NAME/CASE.json, whole or not there."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import first_difference, write_bytes
from fedtilt.reproduction.experiment import Case

_KEYS = {"case", "what", "quick", "seeds", "settings", "environment", "seconds", "result"}


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """A measured case as it lies in the folder."""

    case: str
    what: str
    quick: bool
    seeds: int | None  # as asked for, None where the experiment's own number was taken
    settings: dict[str, Any]
    environment: dict[str, Any]  # versions and device
    seconds: float
    result: dict[str, Any]


class DamagedError(InputError):
    """A result whose file is cut short or lacks a part."""


class ResultsFolder:
    """The results of all experiments under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def notes(self) -> str:
        """What those who ran it have to say: notes.md, Markdown for the page; empty where there is none."""
        path = self.folder / "notes.md"
        return path.read_text("utf-8").strip() if path.exists() else ""

    def path(self, experiment: str, case: str) -> Path:
        """The file of a case."""
        return self.folder / experiment / f"{case}.json"

    def work(self, experiment: str, case: str) -> Path:
        """Where a long case keeps its checkpoints until it is done."""
        return self.folder / experiment / "unfinished" / case

    def find(self, experiment: str, case: Case) -> CaseResult | None:
        """What lies there under a case's name, with these settings or others; see `stale`. May raise DamagedError."""
        path = self.path(experiment, case.name)
        return _read(path) if path.exists() else None

    def entries(self, experiment: str) -> list[CaseResult]:
        """Every case of an experiment that lies here whole, by name."""
        return [found for _, found in self._files(experiment) if isinstance(found, CaseResult)]

    def damaged(self, experiment: str) -> dict[Path, str]:
        """The files of an experiment that cannot be read, and why."""
        return {path: str(found) for path, found in self._files(experiment) if isinstance(found, DamagedError)}

    def _files(self, experiment: str) -> Iterator[tuple[Path, CaseResult | DamagedError]]:
        for path in sorted((self.folder / experiment).glob("*.json")):
            try:
                yield path, _read(path)
            except DamagedError as error:
                yield path, error

    def write(self, experiment: str, entry: CaseResult) -> Path:
        """Keep a case, in the place of what was there."""
        path = self.path(experiment, entry.case)
        content = {key: getattr(entry, key) for key in CaseResult.__dataclass_fields__}
        write_bytes(path, (_lines(content, 3) + "\n").encode())
        return path


def stale(entry: CaseResult, case: Case) -> str | None:
    """Why a stored result cannot be taken: a part it lacks, or a setting, in dots, that it was not made with."""
    missing = [part for part in case.parts if part not in entry.result]
    if missing:
        return f"its file lacks {missing[0]}"
    found = first_difference(entry.settings, json.loads(json.dumps(case.settings)))
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


def _read(path: Path) -> CaseResult:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedError(f"its file is damaged ({error})") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if not isinstance(content, dict) or not _KEYS & set(content):
        raise InputError(f"{path} is not a result of this command; delete it, or name another folder")
    tables = all(isinstance(content.get(key), dict) for key in ("settings", "environment", "result"))
    if set(content) != _KEYS or not tables:
        raise DamagedError("its file is incomplete")
    return CaseResult(**content)


def _lines(value: Any, depth: int) -> str:
    """Compact JSON that still differs line by line: tables open up to a depth, everything below is on one line."""
    if depth and isinstance(value, dict) and value:
        parts = [f"{json.dumps(key)}: {_lines(part, depth - 1)}" for key, part in value.items()]
        return "{\n" + ",\n".join(parts) + "\n}"
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
