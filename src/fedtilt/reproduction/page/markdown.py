"""The page as Markdown, for where a repository is read."""

import re
from collections.abc import Sequence

from fedtilt.reproduction.chapter import CaptionedFigure, Table, Text, numeric, shown, verdicts_by_author
from fedtilt.reproduction.page.build import Page, digest, source

MADE = "Made from the results by `fedtilt reproduce page`; edit the experiments, not this page."


def as_markdown(told: Page) -> str:
    """The page as Markdown; its figures are figures/NAME.svg beside it (see `pictures`)."""
    blocks = [f"<!-- {MADE} -->", "# The paper, reproduced"]
    blocks += [_part(part) for part in told.preamble]
    blocks.append("\n".join(f"- [{chapter.title}](#{_anchor(chapter.title)})" for _, chapter in told.chapters))
    for experiment, chapter in told.chapters:
        blocks += [
            f"## {chapter.title}",
            f"*{source(experiment)}* `fedtilt reproduce {experiment.name}`",
            chapter.lead,
        ]
        blocks += [_part(part) for part in chapter.parts]
        if chapter.verdicts:
            blocks.append("### Verdicts")
        for who, verdicts in verdicts_by_author(chapter.verdicts).items():
            lines = [[v.claim, f"**{v.holds}**", v.why] for v in verdicts]
            blocks.append(_table([who, "verdict", "our numbers"], lines, [0, 0, 0]))
    if told.waiting:
        blocks.append(f"## Not measured yet\n\n{', '.join(f'{e.title} (`{e.name}`)' for e in told.waiting)}.")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _anchor(title: str) -> str:
    """The anchor that a heading gets where Markdown is shown.

    >>> _anchor("Clean data")
    'clean-data'
    """
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _part(part: Text | Table | CaptionedFigure) -> str:
    if isinstance(part, Text):
        return part.markdown
    if isinstance(part, CaptionedFigure):
        picture = f"![{part.caption}](figures/{part.name}.svg)\n\n*{part.caption}*"
        return f"<!-- {part.name} sha256:{digest(part)} -->\n{picture}"
    cells = [[shown(cell) for cell in row] for row in part.rows]
    sides = [1 if numeric([row[i] for row in cells]) else 0 for i in range(len(part.columns))]
    body = _table(part.columns, cells, sides) + (f"\n\n{part.notes}" if part.notes else "")
    if part.folded:
        return f"<details><summary>{part.caption}</summary>\n\n{body}\n\n</details>"
    return f"**{part.caption}**\n\n{body}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], sides: Sequence[int]) -> str:
    lines = [columns, ["---:" if side else "---" for side in sides], *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |" for line in lines
    )
