"""`fedtilt deploy new`: a small, complete Flower project for your data and model."""

import json
import re
import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import read_bytes, write_bytes


def write_project(folder: Path, sites: int = 2) -> list[Path]:
    """Write the project into a new or empty folder; returns its files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; choose a new folder")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name or not name[0].isalpha():
        raise InputError(f"{folder.name!r} is not a valid project name; choose a folder name that begins with a letter")
    if sites < 1:
        raise InputError(f"a federation needs at least one site, got {sites}")
    values = {"@NAME@": name[:32], "@SITES@": str(sites), "@DIR@": str(folder)}
    return _copy(resources.files("fedtilt.flower") / "template", folder, values) + _write_tables(folder / "data", sites)


def site_tables(folder: Path) -> list[Path]:
    """The tables in a project, for a local cluster: the table of site 0, of site 1, …"""
    from fedtilt.data.tables.reader import tables_in

    tables = folder / "data"
    return [file.resolve() for file in tables_in(tables)] if tables.is_dir() else []


def _write_tables(folder: Path, sites: int) -> list[Path]:
    """Write an example table for each site: scikit-learn's breast cancer data, dealt to the sites row by row."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    features = [name.replace(" ", "_") for name in data.feature_names[:10]]  # means; the others are errors and extremes
    rows = max(40, len(data.target) // sites)
    paths = []
    for site in range(sites):
        lines = [",".join([*features, "diagnosis"])]
        for number in (site + sites * row for row in range(rows)):
            number %= len(data.target)
            cells = [f"{value:g}" for value in data.data[number, :10]]
            lines.append(",".join([*cells, str(data.target_names[data.target[number]])]))
        path = folder / f"site-{site:0{len(str(sites - 1))}d}.csv"
        write_bytes(path, ("\n".join(lines) + "\n").encode())
        paths.append(path)
    return paths


def _copy(source: Traversable, target: Path, values: dict[str, str]) -> list[Path]:
    """Copy the templates in a folder, with each placeholder replaced by its value."""
    paths = []
    for entry in sorted(source.iterdir(), key=lambda e: e.name):
        if entry.is_dir():
            paths += _copy(entry, target / entry.name, values)
        elif entry.name.endswith(".tmpl"):
            name = entry.name.removesuffix(".tmpl")
            path = target / (f".{name}" if name == "gitignore" else name)
            text = entry.read_text(encoding="utf-8")
            for placeholder, value in values.items():
                text = text.replace(placeholder, value)
            write_bytes(path, text.encode())
            paths.append(path)
    return paths


def leave_site(folder: Path, site: str) -> None:
    """Write a site that leaves into `clients.leave_out` of a project's spec; the rest of the file stays as it is."""
    from fedtilt.data.naming import client_number
    from fedtilt.spec import load

    check_project(folder)
    path = folder / "spec.toml"
    clients = load(path).clients
    names = [str(number) for number in range(clients.sites)]
    name = names[client_number(site, names)]
    without = [*clients.leave_out, name]
    if name in clients.leave_out:
        raise InputError(f"site {name} is not part of {folder}: leave_out has it")
    if len(without) == clients.sites:
        raise InputError(f"without site {name}, {folder} has no site")
    text, line = read_bytes(path).decode(), f"leave_out = {json.dumps(without)}"
    pattern, new = r"(?m)^\[clients\].*$", rf"\g<0>\n{line}"
    if clients.leave_out:
        pattern, new = r"(?m)^leave_out\s*=\s*\[.*?\]", line
    changed, expected = re.sub(pattern, new, text, count=1), tomllib.loads(text)
    expected.setdefault("clients", {})["leave_out"] = without
    try:
        is_changed = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:  # such as a list over several lines
        is_changed = False
    if not is_changed:
        raise InputError(f"{path} has no [clients] with one line for leave_out; write {line} into that table yourself")
    write_bytes(path, changed.encode())


def default_run_config(folder: Path) -> dict[str, Any]:
    """The run configuration in a project's pyproject.toml; a run may change these keys and no others."""
    path = folder / "pyproject.toml"
    try:
        table: Any = tomllib.loads(read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}; fix it") from error
    for key in ("tool", "flwr", "app", "config"):
        table = table.get(key, {}) if isinstance(table, dict) else {}
    return dict(table)


def check_project(folder: Path) -> None:
    """Raise an InputError for a folder that is not a Flower project."""
    if not (folder / "pyproject.toml").exists():
        raise InputError(f"{folder} is not a Flower project: it has no pyproject.toml; fedtilt deploy new writes one")
