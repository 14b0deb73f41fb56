"""One HTML page about a search: the recommendation, the Pareto front, and every setting on validation data."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import interpreting, read_json
from fedtilt.report import html
from fedtilt.report.figure import Figure, axis, capitalise, figure_layout, plotly_text
from fedtilt.storage.provenance import read_record
from fedtilt.version import __version__

_GROUPS = (  # title, colour, symbol, size
    ("Pareto front", "#1a7fc4", "circle", 11),
    ("compared", "#7f858d", "circle-open", 10),
    ("stopped early", "#b9bdc4", "x-thin-open", 7),
)
_SHOWN = (  # as they are in results.json
    "is_possible", "reason", "constraints", "trained_rounds", "diverged", "impossible", "out_of_time", "seconds",
    "objectives", "test", "method",
)  # fmt: skip


def is_search(folder: Path) -> bool:
    """Whether a folder has a search, not a run."""
    return (folder / "run.json").exists() and "tuning" in read_record(folder)


def build_tuning_page(folder: Path) -> str:
    """The page about the search in a folder."""
    path = folder / "results.json"
    if not path.exists():
        command = f"fedtilt resume {shlex.quote(str(folder))}"
        raise InputError(f"{folder} is a search that has not ended; continue with: {command}")
    with interpreting(path):
        tuning = read_json(path)["tuning"]
        main = html.render("tuning.html.j2", **_values(folder, tuning))
    return html.document(
        title=f"fedtilt: search in {folder.resolve().name}", what="search", main=main,
        footer=f"Written by fedtilt {__version__} from the folder of a search, without training.",
    )  # fmt: skip


def _values(folder: Path, tuning: Mapping[str, Any]) -> dict[str, Any]:
    settings, objectives, by = tuning["settings"], tuning["objectives"], tuning["by"]
    better = {objective["name"]: objective["higher_is_better"] for objective in objectives}
    sign = -1 if better[by] else 1
    order = sorted(settings, key=lambda name: (-settings[name]["rounds"], sign * settings[name]["validation"][by]))
    seeds = len(tuning["seeds"])
    facts = f"{len(settings)} settings of {tuning['method']}, {seeds} seed{'s' if seeds > 1 else ''}, " + (
        f"compared after {tuning['compared_rounds']} of {tuning['rounds']} rounds on validation data"
    )
    every = len(settings) * tuning["rounds"]
    chosen = settings.get(tuning["chosen"], {}).get("setting", {})
    recommended = folder / "recommended.toml"
    return {key: tuning[key] for key in _SHOWN} | {
        "name": folder.resolve().name,
        "facts": facts,
        "keep": tuning["chosen"] == tuning["method"],
        "recommended": " ".join(f"{axis}={value}" for axis, value in chosen.items()),
        "command": f"fedtilt run {shlex.quote(str(recommended))}" if recommended.exists() else "",
        "saved": 1 - tuning["trained_rounds"] / every if every else 0.0,
        "every": every,
        "stopped": sum(row["rounds"] < tuning["compared_rounds"] for row in settings.values()),
        "by_unit": next(objective["unit"] for objective in objectives if objective["name"] == by),
        "axes": list(next(iter(settings.values()))["setting"]) if settings else [],
        "rows": [_row(name, settings[name], tuning) for name in order],
        "figures": [html.figure(_figure(tuning, x, y)) for x, y in _pairs(objectives)] if settings else [],
    }


def _row(name: str, row: Mapping[str, Any], tuning: Mapping[str, Any]) -> dict[str, Any]:
    best = name == _recommended(tuning)
    marks = {"yours": name == tuning["method"], "recommended": best, "Pareto front": name in tuning["pareto_front"]}
    return {**row, "marks": ", ".join(mark for mark, applies in marks.items() if applies), "best": best}


def _recommended(tuning: Mapping[str, Any]) -> str:
    """The name of the recommended setting; empty if no setting keeps the constraints."""
    return tuning["chosen"] if tuning["is_possible"] else ""


def _pairs(objectives: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """The pairs of objectives to draw: the main score, and every other one."""
    by_name = {objective["name"]: objective for objective in objectives}
    main = by_name.get("accuracy") or by_name.get("mae") or objectives[0]
    return [(main, other) for other in objectives if other["name"] != main["name"]]


def _figure(tuning: Mapping[str, Any], x: Mapping[str, Any], y: Mapping[str, Any]) -> Figure:
    """Two objectives of all settings."""
    points: dict[str, list[tuple[str, Mapping[str, Any]]]] = {title: [] for title, *_ in _GROUPS}
    for name, row in tuning["settings"].items():
        group = "compared" if row["rounds"] == tuning["compared_rounds"] else "stopped early"
        points["Pareto front" if name in tuning["pareto_front"] else group].append((name, row))
    data = [
        _trace(title, points[title], x, y, {"color": color, "symbol": symbol, "size": size})
        for title, color, symbol, size in _GROUPS
        if points[title]
    ]
    marked = {"yours": (tuning["method"], "square-open"), "recommended": (_recommended(tuning), "star")}
    for title, (name, symbol) in marked.items():
        if name in tuning["settings"]:
            marker = {"color": "#d55e00", "symbol": symbol, "size": 16, "line": {"width": 2, "color": "#d55e00"}}
            data.append(_trace(title, [(name, tuning["settings"][name])], x, y, marker))
    x_axis, y_axis = (axis(objective["title"], objective["unit"]) for objective in (x, y))
    layout = figure_layout(400, [trace["name"] for trace in data], xaxis=x_axis, yaxis=y_axis)
    return Figure(
        name=f"pareto-{y['name'].replace(':', '-')}", title=f"{x['title']} and {y['title']}", data=data, layout=layout,
        note=f"On validation data. {_direction(x)}; {_direction(y)}. Settings that were stopped early are shown where "
        "they stopped, and would have improved further.",
        columns=("setting", "rounds", x["name"], y["name"], "pareto_front"),
        rows=[
            (name, row["rounds"], *(row["validation"][o["name"]] for o in (x, y)), name in tuning["pareto_front"])
            for name, row in tuning["settings"].items()
        ],
    )  # fmt: skip


def _trace(
    title: str, points: Sequence[tuple[str, Mapping[str, Any]]], x: Mapping[str, Any], y: Mapping[str, Any],
    marker: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    return {
        "type": "scatter", "mode": "markers", "name": title, "marker": dict(marker),
        "x": [round(row["validation"][x["name"]], 4) for _, row in points],
        "y": [round(row["validation"][y["name"]], 4) for _, row in points],
        "text": [plotly_text(f"{name} (round {row['rounds']})", 80) for name, row in points],
        "hovertemplate": "%{text}: %{x:.4g}, %{y:.4g}<extra></extra>",
    }  # fmt: skip


def _direction(objective: Mapping[str, Any]) -> str:
    better = "higher" if objective["higher_is_better"] else "lower"
    return f"{capitalise(objective['title'])}: {better} is better"
