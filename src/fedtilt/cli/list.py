"""`fedtilt list`: the runs of a folder with their results."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtilt.cli.console import Console, echo, escape, text_table
from fedtilt.cli.options import AsJson
from fedtilt.errors import InputError
from fedtilt.files import interpreting, read_json

_MAX_METHODS = 5  # of a run, the best


def list(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="A folder with run folders.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs and searches of a folder with their results, the newest first."""
    folders = [folder] if (folder / "run.json").exists() else sorted(path.parent for path in folder.glob("*/run.json"))
    if not folders:
        raise InputError(f"{folder} has no run folders; start one with fedtilt run, or name another folder")
    entries = sorted(map(_entry, folders), key=lambda entry: str(entry["started"]), reverse=True)
    if as_json:
        echo(json.dumps(entries, indent=2))
        return
    table = text_table(["run", "method"], ["score", "worst 10 %"])
    for entry in entries:
        table.add_row(*_cells(entry), end_section=True)
    Console().print(table)


def _cells(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    """A run and what is known about it; its best methods with their scores, a line each."""
    from fedtilt.report.run_reader import format_time

    started = [f"[dim]{format_time(entry['started'])}[/]"] if entry["started"] else []
    about = [f"[bold]{escape(Path(entry['folder']).name)}[/]", *started, escape(entry["problem"] or entry["about"])]
    unit = " %" if entry["score"] == "accuracy" else ""
    best = entry["methods"][:_MAX_METHODS]
    columns = [[f"{method[key]:.2f}{unit}" for method in best] for key in ("mean", "worst")]
    more = [f"and {len(entry['methods']) - _MAX_METHODS} more"] if len(entry["methods"]) > _MAX_METHODS else []
    lines = [about, [escape(method["name"]) for method in best] + more, *columns]
    return tuple("\n".join(texts) for texts in lines)  # type: ignore[return-value]


def _entry(folder: Path) -> dict[str, Any]:
    """One run or search as JSON values; `problem` says why there is no result."""
    from fedtilt.report.tuning_page import is_search
    from fedtilt.storage.provenance import read_record

    entry: dict[str, Any] = {"folder": str(folder), "started": "", "problem": "", "score": "", "methods": []}
    try:
        entry["started"] = read_record(folder)["started"]
        return entry | (_search(folder) if is_search(folder) else _run(folder))
    except InputError as error:
        return entry | {"problem": str(error)}


def _run(folder: Path) -> dict[str, Any]:
    from fedtilt.report.compare import comparison_table
    from fedtilt.report.run_reader import read_run
    from fedtilt.report.summary import facts

    run = read_run(folder)
    table, score = comparison_table(run, "evaluated"), run.score
    ranked = sorted(table, key=lambda method: table[method][score.name].mean, reverse=score.higher_is_better)
    methods = [{"name": m, "mean": table[m][score.name].mean, "worst": table[m]["worst"].mean} for m in ranked]
    return {"about": facts(run), "score": score.name, "methods": methods}


def _search(folder: Path) -> dict[str, Any]:
    path = folder / "results.json"
    if not path.exists():
        return {"problem": f"a search that has not ended; continue with: fedtilt resume {shlex.quote(str(folder))}"}
    with interpreting(path):
        tuning = read_json(path)["tuning"]
        return {"about": f"search of {tuning['method']} by {tuning['by']}: {tuning['reason']}"}
