"""The paper's table of tilt signs, measured: every combination of signs, small and large, with and without outliers."""

from collections.abc import Sequence
from itertools import product
from statistics import fmean, stdev
from typing import Any

import torch

from reproduction.chapter import CaptionedFigure, Chapter, Part, Table, Text
from reproduction.experiment import Case, Experiment, Options, Results
from reproduction.experiments.paired import condition_name
from reproduction.experiments.signs_claims import (
    COLLAPSE,
    NO_TILT,
    SIGN_METRICS,
    DatasetResults,
    collect,
    grid,
    paper_words,
    sign,
    verdict,
)
from reproduction.training import Setting, federation_settings, grid_case, measure_grid

_SYMBOLS = {(True, True): "x", (False, True): "diamond", (True, False): "square", (False, False): "circle"}
_LOG_AXIS = {"type": "log", "range": [-0.6, 1.95], "tickvals": [0.3, 1, 3, 10, 30]}
_LOWEST = 0.1  # points: smaller values are drawn here, since a logarithmic axis has no zero
_COLORS = {  # by the signs of tau and lam
    (0, 0): "#7f858d", (1, 1): "#d55e00", (1, -1): "#1a7fc4", (-1, 1): "#9a7b00", (-1, -1): "#8c6bd1",
    (1, 0): "#c46a9c", (0, 1): "#c46a9c", (-1, 0): "#009e73", (0, -1): "#009e73",
}  # fmt: skip

