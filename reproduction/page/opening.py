"""The opening of the page: one table, one figure and a few sentences on whether to use FedTilt, and for what."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from fedtilt.report.summary import format_interval
from fedtilt.text_tables import join_words
from reproduction import plots
from reproduction.chapter import CaptionedFigure, Part, Table, Text
from reproduction.experiments.comparison import difference_cell
from reproduction.experiments.paired import COMPARED_METRICS, DatasetComparison
from reproduction.experiments.tuned import METHOD_TITLES, NOISY, CellScore, count_tests, score_all
from reproduction.records import HOW_COMPARED

Shown = Mapping[tuple[str, str, str, str], CellScore]  # by condition, data set, rival and metric

_CONDITIONS = {
    "clean": "clean data", "corruptions": "random corruptions", "gaussian": "Gaussian noise", "flips": "label flips",
}  # fmt: skip
_RIVALS = ("fedavg_finetuned", "ditto")  # the strongest ones
_METRICS = {"accuracy": "accuracy", "worst": "worst 10 %"}
_BLUE = "#1a7fc4"
_MARKERS = {
    "the interval contains 0": "circle-open",
    "the interval does not contain 0": "circle",
    "also after Holm’s correction": "star",
}
_TICKS = (-50, -20, -10, -5, -2, -0.5, 0, 0.5, 2, 5, 10, 20, 50)


def opening(comparisons: Sequence[DatasetComparison]) -> list[Part]:
    """Table, figure and sentences on FedTilt against its two strongest rivals, all tuned on noisy validation data.

    Args:
        comparisons: The cells of the tuned comparison, measured or not.
    """
    scores = score_all(comparisons)
    shown = {
        (s.condition, s.data, s.rival, s.metric.key): s
        for s in scores
        if s.noisy and s.rival in _RIVALS and s.metric.key in _METRICS and s.difference is not None
    }
    cells = _by_condition_order((condition, data) for condition, data, _, _ in shown)
    missing = [f"{c.data} {c.condition}" for c in comparisons if not c.seeds]
    parts: list[Part] = [
        _table(cells, shown, missing),
        CaptionedFigure(
            name="opening",
            caption="The same differences with their 95 % intervals (square-root scale). To the right of 0 FedTilt is "
            "better.",
            figure=_figure(cells, shown),
        ),
    ]
    sentences = _sentences(comparisons, scores)
    return [*parts, Text(markdown=sentences)] if sentences else parts


def _table(cells: Sequence[tuple[str, str]], shown: Shown, missing: Sequence[str]) -> Table:
    columns = list(product(_RIVALS, _METRICS))
    rows = [
        [_CONDITIONS[condition], data, *(_cell(shown.get((condition, data, *column))) for column in columns)]
        for condition, data in cells
    ]
    seeds = sorted({score.difference.seeds for score in shown.values() if score.difference is not None})
    number_of_seeds = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    titles = [METHOD_TITLES[rival] for rival in _RIVALS]
    return Table(
        caption=f"Should I use it, and for what? FedTilt minus {titles[0]}, and minus {titles[1]}",
        columns=["condition", "data", *(f"{_METRICS[key]}, minus {METHOD_TITLES[rival]}" for rival, key in columns)],
        rows=rows,
        notes="All methods are tuned with the same budget, on validation data that has the outliers of the training "
        f"data. Points; mean over {number_of_seeds} other seeds and 95 % interval of the difference, bold where that "
        f"does not contain 0. {HOW_COMPARED} A star: also after Holm’s correction over all comparisons of FedTilt that "
        "this page counts." + (f" Not measured yet: {', '.join(missing)}." if missing else ""),
    )


def _cell(score: CellScore | None) -> str:
    if score is None or score.difference is None:
        return ""
    return difference_cell(score.difference.verdict, mark=" ★" if score.survives else "")


def _figure(cells: Sequence[tuple[str, str]], shown: Shown) -> dict[str, Any]:
    """A panel for each rival (rows) and metric (columns), a line for each condition and data set."""
    labels = [f"{_CONDITIONS[condition]}, {data}" for condition, data in cells]
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    in_legend: set[str] = set()
    for panel, (rival, key) in enumerate(product(_RIVALS, _METRICS)):
        n = plots.axis_suffix(panel)
        title = f"{_METRICS[key]}, minus {METHOD_TITLES[rival]} (points)"
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


def _marker(score: CellScore) -> str:
    contains, excludes, corrected = _MARKERS
    if score.survives:
        return corrected
    return excludes if score.difference is not None and score.difference.verdict.sign() else contains


def _trace(name: str, symbol: str, points: Sequence[tuple[str, CellScore]]) -> dict[str, Any]:
    verdicts = [score.difference.verdict for _, score in points if score.difference is not None]
    x = [_position(verdict.difference) for verdict in verdicts]
    ends = [
        (_position(v.low), _position(v.high)) if math.isfinite(v.low) else (p, p)
        for p, v in zip(x, verdicts, strict=True)
    ]
    return {
        "type": "scatter", "mode": "markers", "name": name, "legendgroup": name, "x": x, "y": [y for y, _ in points],
        "text": [format_interval(verdict) for verdict in verdicts], "hovertemplate": "%{y}: %{text}<extra></extra>",
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


def _sentences(comparisons: Sequence[DatasetComparison], scores: Sequence[CellScore]) -> str:
    """What the intervals show; empty if no cell has several seeds."""
    cells = [c for c in comparisons if len(c.seeds) > 1]
    if not cells:
        return ""

    def select(rival: str, key: str, *, noisy: bool = True) -> list[CellScore]:
        selected = [s for s in scores if (s.rival, s.metric.key, s.noisy) == (rival, key, noisy)]
        return [s for s in selected if s.test]

    sentences = [_against_both({rival: select(rival, "accuracy") for rival in _RIVALS})]
    for rival in _RIVALS:
        accuracy, worst, clean = (
            select(rival, "accuracy"),
            select(rival, "worst"),
            select(rival, "accuracy", noisy=False),
        )
        sentences.append(
            f"**Against {METHOD_TITLES[rival]}** it is more accurate in {_count(accuracy, 'better')} of "
            f"{len(accuracy)} cells and less accurate in {_count(accuracy, 'worse')}"
            + (
                f"; for the worst 10 % of the clients it is better in {_count(worst, 'better')} of {len(worst)} and "
                f"worse in {_count(worst, 'worse')}. "
                if worst
                else ". "
            )
            + f"{_by_condition(accuracy)} With settings chosen on clean validation data it is more accurate in "
            f"{_count(clean, 'better')} and less accurate in {_count(clean, 'worse')}."
        )
    return "\n".join(f"- {sentence}" for sentence in [*sentences, _leaders(cells), _corrected(scores)])


def _against_both(accuracy: Mapping[str, Sequence[CellScore]]) -> str:
    """The cells where FedTilt is more accurate than both rivals, and those where it is less accurate than one."""
    outcomes: dict[tuple[str, str], list[str]] = {}
    for score in [score for scores in accuracy.values() for score in scores]:
        outcomes.setdefault((score.condition, score.data), []).append(score.outcome)
    ahead = [cell for cell in _by_condition_order(outcomes) if outcomes[cell] == ["better"] * len(accuracy)]
    behind = [cell for cell in _by_condition_order(outcomes) if "worse" in outcomes[cell]]
    texts = [
        f"{len(cells)} ({join_words([f'{_CONDITIONS[condition]} on {data}' for condition, data in cells])})"
        if cells
        else "none"
        for cells in (ahead, behind)
    ]
    return (
        f"**FedTilt is more accurate than both** in {texts[0]} of {len(outcomes)} cells (a data set under a "
        f"condition), and less accurate than one of them in {texts[1]}. Fine-tuning has no tilts to choose: where the "
        "two are not told apart, it is simpler."
    )


def _by_condition_order(cells: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Different cells (condition, data set), condition by condition."""
    return sorted(dict.fromkeys(cells), key=lambda cell: list(_CONDITIONS).index(cell[0]))


