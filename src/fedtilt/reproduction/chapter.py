"""What an experiment has to say: text, tables, figures and a verdict on every claim, before anything is drawn."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fedtilt.reproduction.experiment import Claim

Holds = Literal["holds", "holds partly", "does not hold", "one seed", "not measured"]  # one seed: too few to say


@dataclass(frozen=True, kw_only=True)
class Text:
    """Markdown paragraphs."""

    markdown: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; floats are shown with two decimals, strings are Markdown and shown as they are."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    notes: str = ""
    folded: bool = False  # on a page it opens on demand, and the terminal leaves it out


@dataclass(frozen=True, kw_only=True)
class CaptionedFigure:
    """What plotly draws, as its plain JSON: {"data": [traces], "layout": {…}}; plotly itself is not needed to make one.

    Text, grid and background take the page's colours (light and dark), so traces alone carry colours; `layout` should
    give a height. See `fedtilt.report.figures` for the house's look.
    """

    name: str  # of its file, unique on the page
    caption: str
    figure: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a claim holds in the numbers at hand."""

    claim: str
    holds: Holds
    why: str  # the numbers that decide, then our guess at the reason
    ours: bool = False  # the paper does not say it


def verdict_on(claim: Claim, holds: Holds, numbers: str = "") -> Verdict:
    """A claim with what was found; our guess stands only beside a claim that fails, in full or in part.

    >>> claim = Claim(text="It is so.", guess="Our guess: it rained.")
    >>> [verdict_on(claim, holds, "2 of 3.").why for holds in ("holds", "holds partly", "not measured")]
    ['2 of 3.', '2 of 3. Our guess: it rained.', '2 of 3.']
    """
    told = [numbers]
    if holds in ("holds partly", "does not hold"):
        told.append(claim.guess)
    if holds == "not measured":
        told.append(claim.unmeasured)
    return Verdict(claim=claim.text, holds=holds, why=" ".join(filter(None, told)), ours=claim.ours)


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """One experiment on the page."""

    title: str
    lead: str  # a Markdown paragraph
    parts: Sequence[Text | Table | CaptionedFigure] = ()
    verdicts: Sequence[Verdict] = field(default_factory=tuple)


def verdicts_by_author(verdicts: Sequence[Verdict]) -> dict[str, list[Verdict]]:
    """Who says it → the verdicts: the paper's claims and ours are told apart."""
    both = {"the paper says": [v for v in verdicts if not v.ours], "we say": [v for v in verdicts if v.ours]}
    return {who: own for who, own in both.items() if own}


def shown(cell: str | float) -> str:
    """A cell as text."""
    return f"{cell:.2f}" if isinstance(cell, float) else cell


def value(cell: str) -> float | None:
    """The number that a cell begins with.

    >>> value("**98.50 ± 0.10**<br>98.53 (−0.03)"), value("FedAvg")
    (98.5, None)
    """
    found = re.match(r"[*\s]*([−-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.+-])", cell)
    return float(found[1].replace("−", "-")) if found else None


def numeric(cells: Sequence[str]) -> bool:
    """Whether a column holds numbers, and stands to the right."""
    return bool(cells) and all(value(cell) is not None for cell in cells if cell)