measure = measure_grid


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set, condition and seed; it trains all settings together."""
    settings, result = experiment.settings, []
    methods: dict[str, Setting] = {
        tilts.name: {"preset": "fedtilt", "tau": tilts.tau, "lam": tilts.lam, "q": tilts.q, "mu": settings["mu"]}
        for tilts in grid(settings)
    }
    gpu_data = settings["gpu_data"] if _has_gpu(options) else []
    for name, outliers in product([*settings["data"], *gpu_data], settings["outliers"]):
        federation, condition = federation_settings(settings, name, outliers), condition_name(outliers)
        for seed in range(options.seeds or settings["seeds"]):
            what = f"{name}, {condition}"
            result.append(grid_case(f"{name}-{condition}", federation, seed, methods, what=what))
    return result


def _has_gpu(options: Options) -> bool:
    """Whether the case runs on a GPU; on a CPU the larger data sets would take an hour."""
    return options.device.startswith("cuda") or (options.device == "auto" and torch.cuda.is_available())


# -- the chapter -------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """Per data set tables with the paper's words and a figure; a verdict on every line of the paper's table."""
    by_data, parts = collect(experiment, results), list[Part]()
    for data, metrics in by_data.items():
        parts += [_tilts_table(experiment, data, condition, metrics) for condition in metrics.conditions]
        parts += [_figure(experiment, data, metrics), _server_table(experiment, data, metrics)]
    parts.append(
        Text(
            markdown="Read fairness together with accuracy. With a strongly negative tau only the class with the "
            "smallest loss counts, so a client's model predicts one of its two classes. It is then right on half of "
            "the samples of every client, so client fairness is near its best: the model looks fair and robust to "
            f"outliers, but is useless. Settings more than {COLLAPSE:g} points below tau = lam = 0 are marked † "
            "(collapsed), and count neither as fair nor as robust."
        )
    )
    verdicts = [verdict(claim, experiment, by_data) for claim in experiment.claims]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts, verdicts=verdicts)


def _format_mean_std(values: Sequence[float]) -> str:
    std = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{std}"


def _tilts_table(experiment: Experiment, data: str, condition: str, results: DatasetResults) -> Table:
    rows: list[list[str | float]] = []
    for tilts in grid(experiment.settings):
        if not tilts.q:
            diverged = results.diverged(tilts.name, condition)
            mark = " (diverged)" if diverged else " †" if results.collapsed(tilts.name, condition) else ""
            numbers = [
                "" if diverged else _format_mean_std(results.personal[metric][condition][tilts.name])
                for metric in SIGN_METRICS
            ]
            rows.append([tilts.name + mark, *paper_words(experiment, tilts), *numbers])
    return Table(
        caption=f"{data}, {condition}: personal models, mean ± std over {_seed_count(results)}",
        columns=("setting", "paper: client data fairness", "paper: robustness", *SIGN_METRICS.values()),
        rows=rows,
        notes="Fairness is in points, lower is fairer: client fairness is the standard deviation over clients, client "
        "data fairness that over a client's classes (mean and std over clients). † collapsed: see the text.",
    )


def _seed_count(results: DatasetResults) -> str:
    count = len(results.personal["accuracy"]["clean"][NO_TILT.name])
    return f"{count} seeds" if count > 1 else "one seed"


def _server_table(experiment: Experiment, data: str, results: DatasetResults) -> Table:
    rows: list[list[str | float]] = []
    for tilts in sorted([t for t in grid(experiment.settings) if t.q or t == NO_TILT], key=lambda t: -t.q):
        if any(results.diverged(tilts.name, condition) for condition in results.conditions):
            continue
        row: list[str | float] = [
            "q = 0" if tilts == NO_TILT else tilts.name, ("low", "medium", "high")[sign(tilts.q) + 1]
        ]  # fmt: skip
        for condition in results.conditions:
            row += [
                _format_mean_std(results.shared[metric][condition][tilts.name])
                for metric in ("accuracy", "client_fairness")
            ]
            row.append(_format_mean_std(results.personal["client_fairness"][condition][tilts.name]))
        rows.append(row)
    heads = ("w accuracy", "w client fairness", "v client fairness")
    return Table(
        caption=f"{data}: the server's tilt q, accuracy (%) and client fairness (points)",
        columns=("setting", "paper: client fairness", *(f"{c}: {head}" for c in results.conditions for head in heads)),
        rows=rows,
        notes="tau = lam = 0. The paper defines client fairness for the shared model w; v are the personal models.",
    )


def _figure(experiment: Experiment, data: str, results: DatasetResults) -> CaptionedFigure:
    """Error against client data fairness, a panel per condition, a marker per setting."""
    traces: list[dict[str, Any]] = []
    accuracy, fairness = results.personal["accuracy"], results.personal["client_data_fairness_mean"]
    conditions = results.conditions
    width = 1 / len(conditions)
    layout: dict[str, Any] = {
        "height": 400, "margin": {"l": 62, "r": 12, "t": 30, "b": 44}, "hovermode": "closest", "annotations": [],
        "legend": {"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top", "xanchor": "left"},
    }  # fmt: skip
    for i, condition in enumerate(conditions):
        axis = str(i + 1) if i else ""
        for signs, color in _COLORS.items():
            settings = [t for t in grid(experiment.settings) if not t.q and t.signs == signs]
            settings = [t for t in settings if not results.diverged(t.name, condition)]
            large = [abs(t.tau) + abs(t.lam) > 2 * experiment.settings["small"] for t in settings]
            title = _signs_title(signs)
            traces.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": title, "legendgroup": title,
                    "showlegend": i == 0, "xaxis": f"x{axis}", "yaxis": f"y{axis}", "text": [t.name for t in settings],
                    "x": [round(max(_LOWEST, fmean(fairness[condition][t.name])), 3) for t in settings],
                    "y": [round(max(_LOWEST, 100 - fmean(accuracy[condition][t.name])), 3) for t in settings],
                    "line": {"color": color, "width": 1, "dash": "dot"},
                    "marker": {
                        "color": color, "size": [13 if is_large else 8 for is_large in large],
                        "symbol": _SYMBOLS[signs[0] == 0, signs[1] == 0], "opacity": 0.85,
                    },
                    "hovertemplate": "%{text}<br>error %{y:.1f} %, client data fairness %{x:.1f}<extra></extra>",
                }
            )  # fmt: skip
        domain = [i * width, (i + 1) * width - (0.05 if i < len(conditions) - 1 else 0)]
        layout[f"xaxis{axis}"] = {
            "title": {"text": "client data fairness (points)"}, "domain": domain, "anchor": f"y{axis}", **_LOG_AXIS
        }  # fmt: skip
        layout[f"yaxis{axis}"] = {
            "anchor": f"x{axis}",
            **({} if i else {"title": {"text": "error (%)"}}),
            **_LOG_AXIS,
        }
        layout["annotations"].append(
            {"text": condition, "showarrow": False, "x": sum(domain) / 2, "xref": "paper", "xanchor": "center",
             "y": 1.0, "yref": "paper", "yanchor": "bottom"}
        )  # fmt: skip
    return CaptionedFigure(
        name=f"signs-{data}",
        caption=f"{data}: every setting of tau and lam; lower is more accurate, further left is fairer. Large markers: "
        "large tilts.",
        figure={"data": traces, "layout": layout},
    )


def _signs_title(signs: tuple[int, int]) -> str:
    relation = {1: "> 0", 0: "= 0", -1: "< 0"}
    return f"tau {relation[signs[0]]}, lam {relation[signs[1]]}"
