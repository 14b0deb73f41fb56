"""The table of tilt signs, measured: every combination of signs, small and large, on clean and on bad data."""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean, stdev
from typing import Any

import torch

from fedtilt.reproduction.chapter import Chapter, Figure, Table, Text
from fedtilt.reproduction.comparison.experiment import told
from fedtilt.reproduction.experiment import Cell, Experiment, OnProgress, Options
from fedtilt.reproduction.signs.claims import verdict
from fedtilt.reproduction.signs.settings import COLLAPSE, METRICS, PLAIN, Measured, collected, grid, sign, words
from fedtilt.reproduction.train_grid import PARTS, Setting, federation_settings, train_grid

_SYMBOLS = {(True, True): "x", (False, True): "diamond", (True, False): "square", (False, False): "circle"}
_LOGARITHMIC = {"type": "log", "range": [-0.6, 1.95], "tickvals": [0.3, 1, 3, 10, 30]}
_LEAST = 0.1  # points: what a logarithmic axis shows of less
_COLORS = {  # by the signs of tau and lam
    (0, 0): "#7f858d", (1, 1): "#d55e00", (1, -1): "#1a7fc4", (-1, 1): "#9a7b00", (-1, -1): "#8c6bd1",
    (1, 0): "#c46a9c", (0, 1): "#c46a9c", (-1, 0): "#009e73", (0, -1): "#009e73",
}  # fmt: skip


def cells(experiment: Experiment, options: Options) -> list[Cell]:
    """One cell per data set, condition and seed; all settings are trained in it together."""
    settings, found = experiment.settings, []
    methods: dict[str, Setting] = {
        t.name: {"preset": "fedtilt", "tau": t.tau, "lam": t.lam, "q": t.q, "mu": settings["mu"]}
        for t in grid(settings)
    }
    further = settings["gpu_data"] if _on_gpu(options) else []
    for name, outliers in product([*settings["data"], *further], settings["outliers"]):
        federation = federation_settings(settings, name, outliers)
        for seed in range(options.seeds or settings["seeds"]):
            found.append(
                Cell(
                    name=f"{name}-{told(outliers)}-seed-{seed}",
                    what=f"{name}, {told(outliers)}, seed {seed}: {len(methods)} settings, "
                    f"{federation['train']['rounds']} rounds",
                    settings=federation | {"seed": seed, "methods": methods},
                    needs=name,
                    parts=PARTS,
                )
            )
    return found


def _on_gpu(options: Options) -> bool:
    """Whether the one who asks has a GPU, or says so: on a CPU the larger data sets would take an hour."""
    return options.device.startswith("cuda") or (options.device == "auto" and torch.cuda.is_available())


def measure(cell: Cell, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train one cell's settings."""
    return train_grid(cell.settings, options, on_progress)


# -- what is seen ------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Mapping[str, dict[str, Any]]) -> Chapter:
    """Per data set a table beside the paper's words and a picture; a verdict on every line of its table."""
    found, parts = collected(experiment, results), list[Text | Table | Figure]()
    for name, measured in found.items():
        parts += [_tilts_table(experiment, name, condition, measured) for condition in measured.conditions]
        parts += [_figure(experiment, name, measured), _server_table(experiment, name, measured)]
    parts.append(
        Text(
            markdown="Accuracy stands beside every spread for a reason: a strongly negative tau listens to the class "
            "with the smallest loss alone, so a client's model ends on one of its two classes. It is then right in "
            "half of the cases on every client, and the spread over *clients* is next to nothing: it looks fair, and "
            f"unmoved by outliers, and is of no use. Settings more than {COLLAPSE:g} points below tau = lam = 0 are "
            "marked †, and count neither as fair nor as robust."
        )
    )
    verdicts = [verdict(claim, experiment, found) for claim in experiment.claims]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts, verdicts=verdicts)


def _shown(values: Sequence[float], mark: str = "") -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}{mark}"


def _tilts_table(experiment: Experiment, name: str, condition: str, m: Measured) -> Table:
    rows: list[list[str | float]] = []
    for t in grid(experiment.settings):
        if not t.q:
            lost = m.diverged(t.name, condition)
            mark = " (diverged)" if lost else " †" if m.collapsed(t.name, condition) else ""
            numbers = ["" if lost else _shown(m.personal[metric][condition][t.name]) for metric in METRICS]
            rows.append([t.name + mark, *words(experiment, t), *numbers])
    return Table(
        caption=f"{name}, {condition}: personal models, mean ± std over {_seeds(m)}",
        columns=("setting", "paper: data fairness", "paper: robustness", *METRICS.values()),
        rows=rows,
        notes="Spreads are in points, lower is fairer: over clients (client fairness), over a client's classes (client "
        "data fairness: mean and std over clients). † collapsed: see the text.",
    )


