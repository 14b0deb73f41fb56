"""The opening of the page: one table, one figure and a few sentences on whether to use FedTilt, and for what."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from fedtilt.report.summary import join_words
from fedtilt.report.tables import format_interval
from fedtilt.reproduction import plots
from fedtilt.reproduction.chapter import CaptionedFigure, Table, Text
from fedtilt.reproduction.comparison.dataset_comparison import (
    COMPARED_METRICS,
    DatasetComparison,
    outcome,
)
from fedtilt.reproduction.comparison.experiment import difference_cell
from fedtilt.reproduction.page.scores import Score, tested

Shown = Mapping[tuple[str, str, str, str], Score]  # by condition, data set, rival and metric

_CONDITIONS = {
    "clean": "clean data", "corruptions": "random corruptions", "gaussian": "Gaussian noise", "flips": "label flips",
}  # fmt: skip
_RIVALS = ("ditto-validated", "fedavg")
_METRICS = {"accuracy": "accuracy", "worst": "worst 10 %"}
_BLUE = "#1a7fc4"
_MARKERS = {
    "the interval contains 0": "circle-open",
    "the interval does not contain 0": "circle",
    "also after Holm’s correction": "star",
}
_TICKS = (-50, -20, -10, -5, -2, -0.5, 0, 0.5, 2, 5, 10, 20, 50)


def opening(
    comparisons: Sequence[DatasetComparison], scores: Sequence[Score], titles: Mapping[str, str]
) -> list[Text | Table | CaptionedFigure]:
    """Table, figure and sentences on FedTilt (validated) against Ditto (validated) and FedAvg.

    Args:
        comparisons: All data sets under all conditions, measured or not.
        scores: FedTilt (validated) against its rivals in them.
        titles: Row → its title.
    """
    shown = {
        (s.condition, s.data, s.rival, s.metric.key): s
        for s in scores
        if s.rival in _RIVALS and s.view == "evaluated" and s.metric.key in _METRICS and s.difference is not None
    }
    cells = list(dict.fromkeys((condition, data) for condition, data, _, _ in shown))
    parts: list[Text | Table | CaptionedFigure] = [
        _table(cells, shown, titles),
        CaptionedFigure(
            name="opening",
            caption="The same differences with their 95 % intervals (square-root scale). To the right of 0 FedTilt is "
            "better.",
            figure=_figure(cells, shown, titles),
        ),
    ]
    sentences = _sentences(comparisons, scores)
    return [*parts, Text(markdown=sentences)] if sentences else parts


def _table(cells: Sequence[tuple[str, str]], shown: Shown, titles: Mapping[str, str]) -> Table:
    columns = list(product(_RIVALS, _METRICS))
    rows = [
        [_CONDITIONS[condition], data, *(_cell(shown.get((condition, data, *column))) for column in columns)]
        for condition, data in cells
    ]
    seeds = sorted({score.difference.pairs for score in shown.values() if score.difference is not None})
    return Table(
        caption="Should I use it, and for what? FedTilt (validated) minus Ditto (validated), and minus FedAvg",
        columns=["condition", "data", *(f"{_METRICS[key]}, minus {titles[rival]}" for rival, key in columns)],
        rows=rows,
        notes=f"Points; mean over {' or '.join(map(str, seeds))} seeds and 95 % interval of the difference, paired by "
        "seed. Bold: the interval does not contain 0. A star: also significant after Holm’s correction over all "
        "comparisons that this page counts.",
    )


def _cell(score: Score | None) -> str:
    if score is None or score.difference is None:
        return ""
    return difference_cell(score.difference, mark=" ★" if score.survives else "")


def _figure(cells: Sequence[tuple[str, str]], shown: Shown, titles: Mapping[str, str]) -> dict[str, Any]:
    """A panel for each rival (rows) and metric (columns), a line for each condition and data set."""
    labels = [f"{_CONDITIONS[condition]}, {data}" for condition, data in cells]
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    in_legend: set[str] = set()
    for panel, (rival, key) in enumerate(product(_RIVALS, _METRICS)):
        n = plots.axis_suffix(panel)
        title = f"{_METRICS[key]}, minus {titles[rival]} (points)"
        axes[f"xaxis{n}"] = {
            "anchor": f"y{n}", "title": {"text": title, "font": {"size": 11}, "standoff": 6}, "zerolinewidth": 2,
            "rangemode": "tozero",
            "tickvals": [_position(v) for v in _TICKS], "ticktext": [f"{v:g}".replace("-", "−") for v in _TICKS],
        }  # fmt: skip
        axes[f"yaxis{n}"] = {
            "anchor": f"x{n}", "categoryorder": "array", "categoryarray": labels, "range": [len(cells) - 0.5, -0.5],
            "showticklabels": panel % len(_METRICS) == 0,
        }  # fmt: skip
        for name, symbol in _MARKERS.items():
            points = [
                (label, score)
                for label, cell in zip(labels, cells, strict=True)
                if (score := shown.get((*cell, rival, key))) and _marker(score) == name
            ]
            if points:
                trace = {"xaxis": f"x{n}", "yaxis": f"y{n}", "showlegend": name not in in_legend}
                data.append(_trace(name, symbol, points) | trace)
                in_legend.add(name)
    grid = plots.panels(len(_RIVALS), len(_METRICS)) | {"xgap": 0.06, "ygap": 0.22}
    return {"data": data, "layout": plots.layout(120 + 44 * len(cells), grid=grid, **axes)}


def _marker(score: Score) -> str:
    contains, excludes, corrected = _MARKERS
    if score.survives:
        return corrected
    return excludes if score.difference is not None and score.difference.sign() else contains


def _trace(name: str, symbol: str, points: Sequence[tuple[str, Score]]) -> dict[str, Any]:
    differences = [score.difference for _, score in points if score.difference is not None]
    x = [_position(d.mean) for d in differences]
    ends = [
        (_position(d.low), _position(d.high)) if d.pairs > 1 else (p, p) for p, d in zip(x, differences, strict=True)
    ]
    return {
        "type": "scatter", "mode": "markers", "name": name, "legendgroup": name, "x": x, "y": [y for y, _ in points],
        "text": [format_interval(d) for d in differences], "hovertemplate": "%{y}: %{text}<extra></extra>",
        "marker": {"color": _BLUE, "size": 11 if symbol == "star" else 8, "symbol": symbol},
        "error_x": {
            "type": "data", "symmetric": False, "color": _BLUE, "thickness": 1.4, "width": 3,
            "array": [round(high - p, 4) for p, (_, high) in zip(x, ends, strict=True)],
            "arrayminus": [round(p - low, 4) for p, (low, _) in zip(x, ends, strict=True)],
        },
    }  # fmt: skip


def _position(value: float) -> float:
    """Position on the square-root scale.

    >>> _position(-4.0), _position(0.25)
    (-2.0, 0.5)
    """
    return round(math.copysign(math.sqrt(abs(value)), value), 4)


def _sentences(comparisons: Sequence[DatasetComparison], scores: Sequence[Score]) -> str:
    """What the intervals show; empty if no comparison has several seeds."""

    def group(rival: str, key: str) -> list[Score]:
        selected = [s for s in scores if (s.rival, s.view, s.metric.key) == (rival, "evaluated", key)]
        return [s for s in selected if s.outcome in ("better", "tied", "worse")]

    accuracy, worst, fedavg = (group(*key) for key in (
        ("ditto-validated", "accuracy"), ("ditto-validated", "worst"), ("fedavg", "accuracy"),
    ))  # fmt: skip
    if not accuracy:
        return ""
    ditto = [outcome(c.differences("ditto-validated", "fedavg", COMPARED_METRICS[0])) for c in comparisons]
    surviving = [score for score in scores if score.survives]
    against_ditto = [score for score in surviving if score.rival == "ditto-validated"]
    return (
        "**Against Ditto (validated),** which has personal models but no tilts, FedTilt (validated) is more accurate "
        f"in {_count(accuracy, 'better')} of {len(accuracy)} cells (a data set under a condition) and less accurate in "
        f"{_count(accuracy, 'worse')}; for the worst 10 % of the clients it is better in {_count(worst, 'better')} and "
        f"worse in {_count(worst, 'worse')}. {_by_condition(accuracy)} **Against FedAvg** it is more accurate in "
        f"{_count(fedavg, 'better')} of {len(fedavg)} cells, but so is Ditto (validated) in {ditto.count('better')}: "
        "that is what personal models are worth to clients of two classes, not what the tilts are worth. "
        f"**After Holm’s correction** over all {tested(scores)} comparisons that this page counts, {len(surviving)} "
        f"differences remain, {len(against_ditto)} of them against Ditto (validated). So few seeds find only large or "
        "steady differences: a cell without one is undecided, not shown to be equal."
    )


def _by_condition(accuracy: Sequence[Score]) -> str:
    """The range of the difference in accuracy under each condition, and the data sets where it is significant."""
    clauses = []
    for condition in dict.fromkeys(score.condition for score in accuracy):
        selected = [score for score in accuracy if score.condition == condition]
        means = [score.difference.mean for score in selected if score.difference is not None]
        low, high = (f"{value:+.1f}".replace("-", "−") for value in (min(means), max(means)))
        size = f"{low} to {high}" if low != high else low
        decided = [
            f"{word} on {join_words([score.data for score in selected if score.outcome == word])}"
            for word in ("better", "worse")
            if any(score.outcome == word for score in selected)
        ]
        clauses.append(f"{_CONDITIONS[condition]} {size} ({', '.join(decided) or 'undecided'})")
    return f"In points of accuracy: {'; '.join(clauses)}."


def _count(scores: Sequence[Score], word: str) -> int:
    return sum(score.outcome == word for score in scores)
