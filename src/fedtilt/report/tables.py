"""The comparison as Markdown and CSV."""

import math
from collections.abc import Sequence
from typing import Any

from fedtilt.evaluation.results import SeedValues
from fedtilt.evaluation.verdicts import Verdict
from fedtilt.report import compare, summary
from fedtilt.report.notes import notes
from fedtilt.report.run_reader import Run
from fedtilt.report.verdict import thresholds, verdict
from fedtilt.text_tables import csv_text, markdown_table, markdown_text


def as_markdown(runs: Sequence[Run], published: Sequence[compare.Published]) -> str:
    """A section per run: the summary, then a table per view; what is not told apart from the best is bold."""
    compare.check_splits(runs)
    blocks = []
    for run, numbers in zip(runs, published, strict=True):
        blocks += [f"## {markdown_text(run.name)}", f"{markdown_text(summary.facts(run))}."]
        blocks.append(f"**{markdown_text(summary.headline(run))}** {markdown_text(summary.worst_scores(run))}".rstrip())
        if text := summary.fairness_beyond_chance(run):
            blocks.append(markdown_text(f"Client fairness beyond chance, {text}."))
        blocks.append(markdown_text(" ".join([*verdict(run), *thresholds(run), *(note.text for note in notes(run))])))
        if text := summary.certificates(run):
            blocks.append(markdown_text(text))
        for table in compare.view_tables(run, numbers):
            blocks += [f"### {table.view.title}", table.view.description, _markdown_table(table)]
    return "\n\n".join(blocks) + "\n"


def as_csv(runs: Sequence[Run], published: Sequence[compare.Published]) -> str:
    """One row per run, method and view, every metric with its standard deviation over seeds, unrounded."""
    metrics = compare.metrics_of(*runs)
    header = ["run", "method", "models", "round", "seeds"]
    header += [name for m in metrics for name in (m.key, f"{m.key}_seed_std")]
    published_metrics = [m for m in metrics if any(m.key in row for numbers in published for row in numbers.values())]
    lines: list[list[Any]] = [header + [f"{m.key}_published" for m in published_metrics]]
    for run, numbers in zip(runs, published, strict=True):
        for view, table in [*compare.comparison_tables(run).items(), ("baseline", compare.baseline_table(run))]:
            for method, row in table.items():
                line = [run.name, method, view, run.round, len(row[metrics[0].key].values)]
                line += [value for m in metrics for value in (row[m.key].mean, row[m.key].std)]
                method_numbers = numbers.get(method, {}) if view == "evaluated" else {}
                lines.append(line + [method_numbers.get(m.key) for m in published_metrics])
    return csv_text(lines)


def format_mean_std(values: SeedValues, digits: int = 2) -> str:
    """Mean ± standard deviation over seeds.

    >>> format_mean_std(SeedValues((1.0, 3.0))), format_mean_std(SeedValues((2.5,)))
    ('2.00 ± 1.41', '2.50')
    """
    return f"{values.mean:.{digits}f}" + ("" if values.std is None else f" ± {values.std:.{digits}f}")


def format_difference(values: SeedValues, published: float) -> str:
    """The mean minus the published number, with its sign.

    >>> format_difference(SeedValues((96.0,)), 97.1)
    '−1.10'
    """
    return f"{values.mean - published:+.2f}".replace("-", "−")


def format_interval(verdict: Verdict) -> str:
    """A difference and its interval, if there is one.

    >>> format_interval(Verdict(2.0, -0.48, 4.48, 0.07)), format_interval(Verdict(1.0, -math.inf, math.inf, 1.0))
    ('+2.00 (−0.48 to +4.48)', '+1.00')
    """
    text = f"{verdict.difference:+.2f}"
    if math.isfinite(verdict.low):
        text += f" ({verdict.low:+.2f} to {verdict.high:+.2f})"
    return text.replace("-", "−")


def _markdown_table(table: compare.ViewTable) -> str:
    lines: list[list[str]] = []
    for method, cells in table.rows.items():
        texts = [format_mean_std(cell.values, cell.digits) for cell in cells]
        bold = [f"**{text}**" if cell.is_best else text for text, cell in zip(texts, cells, strict=True)]
        lines.append([markdown_text(method), *bold])
        if any(cell.published is not None for cell in cells):
            lines.append(["published", *("" if c.published is None else f"{c.published:.2f}" for c in cells)])
            differences = ("" if c.published is None else format_difference(c.values, c.published) for c in cells)
            lines.append(["difference", *differences])
    for name, found in table.baselines.items():
        texts = ["" if cell is None else format_mean_std(cell.values, cell.digits) for cell in found]
        lines.append([f"*{markdown_text(name)}*", *texts])
    return markdown_table(["method", *(m.title for m in table.metrics)], lines, "---:")
