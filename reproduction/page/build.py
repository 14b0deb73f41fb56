"""The content of the reproduction page, from all results in a folder; `markdown` and `html` write it."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtilt.version import __version__
from reproduction.chapter import CaptionedFigure, Chapter, FoldedText, Holds, Part, Table, Text, Verdict
from reproduction.experiment import NAMES, Experiment, Results
from reproduction.experiments.paired import DatasetComparison
from reproduction.experiments.tuned import compare_cells
from reproduction.page.chance import chance_table
from reproduction.page.impossible import impossible_table
from reproduction.page.opening import opening
from reproduction.results import CaseResult, ResultsFolder
from reproduction.runner import load_results, quick_only, read_chapter

_AXIS = {"gridcolor": "#eceef1", "linecolor": "#e2e5e9", "zerolinecolor": "#e2e5e9", "automargin": True}
# the page's light theme; the background is opaque, because a repository may be shown on black
_TEMPLATE = {
    "layout": {
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "#1d2127"},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "coloraxis": {"colorscale": [[0, "#8c2d04"], [0.25, "#d9731f"], [0.5, "#f3b67a"], [1, "#8fbbdd"]]},
    }
}
QUICK_RUN = "A quick run: few rounds, one seed, small grids. Nothing here is a result."
VERDICTS: tuple[Holds, ...] = ("holds", "holds partly", "does not hold", "one seed", "not measured")


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of the page."""

    opening: list[Part]
    preamble: list[Part]  # how it was measured
    chapters: list[tuple[Experiment, Chapter]]
    not_measured: list[Experiment]  # experiments without any result
    records: dict[str, list[CaseResult]]  # of every chapter

    def has(self, name: str) -> bool:
        """Whether an experiment has results."""
        return any(experiment.name == name for experiment, _ in self.chapters)

    def versions(self, name: str) -> str:
        """The versions of fedtilt that measured a chapter; older ones are marked."""
        counts = Counter(record.environment["fedtilt"] for record in self.records[name])
        cases = {version: f" ({count} cases)" if len(counts) > 1 else "" for version, count in counts.items()}
        return "; ".join(
            version + ("" if version == __version__ else ", older") + cases[version] for version in sorted(counts)
        )

    def measured_with(self, name: str) -> str:
        """A sentence on the versions that measured a chapter."""
        return f"Measured with fedtilt {self.versions(name)}; this is {__version__}."

    @property
    def figures(self) -> list[CaptionedFigure]:
        """Every figure, in order."""
        parts = [*self.opening, *(part for _, chapter in self.chapters for part in chapter.parts)]
        return [part for part in parts if isinstance(part, CaptionedFigure)]


def build_page(folder: ResultsFolder) -> Page:
    """The page on all results of a folder."""
    chapters, not_measured, results_of = [], [], {}
    loaded: list[tuple[Experiment, Results]] = []
    comparisons: list[DatasetComparison] = []
    quick = quick_only(folder)
    for name in NAMES:
        experiment, results = load_results(folder, name, quick=quick)
        loaded.append((experiment, results))
        if name == "tuned":  # the opening compares these
            comparisons += compare_cells(experiment, results).values()
        if not results:
            not_measured.append(experiment)
            continue
        chapters.append((experiment, read_chapter(folder, name, quick=quick)))
        results_of[name] = [stored for stored in folder.records(name).values() if stored.case in results]
    first: list[Part] = []
    preamble: list[Part] = []
    if quick:
        first.append(Text(markdown=f"**{QUICK_RUN}** The settings described below are those of full runs."))
    if any(comparison.seeds for comparison in comparisons):
        first += opening(comparisons)
    if folder.caution:
        first.append(Text(markdown=folder.caution))
    first.append(_count_verdicts([verdict for _, chapter in chapters for verdict in chapter.verdicts]))
    preamble.insert(0, FoldedText(title="Metrics, settings, and what “better” and “holds” mean", markdown=_preface()))
    impossible = impossible_table([experiment for experiment, _ in loaded])
    if impossible:
        preamble.append(impossible)
    paper = [(experiment, results) for experiment, results in loaded if experiment.kind == "comparison"]
    chance = chance_table([(experiment, results) for experiment, results in paper if results])
    if chance:
        preamble.append(chance)
    if folder.notes:
        preamble.append(FoldedText(title="Notes on these runs", markdown=folder.notes))
    if results_of:
        preamble.append(_environment_table(results_of))
    return Page(opening=first, preamble=preamble, chapters=chapters, not_measured=not_measured, records=results_of)


def _preface() -> str:
    return (Path(__file__).parents[1] / "preface.md").read_text("utf-8").strip()


def _count_verdicts(verdicts: Sequence[Verdict]) -> Text:
    if not verdicts:
        return Text(markdown="**No claim is checked yet.**")
    sentences = []
    for author, ours in (("the paper’s", False), ("our own", True)):
        counts = Counter(verdict.holds for verdict in verdicts if verdict.ours == ours)
        listed = ", ".join(f"{counts[holds]} {_verb(holds, counts[holds])}" for holds in VERDICTS if counts[holds])
        if counts:
            claims = "1 claim" if counts.total() == 1 else f"{counts.total()} claims"
            sentences.append(f"Of {author} {claims}, {listed}.")
    return Text(markdown=f"**{' '.join(sentences)}**")


def _verb(holds: Holds, count: int) -> str:
    """A verdict as a verb.

    >>> _verb("holds partly", 2), _verb("does not hold", 1)
    ('hold partly', 'does not hold')
    """
    singular, plural = {
        "holds": ("holds", "hold"),
        "holds partly": ("holds partly", "hold partly"),
        "does not hold": ("does not hold", "do not hold"),
        "one seed": ("rests on one seed", "rest on one seed"),
        "not measured": ("is not measured", "are not measured"),
    }[holds]
    return singular if count == 1 else plural


def _environment_table(results_of: dict[str, list[CaseResult]]) -> Table:
    rows: list[list[str | float]] = []
    for name, results in results_of.items():
        seconds_on: dict[tuple[str, str, str], list[float]] = {}
        for result in results:
            machine = tuple(result.environment[key] for key in ("device", "torch", "fedtilt"))
            seconds_on.setdefault(machine, []).append(result.seconds)
        for machine, seconds in sorted(seconds_on.items()):
            rows.append([name, str(len(seconds)), *machine, f"{sum(seconds) / 60:.1f}"])
    return Table(
        caption="Where the experiments ran",
        columns=["experiment", "cases", "device", "torch", "fedtilt", "minutes"],
        rows=rows,
        folded=True,
    )


def themed(figure: CaptionedFigure) -> dict[str, Any]:
    """The figure in colours for a page that has none of its own."""
    return {
        "data": figure.figure["data"],
        "layout": {"height": 360} | figure.figure["layout"] | {"template": _TEMPLATE},
    }


def digest(figure: CaptionedFigure) -> str:
    """The SHA-256 of a figure's JSON, which shows whether its SVG file is up to date."""
    return hashlib.sha256(json.dumps(figure.figure, sort_keys=True).encode()).hexdigest()


def source(experiment: Experiment) -> str:
    """Where the paper has the experiment."""
    return f"Paper: {experiment.source}." if experiment.source else "Not in the paper."
