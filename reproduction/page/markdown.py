"""The front page of the reproduction, which is committed, and its chapters, which the documentation site builds."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from fedtilt.report.html import inline_json
from reproduction.chapter import (
    CaptionedFigure,
    Chapter,
    FoldedText,
    Part,
    Table,
    Text,
    format_cell,
    is_numeric,
    verdicts_by_author,
)
from reproduction.page.build import VERDICTS, Page, digest, source, themed

FRONT = Path(__file__).parents[1] / "front.md"
LEADERBOARD = "federations.md"  # in the folder above that of the front page
_BLOCK = ("<!-- written by `python -m reproduction page --to docs/reproduction` -->", "<!-- end -->")
_RANKS = 10  # methods of a table there; the chapter has all
_FOLDED = 2  # folded tables there


def front_page(page: Page) -> tuple[str, list[CaptionedFigure]]:
    """The front page and its figures, which are the files figures/NAME.svg beside it."""
    figures = {figure.name: figure for figure in page.figures}
    chapters = {experiment.name: chapter for experiment, chapter in page.chapters}
    shown: list[CaptionedFigure] = []

    def figure(name: str) -> str:
        if name not in figures:
            return "Not measured yet."
        shown.append(figures[name])
        return _image(figures[name])

    def table(name: str, number: int = 0, rows: int | None = None) -> str:
        tables = [part for part in chapters[name].parts if isinstance(part, Table)] if name in chapters else []
        return _markdown_table(tables[number].columns, tables[number].rows[:rows]) if tables else "Not measured yet."

    def agreement(name: str) -> str:
        tables = [part for part in chapters[name].parts if isinstance(part, Table)] if name in chapters else []
        return "\n".join(f"- {table.caption}: {table.notes.partition(' Published:')[0]}" for table in tables)

    environment = Environment(undefined=StrictUndefined, autoescape=False, trim_blocks=True, keep_trailing_newline=True)
    text = environment.from_string(FRONT.read_text("utf-8")).render(
        opening="\n\n".join(_image(p) if isinstance(p, CaptionedFigure) else _part(p) for p in page.opening),
        claims=_claims_table(page), figure=figure, table=table, agreement=agreement,
        chapters=["how-it-was-measured", *chapters], missing=[experiment.title for experiment in page.not_measured],
    )  # fmt: skip
    return text, [part for part in page.opening if isinstance(part, CaptionedFigure)] + shown


def site_pages(page: Page) -> dict[str, str]:
    """File name without .md → a page of the documentation site: how it was measured, then every chapter."""
    about = ["# How it was measured", *(_part(part) for part in page.preamble)]
    pages = {"how-it-was-measured": "\n\n".join(about) + "\n"}
    for experiment, chapter in page.chapters:
        head = (
            f"*{source(experiment)}* `python -m reproduction {experiment.name}`. {page.measured_with(experiment.name)}"
        )
        blocks = [f"# {chapter.title}", head, chapter.lead, *(_part(part) for part in chapter.parts)]
        blocks += _verdicts(chapter)
        pages[experiment.name] = "\n\n".join(block for block in blocks if block) + "\n"
    return pages


def with_leaderboard(text: str, page: Page) -> str:
    """docs/federations.md with the tables of the chapter between its two comments."""
    chapters = {experiment.name: chapter for experiment, chapter in page.chapters}
    tables = [part for part in chapters["federations"].parts if isinstance(part, Table)]
    ranks = [replace(table, rows=table.rows[:_RANKS]) for table in tables if not table.folded]
    folded = [table for table in tables if table.folded][:_FOLDED]
    start, end = _BLOCK
    before, _, rest = text.partition(start)
    blocks = "\n\n".join(_part(part) for part in [*ranks, *folded])
    return f"{before}{start}\n\n{blocks}\n\n{end}{rest.partition(end)[2]}"


def _claims_table(page: Page) -> str:
    """How many claims of each chapter hold, its command, and the versions it was measured with."""
    rows = []
    for experiment, chapter in page.chapters:
        counts = Counter(verdict.holds for verdict in chapter.verdicts)
        listed = ", ".join(f"{counts[holds]} {holds}" for holds in VERDICTS if counts[holds])
        rows.append(
            [chapter.title, listed, f"`python -m reproduction {experiment.name}`", page.versions(experiment.name)]
        )
    return _markdown_table(["chapter", "claims", "command", "measured with"], rows)


def _verdicts(chapter: Chapter) -> list[str]:
    tables = [
        _markdown_table([heading, "verdict", "our numbers"], [[v.claim, f"**{v.holds}**", v.why] for v in verdicts])
        for heading, verdicts in verdicts_by_author(chapter.verdicts).items()
    ]
    return ["## Verdicts", *tables] if tables else []


def _part(part: Part) -> str:
    if isinstance(part, Text):
        return part.markdown
    if isinstance(part, FoldedText):
        return _folded(part.title, part.markdown)
    if isinstance(part, CaptionedFigure):  # docs/_static/figures.js draws it
        content = f'<script type="application/json">{inline_json(themed(part))}</script>'
        return f'<figure class="plot" id="{part.name}">{content}</figure>\n\n*{part.caption}*'
    body = _markdown_table(part.columns, part.rows) + (f"\n\n{part.notes}" if part.notes else "")
    return _folded(part.caption, body) if part.folded else f"**{part.caption}**\n\n{body}"


def _image(figure: CaptionedFigure) -> str:
    image = f"![{figure.caption}](figures/{figure.name}.svg)\n\n*{figure.caption}*"
    return f"<!-- {figure.name} sha256:{digest(figure)} -->\n{image}"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    texts = [[format_cell(cell) for cell in row] for row in rows]
    right_aligned = [is_numeric([row[i] for row in texts]) for i in range(len(columns))]
    lines = [columns, ["---:" if right else "---" for right in right_aligned], *texts]
    return "\n".join(
        "| " + " | ".join(re.sub("\n", " ", cell.replace("|", "\\|")) for cell in line) + " |" for line in lines
    )