def _leaders(cells: Sequence[DatasetComparison]) -> str:
    """In how many cells each method is the most accurate, or not told apart from it."""
    counts: Counter[str] = Counter()
    for cell in cells:
        rows = [f"{row}{NOISY}" for row in METHOD_TITLES if f"{row}{NOISY}" in cell.rows]
        counts.update(row.removesuffix(NOISY) for row in cell.best(rows, COMPARED_METRICS[0]))
    listed = ", ".join(f"{METHOD_TITLES[row]} in {counts[row]}" for row in METHOD_TITLES if counts[row])
    return f"**The most accurate of all, or not told apart from it:** {listed} of {len(cells)} cells."


def _corrected(scores: Sequence[CellScore]) -> str:
    """What remains after the correction."""
    clauses = []
    for rival in _RIVALS:
        surviving = {s.test: s.outcome for s in scores if s.survives and s.rival == rival}
        better, worse = (list(surviving.values()).count(word) for word in ("better", "worse"))
        clauses.append(f"{better} for FedTilt and {worse} for {METHOD_TITLES[rival]}")
    return (
        f"**After Holm’s correction** over all {count_tests(scores)} comparisons of FedTilt that this page counts (all "
        "rivals, all metrics with an interval, both kinds of validation data), these differences remain: "
        f"{'; '.join(clauses)}. A cell without a difference is undecided, not shown to be equal."
    )


def _by_condition(accuracy: Sequence[CellScore]) -> str:
    """The range of the difference in accuracy under each condition, and the data sets where it is significant."""
    clauses = []
    for condition in dict.fromkeys(score.condition for score in accuracy):
        selected = [score for score in accuracy if score.condition == condition]
        means = [score.difference.verdict.difference for score in selected if score.difference is not None]
        low, high = (f"{value:+.2f}".replace("-", "−") for value in (min(means), max(means)))
        size = f"{low} to {high}" if low != high else low
        decided = [
            f"{word} on {join_words([score.data for score in selected if score.outcome == word])}"
            for word in ("better", "worse")
            if any(score.outcome == word for score in selected)
        ]
        clauses.append(f"{_CONDITIONS[condition]} {size} ({', '.join(decided) or 'undecided'})")
    return f"In points of accuracy: {'; '.join(clauses)}."


def _count(scores: Sequence[CellScore], word: str) -> int:
    return sum(score.outcome == word for score in scores)
