"""The report of one experiment as data: text, tables, figures and a verdict on every claim."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reproduction.experiment import Claim

Holds = Literal["holds", "holds partly", "does not hold", "one seed", "not measured"]  # one seed: too few to decide


@dataclass(frozen=True, kw_only=True)
class Text:
    """Markdown paragraphs."""

    markdown: str


@dataclass(frozen=True, kw_only=True)
class FoldedText:
    """Markdown under a heading that opens it."""

    title: str
    markdown: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; floats are shown with two decimals, strings are Markdown."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    notes: str = ""
    folded: bool = False  # collapsed on the page, and not printed in the terminal


@dataclass(frozen=True, kw_only=True)
class CaptionedFigure:
    """A Plotly figure as plain JSON, {"data": [traces], "layout": {…}}; building one does not import plotly.

    The page sets the colours of text, grid and background (light and dark), so only traces have colours; `layout`
    should give a height. `fedtilt.report.figure` has the colours of methods.
    """

    name: str  # of its file, unique on the page
    caption: str
    figure: dict[str, Any]


Part = Text | FoldedText | Table | CaptionedFigure


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a claim holds in the results."""

    claim: str
    holds: Holds
    why: str  # the numbers that decide, then our guess at the reason
    ours: bool = False  # our claim, not the paper's


def verdict_on(claim: Claim, holds: Holds, numbers: str = "") -> Verdict:
    """The verdict on a claim, with its numbers; our guess is added only where the claim fails, in full or in part.

    >>> claim = Claim(text="Tilts help.", guess="Our guess: too few rounds.")
    >>> [verdict_on(claim, holds, "2 of 3.").why for holds in ("holds", "holds partly", "not measured")]
    ['2 of 3.', '2 of 3. Our guess: too few rounds.', '2 of 3.']
    """
    sentences = [numbers]
    if holds in ("holds partly", "does not hold"):
        sentences.append(claim.guess)
    if holds == "not measured":
        sentences.append(claim.unmeasured)
    return Verdict(claim=claim.text, holds=holds, why=" ".join(filter(None, sentences)), ours=claim.ours)


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """One experiment on the page."""

    title: str
    lead: str  # a Markdown paragraph
    parts: Sequence[Part] = ()
    verdicts: Sequence[Verdict] = field(default_factory=tuple)


def verdicts_by_author(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """The verdicts on the paper's claims and on ours, under a heading each; a heading without verdicts is skipped."""
    groups = {"the paper says": [v for v in verdicts if not v.ours], "we say": [v for v in verdicts if v.ours]}
    return {heading: group for heading, group in groups.items() if group}


def format_cell(cell: str | float) -> str:
    """A table cell as text."""
    return f"{cell:.2f}" if isinstance(cell, float) else cell


def leading_number(cell: str) -> float | None:
    """The number at the start of a cell.

    >>> leading_number("**98.50 ± 0.10**<br>98.53 (−0.03)"), leading_number("FedAvg")
    (98.5, None)
    >>> leading_number("+0.50 (−0.10 to +1.10)")
    0.5
    """
    match = re.match(r"[*\s]*([+−-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.+-])", cell)
    return float(match[1].replace("−", "-")) if match else None


def is_numeric(column: Sequence[str]) -> bool:
    """Whether all filled cells of a column start with a number; such a column is right-aligned."""
    return bool(column) and all(leading_number(cell) is not None for cell in column if cell)