def _seeds(m: Measured) -> str:
    count = len(m.personal["accuracy"]["clean"][PLAIN.name])
    return f"{count} seeds" if count > 1 else "one seed"


def _server_table(experiment: Experiment, name: str, m: Measured) -> Table:
    rows: list[list[str | float]] = []
    for t in sorted([t for t in grid(experiment.settings) if t.q or t == PLAIN], key=lambda t: -t.q):
        if any(m.diverged(t.name, condition) for condition in m.conditions):
            continue
        row: list[str | float] = ["q = 0" if t == PLAIN else t.name, ("low", "medium", "high")[sign(t.q) + 1]]
        for condition in m.conditions:
            row += [_shown(m.shared[metric][condition][t.name]) for metric in ("accuracy", "client_fairness")]
            row.append(_shown(m.personal["client_fairness"][condition][t.name]))
        rows.append(row)
    heads = [f"{c}: {head}" for c in m.conditions for head in ("w accuracy", "w spread", "v spread")]
    return Table(
        caption=f"{name}: the server's tilt q, accuracy (%) and client fairness (the spread over clients, points)",
        columns=("setting", "paper: client fairness", *heads),
        rows=rows,
        notes="tau = lam = 0. The paper defines client fairness by the shared model w; v are the personal ones.",
    )


def _figure(experiment: Experiment, name: str, m: Measured) -> Figure:
    """Wrong answers against class spread, a panel per condition, a mark per setting; collapsed ones lie far out."""
    data: list[dict[str, Any]] = []
    accuracy, spread, conditions = m.personal["accuracy"], m.personal["client_data_fairness_mean"], m.conditions
    width = 1 / len(conditions)
    layout: dict[str, Any] = {
        "height": 400, "margin": {"l": 62, "r": 12, "t": 30, "b": 44}, "hovermode": "closest", "annotations": [],
        "legend": {"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top", "xanchor": "left"},
    }  # fmt: skip
    for i, condition in enumerate(conditions):
        axis = str(i + 1) if i else ""
        for signs, color in _COLORS.items():
            ours = [t for t in grid(experiment.settings) if not t.q and t.signs == signs]
            ours = [t for t in ours if not m.diverged(t.name, condition)]
            large = [abs(t.tau) + abs(t.lam) > 2 * experiment.settings["small"] for t in ours]
            data.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": _group(signs), "legendgroup": _group(signs),
                    "showlegend": i == 0, "xaxis": f"x{axis}", "yaxis": f"y{axis}", "text": [t.name for t in ours],
                    "x": [round(max(_LEAST, fmean(spread[condition][t.name])), 3) for t in ours],
                    "y": [round(max(_LEAST, 100 - fmean(accuracy[condition][t.name])), 3) for t in ours],
                    "line": {"color": color, "width": 1, "dash": "dot"},
                    "marker": {
                        "color": color, "size": [13 if big else 8 for big in large],
                        "symbol": _SYMBOLS[signs[0] == 0, signs[1] == 0], "opacity": 0.85,
                    },
                    "hovertemplate": "%{text}<br>wrong %{y:.1f} %, class spread %{x:.1f}<extra></extra>",
                }
            )  # fmt: skip
        domain = [i * width, (i + 1) * width - (0.05 if i < len(conditions) - 1 else 0)]
        layout[f"xaxis{axis}"] = {
            "title": {"text": "class spread (points)"}, "domain": domain, "anchor": f"y{axis}", **_LOGARITHMIC
        }  # fmt: skip
        layout[f"yaxis{axis}"] = {
            "anchor": f"x{axis}",
            **({} if i else {"title": {"text": "wrong (%)"}}),
            **_LOGARITHMIC,
        }
        layout["annotations"].append(
            {"text": condition, "showarrow": False, "x": sum(domain) / 2, "xref": "paper", "xanchor": "center",
             "y": 1.0, "yref": "paper", "yanchor": "bottom"}
        )  # fmt: skip
    caption = (
        f"{name}: every setting of tau and lam; down is accurate, left is fair to classes. Large marks: large tilts."
    )
    return Figure(name=f"effects-{name}", caption=caption, figure={"data": data, "layout": layout})


def _group(signs: tuple[int, int]) -> str:
    words = {1: "> 0", 0: "= 0", -1: "< 0"}
    return f"tau {words[signs[0]]}, lam {words[signs[1]]}"
