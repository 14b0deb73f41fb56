"""The comparison as Markdown and CSV."""

import csv as csv_format
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedtilt.report.compare import MEANINGS, METRICS, VIEWS, Metric, Row, SeedValues, best_and_tied, views
from fedtilt.report.run_reader import Run
from fedtilt.report.summary import cautions, facts, failures, headline

Published = Mapping[str, Mapping[str, float]]  # method → metric (as in results.json) → value


def as_markdown(runs: Sequence[Run], published: Sequence[Published]) -> str:
    """A section per run: the finding, then a table per view; the best and its ties are bold."""
    blocks = []
    for run, known in zip(runs, published, strict=True):
        blocks += [f"## {_plain(run.name)}", f"{_plain(facts(run))}."]
        blocks += [f"**{_plain(headline(run))}** {_plain(failures(run))}", _plain(" ".join(cautions(run)))]
        for view, table in views(run).items():
            blocks += [f"### {VIEWS[view][0]}", MEANINGS[view], _markdown(table, known if view == "evaluated" else {})]
    return "\n\n".join(blocks) + "\n"


def as_csv(runs: Sequence[Run], published: Sequence[Published]) -> str:
    """One row per run, method and view, every metric with its standard deviation over seeds, unrounded."""
    head = ["run", "method", "models", "round", "seeds"]
    head += [name for m in METRICS for name in (m.key, f"{m.key}_seed_std")]
    compared = [m for m in METRICS if any(m.key in row for known in published for row in known.values())]
    lines: list[list[Any]] = [head + [f"{m.key}_published" for m in compared]]
    for run, known in zip(runs, published, strict=True):
        for view, table in views(run).items():
            for method, row in table.items():
                line = [run.name, method, view, run.round, len(row["accuracy"].values)]
                line += [value for m in METRICS for value in (row[m.key].mean, row[m.key].std)]
                shown = known.get(method, {}) if view == "evaluated" else {}
                lines.append(line + [shown.get(m.key) for m in compared])
    return csv_text(lines)


def csv_text(lines: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV; floats in full, None as nothing."""
    out = io.StringIO()
    csv_format.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def format_mean_std(cell: SeedValues) -> str:
    """A cell as text.

    >>> format_mean_std(SeedValues((1.0, 3.0))), format_mean_std(SeedValues((2.5,)))
    ('2.00 ± 1.41', '2.50')
    """
    return f"{cell.mean:.2f}" + ("" if cell.std is None else f" ± {cell.std:.2f}")


def format_difference(cell: SeedValues, published: float) -> str:
    """Ours minus theirs, with its sign.

    >>> format_difference(SeedValues((96.0,)), 97.1)
    '−1.10'
    """
    return f"{cell.mean - published:+.2f}".replace("-", "−")


def _markdown(table: Mapping[str, Row], known: Published) -> str:
    leaders = {m.key: best_and_tied(table, m) for m in METRICS}
    lines = [["method", *(m.title for m in METRICS)], ["---", *("---:" for _ in METRICS)]]
    for method, row in table.items():
        cells = [_cell(row, m, method in leaders[m.key] and len(table) > 1) for m in METRICS]
        lines.append([_plain(method), *cells])
        if known.get(method):
            shown = known[method]
            lines.append(["published", *(f"{shown[m.key]:.2f}" if m.key in shown else "" for m in METRICS)])
            gaps = (format_difference(row[m.key], shown[m.key]) if m.key in shown else "" for m in METRICS)
            lines.append(["difference", *gaps])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: Row, metric: Metric, leads: bool) -> str:
    text = format_mean_std(row[metric.key])
    return f"**{text}**" if leads else text


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: names come from users."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in text)
