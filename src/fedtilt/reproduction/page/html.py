"""The page as one HTML file that opens offline."""

import re
from html import escape
from itertools import groupby
from typing import Any

from fedtilt.report import html
from fedtilt.report.tables import csv_text
from fedtilt.reproduction.chapter import (
    CaptionedFigure,
    Chapter,
    Table,
    Text,
    Verdict,
    numeric,
    shown,
    value,
    verdicts_by_author,
)
from fedtilt.reproduction.experiment import Experiment
from fedtilt.reproduction.page.build import Page, source
from fedtilt.version import __version__

_MANY = 9  # columns, beyond which a table stands closer


def as_html(told: Page, *, plots: bool) -> str:
    """The page as one HTML file; without `plots`, it needs no plotly and has no figures."""
    start = "".join(_part(part, plots) for part in told.preamble)
    contents = "".join(f'<li><a href="#{e.name}">{escape(c.title)}</a></li>' for e, c in told.chapters)
    body = "".join(_chapter(experiment, chapter, plots) for experiment, chapter in told.chapters)
    late = ", ".join(f"{e.title} ({e.name})" for e in told.waiting)
    waiting = f'<p class="caution">Not measured yet: {escape(late)}.</p>' if late else ""
    missing = "" if plots else '<p class="caution">Without figures: plotly is not installed here.</p>'
    return html.document(
        title="fedtilt: the paper, reproduced",
        what="reproduction",
        main=f'<section class="overview"><h1>The paper, reproduced</h1>{missing}{waiting}{start}'
        f'<ul class="contents">{contents}</ul></section>{body}',
        footer=f"Written by fedtilt {__version__} from the results of fedtilt reproduce; nothing was trained for it.",
        plots=plots,
    )


def _chapter(experiment: Experiment, chapter: Chapter, plots: bool) -> str:
    body = ""
    for drawn, group in groupby(chapter.parts, key=lambda part: isinstance(part, CaptionedFigure)):
        parts = list(group)
        text = "".join(_part(part, plots) for part in parts)
        wide = any(isinstance(part, CaptionedFigure) and "xaxis2" in part.figure["layout"] for part in parts)
        grid = "grid" if wide or len(parts) == 1 else "grid two"
        body += f'<div class="{grid}">{text}</div>' if drawn else text
    verdicts = "<section><h3>Verdicts</h3>" if chapter.verdicts else ""
    for who, own in verdicts_by_author(chapter.verdicts).items():
        head = "".join(f'<th scope="col">{title}</th>' for title in (who, "verdict", "our numbers"))
        rows = "".join(f"<tr><td>{_inline(v.claim)}</td><td>{_mark(v)}</td><td>{_inline(v.why)}</td></tr>" for v in own)
        verdicts += f'<table class="verdicts"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    verdicts += "</section>" if verdicts else ""
    return f"""<article id="{experiment.name}"><h2 class="name">{escape(chapter.title)}</h2>
<p class="facts">{escape(source(experiment))} <code>fedtilt reproduce {experiment.name}</code></p>
{prose(chapter.lead)}{body}{verdicts}</article>"""


def _mark(verdict: Verdict) -> str:
    return f'<b class="verdict {verdict.holds.replace(" ", "-")}">{verdict.holds}</b>'


def _part(part: Text | Table | CaptionedFigure, plots: bool) -> str:
    if isinstance(part, Text):
        return prose(part.markdown)
    if isinstance(part, CaptionedFigure):
        return _figure(part) if plots else ""
    cells = [[shown(cell) for cell in row] for row in part.rows]
    right = [numeric([row[i] for row in cells]) for i in range(len(part.columns))]
    head = "".join(html.head(title, not side) for title, side in zip(part.columns, right, strict=True))
    body = []
    for row in cells:
        line = "".join(
            f'<td class="number" data-value="{value(cell)}">{_inline(cell)}</td>' if side and cell
            else f'<td><span class="label">{_inline(cell)}</span></td>'
            for cell, side in zip(row, right, strict=True)
        )  # fmt: skip
        body.append(f"<tr>{line}</tr>")
    note = f'<p class="note">{_inline(part.notes)}</p>' if part.notes else ""
    table = html.table(head, body, part.caption)
    table = (f'<div class="dense">{table}</div>' if len(part.columns) > _MANY else table) + note
    if part.folded:
        return f"<details><summary>{_inline(part.caption)}</summary>{table}</details>"
    return f"<section><h3>{_inline(part.caption)}</h3>{table}</section>"


def _figure(part: CaptionedFigure) -> str:
    lines: list[tuple[Any, ...]] = [("line", "x", "y")]
    for trace in part.figure["data"]:
        if "fill" in trace:  # a band: its outline is no data
            continue
        named = trace.get("text") if isinstance(trace.get("text"), list) else trace.get("x") or []
        lines += [(trace.get("name", ""), x, y) for x, y in zip(named, trace.get("y") or [], strict=False)]
    layout = {"height": 360} | part.figure["layout"]
    return html.figure(
        part.name, title=part.caption, note="", data=part.figure["data"], layout=layout, csv=csv_text(lines)
    )


def prose(markdown: str) -> str:
    """Paragraphs and lists as HTML.

    >>> prose("One **two**.")
    '<p>One <b>two</b>.</p>'
    """
    blocks = []
    for block in re.split(r"\n\s*\n", markdown.strip()):
        lines = block.strip().splitlines()
        if lines and all(line.startswith(("- ", "  ")) for line in lines):
            items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
            blocks.append("<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>")
        elif lines:
            blocks.append(f"<p>{_inline(block)}</p>")
    return "".join(blocks)


def _inline(markdown: str) -> str:
    """Bold, italics, code and links; everything else is escaped.

    >>> _inline("a < `b` [c](d)")
    'a &lt; <code>b</code> <a href="d">c</a>'
    """
    out = html.text(markdown.strip()).replace("&lt;br&gt;", "<br>")
    out = re.sub(r"`([^`]+)`", r"<code>\1</code>", out)
    out = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", out)
    out = re.sub(r"(?<![\w*])\*([^*\n]+)\*(?![\w*])", r"<i>\1</i>", out)
    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", r'<a href="\2">\1</a>', out)
