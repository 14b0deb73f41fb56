"""`fedtilt deploy new`: a small, complete Flower project for one's own data and model."""

import re
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import write_bytes


def write_project(folder: Path, sites: int = 2) -> list[Path]:
    """Write the project into a new or empty folder; its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; name a new folder")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise InputError(f"{folder.name!r} gives the project no name; use a folder whose name begins with a letter")
    if sites < 1:
        raise InputError(f"a federation needs at least one site, got {sites}")
    values = {"@NAME@": name[:32], "@SITES@": str(sites), "@DIR@": str(folder)}
    return _copy(resources.files("fedtilt.flower") / "template", folder, values)


def _copy(source: Traversable, target: Path, values: dict[str, str]) -> list[Path]:
    written = []
    for entry in sorted(source.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            written += _copy(entry, target / entry.name, values)
        elif entry.name.endswith(".tmpl"):
            name = entry.name.removesuffix(".tmpl")
            path = target / (f".{name}" if name == "gitignore" else name)
            text = entry.read_text(encoding="utf-8")
            for mark, value in values.items():
                text = text.replace(mark, value)
            write_bytes(path, text.encode())
            written.append(path)
    return written


def run_settings(folder: Path) -> dict[str, Any]:
    """What a project's pyproject.toml says of its runs: all that a run may change."""
    try:
        found: Any = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{folder / 'pyproject.toml'} is not TOML: {error}; mend it") from error
    for part in ("tool", "flwr", "app", "config"):
        found = found.get(part, {}) if isinstance(found, dict) else {}
    return dict(found)


def check_project(folder: Path) -> None:
    """Refuse a folder that is no Flower project."""
    if not (folder / "pyproject.toml").exists():
        raise InputError(f"{folder} is no Flower project: it has no pyproject.toml; fedtilt deploy new writes one")
