"""The results folder: one small JSON file per case, OUT/NAME/CASE.json, written whole or not at all."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import first_difference, write_bytes
from reproduction.experiment import Case

_KEYS = {"case", "what", "quick", "seeds", "settings", "environment", "seconds", "result"}


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The stored result of a case."""

    case: str
    what: str
    quick: bool
    seeds: int | None  # Options.seeds: None if the experiment's own number was used
    settings: dict[str, Any]
    environment: dict[str, Any]  # versions and device
    seconds: float
    result: dict[str, Any]


class DamagedResultError(InputError):
    """A result file that is truncated or lacks a part."""


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

    def path(self, experiment: str, case: str) -> Path:
        """The result file of a case."""
        return self.folder / experiment / f"{case}.json"

    def work(self, experiment: str, case: str) -> Path:
        """The folder for the checkpoints of an unfinished case."""
        return self.folder / experiment / "unfinished" / case

    def read(self, experiment: str, case: Case) -> CaseResult | None:
        """The stored result of a case, None if there is none; its settings may differ, see `stale_reason`.

        Raises DamagedResultError.
        """
        path = self.path(experiment, case.name)
        return _read(path) if path.exists() else None

    def results(self, experiment: str) -> list[CaseResult]:
        """Every readable result of an experiment, by name."""
        return [content for _, content in self._files(experiment) if isinstance(content, CaseResult)]

    def damaged_files(self, experiment: str) -> dict[Path, str]:
        """The result files of an experiment that cannot be read → the reason."""
        files = self._files(experiment)
        return {path: str(content) for path, content in files if isinstance(content, DamagedResultError)}

    def _files(self, experiment: str) -> Iterator[tuple[Path, CaseResult | DamagedResultError]]:
        for path in sorted((self.folder / experiment).glob("*.json")):
            try:
                yield path, _read(path)
            except DamagedResultError as error:
                yield path, error

    def write(self, experiment: str, result: CaseResult) -> Path:
        """Write the result of a case, replacing an older one."""
        path = self.path(experiment, result.case)
        content = {key: getattr(result, key) for key in CaseResult.__dataclass_fields__}
        write_bytes(path, (_to_json(content, 3) + "\n").encode())
        return path


def stale_reason(stored: CaseResult, case: Case) -> str | None:
    """Why a stored result is not that of the case: a part it lacks, or a setting (dotted) that differs; else None."""
    missing = [part for part in case.parts if part not in stored.result]
    if missing:
        return f"its file lacks {missing[0]}"
    difference = first_difference(stored.settings, json.loads(json.dumps(case.settings)))
    return difference and "{} was {} and is {}".format(difference[0], *map(json.dumps, difference[1:]))


def round_floats(value: Any, digits: int = 4) -> Any:
    """A JSON value with rounded numbers: digits after the fourth decimal of a percentage are noise."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: round_floats(part, digits) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(part, digits) for part in value]
    return value


def _read(path: Path) -> CaseResult:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedResultError(f"its file is damaged ({error})") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from error
    if not isinstance(content, dict) or not _KEYS & set(content):
        raise InputError(f"{path} is not a result of this command; delete it, or choose another folder")
    has_tables = all(isinstance(content.get(key), dict) for key in ("settings", "environment", "result"))
    if set(content) != _KEYS or not has_tables:
        raise DamagedResultError("its file is incomplete")
    return CaseResult(**content)


def _to_json(value: Any, depth: int) -> str:
    """Compact JSON with useful line diffs: one line per key down to `depth`, one line for everything below."""
    if depth and isinstance(value, dict) and value:
        parts = [f"{json.dumps(key)}: {_to_json(part, depth - 1)}" for key, part in value.items()]
        return "{\n" + ",\n".join(parts) + "\n}"
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
