"""`fedtilt check`: whether the files of a run are intact."""

import contextlib
import json
import os
from pathlib import Path

import typer
from rich.text import Text

from fedtilt.cli.console import Console, echo, text_table
from fedtilt.cli.options import AsJson, RunFolder
from fedtilt.errors import InputError
from fedtilt.locks import locked


def _digest(folder: Path) -> str | None:
    from fedtilt.runs.forget import model_digest

    with contextlib.suppress(InputError):  # a search, or a run before its first checkpoint, has no models
        return model_digest(folder)
    return None


def check(folder: RunFolder, as_json: AsJson = False) -> None:
    """Read every file of a run, and say which are damaged and what that costs; exit code 1 if any is.

    Nothing is changed: fedtilt resume repairs what can be repaired. Runs with the same digest have the same models, bit
    by bit.
    """
    from fedtilt.storage.integrity import check_run
    from fedtilt.storage.provenance import check_run_folder

    check_run_folder(folder)
    busy = f"{folder} is in use by a run, which changes its files; check it after the run"
    with locked(folder, busy=busy) if os.access(folder, os.W_OK) else contextlib.nullcontext():
        checks = check_run(folder)
    damaged = [sentence for part in checks for sentence in part.damaged]
    if as_json:
        values = {"folder": str(folder), "intact": not damaged, "files": [part.to_json() for part in checks]}
        values["models"] = None if damaged else _digest(folder)
        echo(json.dumps(values, indent=2))
        raise typer.Exit(1 if damaged else 0)
    table = text_table([""], ["checked", "damaged"], ["damage costs"])
    for part in checks:
        count = Text(f"{len(part.damaged):,}", "bold red" if part.damaged else "")
        table.add_row(part.kind, f"{part.checked:,}", count, part.costs)
    Console().print(table)
    for sentence in damaged:
        echo(f"damaged: {sentence}")
    if not damaged and (digest := _digest(folder)):
        echo(f"models: {digest} (blake2b)")
    echo(f"{folder} is damaged" if damaged else f"{folder} is intact")
    raise typer.Exit(1 if damaged else 0)
