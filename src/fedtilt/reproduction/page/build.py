"""The page: what all the results in a folder have to say, before `markdown` or `web` writes it."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from fedtilt.reproduction.chapter import CaptionedFigure, Chapter, Holds, Table, Text, Verdict
from fedtilt.reproduction.comparison.dataset_comparison import (
    COMPARED_METRICS,
    TITLES,
    DatasetComparison,
    Outcome,
    compare_datasets,
    count_outcomes,
    row_titles,
)
from fedtilt.reproduction.experiment import NAMES, Experiment
from fedtilt.reproduction.results_folder import CaseResult, ResultsFolder
from fedtilt.reproduction.runner import chapter_of, quick_only, readable
from fedtilt.reproduction.statistics import false_positive_rate

RIVALS = ("ditto-validated", "ditto", "fedavg")
OUTCOMES: dict[Outcome, str] = {
    "better": "better", "tied": "tied", "worse": "worse", "ahead": "one seed: ahead", "not ahead": "one seed: not",
    "not measured": "not measured",
}  # fmt: skip
QUICK_LOOK = "A quick look: few rounds, one seed, small grids. Nothing here is a result."
VERDICTS: tuple[Holds, ...] = ("holds", "holds partly", "does not hold", "one seed", "not measured")


@dataclass(frozen=True, kw_only=True)
class Page:
    """All that is to be told."""

    chapters: list[tuple[Experiment, Chapter]]
    waiting: list[Experiment]  # nothing of them is measured yet
    quick: bool  # some of it is a quick look
    preamble: list[Text | Table]  # what comes before the chapters

    @property
    def figures(self) -> list[CaptionedFigure]:
        """Every figure, in order."""
        return [part for _, chapter in self.chapters for part in chapter.parts if isinstance(part, CaptionedFigure)]


def build_page(book: ResultsFolder) -> Page:
    """Everything that a results folder has to say."""
    chapters, waiting, entries = [], [], {}
    compared: list[DatasetComparison] = []
    names: dict[str, str] = {}
    quick = quick_only(book)
    for name in NAMES:
        experiment, results = readable(book, name, quick=quick)
        if experiment.kind == "comparison":
            compared += compare_datasets(experiment, results).values()
            names = names or row_titles(experiment)
        if not results:
            waiting.append(experiment)
            continue
        chapters.append((experiment, chapter_of(book, experiment, results, quick=quick)))
        entries[name] = [entry for entry in book.entries(name) if entry.case in results]
    preamble: list[Text | Table] = [Text(markdown=_preface())]
    if quick:
        preamble.insert(0, Text(markdown=f"**{QUICK_LOOK}** The settings told below are those of full runs."))
    if book.notes:
        preamble.append(Text(markdown=book.notes))
    preamble.append(_verdict_count([verdict for _, chapter in chapters for verdict in chapter.verdicts]))
    if any(standing.seeds for standing in compared):
        preamble.append(_score(compared, names))
    if entries:
        preamble.append(_origin(entries))
    return Page(chapters=chapters, waiting=waiting, quick=quick, preamble=preamble)


def _preface() -> str:
    return (resources.files("fedtilt.reproduction") / "preface.md").read_text("utf-8").strip()


def _verdict_count(verdicts: Sequence[Verdict]) -> Text:
    if not verdicts:
        return Text(markdown="**No claim is judged yet.**")
    lines = []
    for whose, ours in (("the paper’s", False), ("our own", True)):
        own = [verdict.holds for verdict in verdicts if verdict.ours == ours]
        counts = Counter(own)
        told = ", ".join(f"{counts[kind]} {_plural(kind, counts[kind])}" for kind in VERDICTS if counts[kind])
        if own:
            claims = "1 claim" if len(own) == 1 else f"{len(own)} claims"
            lines.append(f"Of {whose} {claims}, {told}.")
    return Text(markdown=f"**{' '.join(lines)}**")


def _plural(kind: Holds, count: int) -> str:
    """A verdict as a verb.

    >>> _plural("holds partly", 2), _plural("does not hold", 1)
    ('hold partly', 'does not hold')
    """
    one, many = {
        "holds": ("holds", "hold"),
        "holds partly": ("holds partly", "hold partly"),
        "does not hold": ("does not hold", "do not hold"),
        "one seed": ("rests on one seed", "rest on one seed"),
        "not measured": ("is not measured", "are not measured"),
    }[kind]
    return one if count == 1 else many


def _score(compared: list[DatasetComparison], names: dict[str, str]) -> Table:
    rows: list[list[str | float]] = []
    against = [(rival, "evaluated", names[rival]) for rival in RIVALS]
    against.append(("fedavg", "shared", f"{names['fedavg']}, w against w"))
    counts = {
        (title, TITLES[metric.key]): count_outcomes(compared, rival, metric, view)
        for rival, view, title in against
        for metric in COMPARED_METRICS
    }
    # of what need not be there, columns stand only where something is in them
    kept = [o for o in OUTCOMES if o in ("better", "tied", "worse") or any(count[o] for count in counts.values())]
    rows += [[*names, *(str(count[outcome]) for outcome in kept)] for names, count in counts.items()]
    alone = any(count["ahead"] + count["not ahead"] for count in counts.values())
    return Table(
        caption=f"In how many of {len(compared)} cells FedTilt (validated) is better than the others, tied, or worse",
        columns=["against", "metric", *(OUTCOMES[outcome] for outcome in kept)],
        rows=rows,
        notes="A cell is a data set under a condition (clean, corruptions, Gaussian noise, label flips). Better and "
        f"worse: beyond one standard error of the paired difference over seeds{_told_apart(compared)}. FedAvg has no "
        "personal models, so its rows tell above all what those are worth to clients of two classes; what the tilts do "
        "to the shared model is told w against w."
        + (" One seed has no standard error; there, the better figure alone is told." if alone else ""),
    )


def _told_apart(compared: list[DatasetComparison]) -> str:
    """How often chance alone would tell two equal methods apart, with as many seeds as the cells have."""
    counts = sorted({len(standing.seeds) for standing in compared} - {0, 1}, reverse=True)
    shares = [
        f"{2 * false_positive_rate(count):.0%} of the cells with {count} seeds".replace("%", " %") for count in counts
    ]
    return f"; two equal methods would be told apart so, by chance, in {', in '.join(shares)}" if shares else ""


def _origin(entries: dict[str, list[CaseResult]]) -> Table:
    rows: list[list[str | float]] = []
    for name, own in entries.items():
        machines: dict[tuple[str, str, str], list[float]] = {}
        for e in own:
            key = e.environment["device"], e.environment["torch"], e.environment["fedtilt"]
            machines.setdefault(key, []).append(e.seconds)
        for machine, seconds in sorted(machines.items()):
            rows.append([name, str(len(seconds)), *machine, f"{sum(seconds) / 60:.1f}"])
    return Table(
        caption="What ran where",
        columns=["experiment", "cases", "device", "torch", "fedtilt", "minutes"],
        rows=rows,
        folded=True,
    )


def digest(figure: CaptionedFigure) -> str:
    """A figure's content in 64 letters, so that a page and its pictures can be held against the results."""
    bare = {
        "layout": figure.figure["layout"],
        "data": [{key: value for key, value in trace.items() if key != "source"} for trace in figure.figure["data"]],
    }
    return hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()


def source(experiment: Experiment) -> str:
    """Where the paper has it."""
    return f"Paper: {experiment.source}." if experiment.source else "Not in the paper."
