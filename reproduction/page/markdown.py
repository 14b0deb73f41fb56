"""The reproduction page as Markdown, for reading in a repository."""

import re
from collections.abc import Sequence

from reproduction.chapter import CaptionedFigure, Table, Text, format_cell, is_numeric, verdicts_by_author
from reproduction.page.build import FoldedText, Page, digest, source

HEADER = "Written from the results by `python -m reproduction page`; edit the experiments, not this page."


def as_markdown(page: Page) -> str:
    """The page as Markdown; its figures are the files figures/NAME.svg, see `page.svg`."""
    blocks = [f"<!-- {HEADER} -->", "# The paper, reproduced"]
    blocks += [_part(part) for part in [*page.opening, *page.preamble]]
    blocks.append("---")
    blocks.append("\n".join(f"- [{chapter.title}](#{_anchor(chapter.title)})" for _, chapter in page.chapters))
    for experiment, chapter in page.chapters:
        blocks += [
            f"## {chapter.title}",
            f"*{source(experiment)}* `python -m reproduction {experiment.name}`",
            chapter.lead,
        ]
        blocks += [_part(part) for part in chapter.parts]
        if chapter.verdicts:
            blocks.append("### Verdicts")
        for heading, verdicts in verdicts_by_author(chapter.verdicts).items():
            rows = [[v.claim, f"**{v.holds}**", v.why] for v in verdicts]
            blocks.append(_table([heading, "verdict", "our numbers"], rows, [False] * 3))
    if page.not_measured:
        titles = ", ".join(f"{experiment.title} (`{experiment.name}`)" for experiment in page.not_measured)
        blocks.append(f"## Not measured yet\n\n{titles}.")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _anchor(title: str) -> str:
    """The anchor of a heading, as GitHub forms it.

    >>> _anchor("Clean data")
    'clean-data'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _part(part: Text | FoldedText | Table | CaptionedFigure) -> str:
    if isinstance(part, Text):
        return part.markdown
    if isinstance(part, FoldedText):
        return _folded(part.title, part.markdown)
    if isinstance(part, CaptionedFigure):
        image = f"![{part.caption}](figures/{part.name}.svg)\n\n*{part.caption}*"
        return f"<!-- {part.name} sha256:{digest(part)} -->\n{image}"
    rows = [[format_cell(cell) for cell in row] for row in part.rows]
    numeric = [is_numeric([row[i] for row in rows]) for i in range(len(part.columns))]
    body = _table(part.columns, rows, numeric) + (f"\n\n{part.notes}" if part.notes else "")
    if part.folded:
        return _folded(part.caption, body)
    return f"**{part.caption}**\n\n{body}"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n\n</details>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], right_aligned: Sequence[bool]) -> str:
    lines = [columns, ["---:" if right else "---" for right in right_aligned], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
