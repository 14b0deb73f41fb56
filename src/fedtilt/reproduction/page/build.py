"""The content of the reproduction page, from all results in a folder; `markdown` and `html` write it."""

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
from fedtilt.reproduction.runner import chapter_of, load_results, quick_only
from fedtilt.reproduction.statistics import false_positive_rate

RIVALS = ("ditto-validated", "ditto", "fedavg")
OUTCOMES: dict[Outcome, str] = {
    "better": "better", "tied": "tied", "worse": "worse", "ahead": "one seed: ahead", "not ahead": "one seed: not",
    "not measured": "not measured",
}  # fmt: skip
QUICK_RUN = "A quick run: few rounds, one seed, small grids. Nothing here is a result."
VERDICTS: tuple[Holds, ...] = ("holds", "holds partly", "does not hold", "one seed", "not measured")


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of the page."""

    chapters: list[tuple[Experiment, Chapter]]
    not_measured: list[Experiment]  # experiments without any result
    preamble: list[Text | Table]  # comes before the chapters

    @property
    def figures(self) -> list[CaptionedFigure]:
        """Every figure, in order."""
        return [part for _, chapter in self.chapters for part in chapter.parts if isinstance(part, CaptionedFigure)]


def build_page(folder: ResultsFolder) -> Page:
    """The page on all results of a folder."""
    chapters, not_measured, results_of = [], [], {}
    comparisons: list[DatasetComparison] = []
    titles: dict[str, str] = {}
    quick = quick_only(folder)
    for name in NAMES:
        experiment, results = load_results(folder, name, quick=quick)
        if experiment.kind == "comparison":
            comparisons += compare_datasets(experiment, results).values()
            titles = titles or row_titles(experiment)
        if not results:
            not_measured.append(experiment)
            continue
        chapters.append((experiment, chapter_of(folder, experiment, results, quick=quick)))
        results_of[name] = [stored for stored in folder.results(name) if stored.case in results]
    preamble: list[Text | Table] = [Text(markdown=_preface())]
    if quick:
        preamble.insert(0, Text(markdown=f"**{QUICK_RUN}** The settings described below are those of full runs."))
    if folder.notes:
        preamble.append(Text(markdown=folder.notes))
    preamble.append(_count_verdicts([verdict for _, chapter in chapters for verdict in chapter.verdicts]))
    if any(comparison.seeds for comparison in comparisons):
        preamble.append(_outcome_table(comparisons, titles))
    if results_of:
        preamble.append(_environment_table(results_of))
    return Page(chapters=chapters, not_measured=not_measured, preamble=preamble)


def _preface() -> str:
    return (resources.files("fedtilt.reproduction") / "preface.md").read_text("utf-8").strip()


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


def _outcome_table(comparisons: list[DatasetComparison], titles: dict[str, str]) -> Table:
    """How often FedTilt (validated) is better than each rival, tied, or worse."""
    rivals = [(rival, "evaluated", titles[rival]) for rival in RIVALS]
    rivals.append(("fedavg", "shared", f"{titles['fedavg']}, w against w"))
    counts = {
        (title, TITLES[metric.key]): count_outcomes(comparisons, rival, metric, view)
        for rival, view, title in rivals
        for metric in COMPARED_METRICS
    }
    always = ("better", "tied", "worse")  # other columns only where they are not empty
    outcomes = [o for o in OUTCOMES if o in always or any(count[o] for count in counts.values())]
    rows: list[list[str | float]] = [
        [*row, *(str(count[outcome]) for outcome in outcomes)] for row, count in counts.items()
    ]
    single_seed = any(count["ahead"] + count["not ahead"] for count in counts.values())
    return Table(
        caption=f"FedTilt (validated) against the others in {len(comparisons)} comparisons: how often it is better, "
        "tied or worse",
        columns=["against", "metric", *(OUTCOMES[outcome] for outcome in outcomes)],
        rows=rows,
        notes="A comparison is one data set under one condition (clean, corruptions, Gaussian noise, label flips). "
        "Better and worse mean: by more than one standard error of the paired difference over "
        f"seeds{_by_chance(comparisons)}. FedAvg has no personal models, so its rows mostly show what personal models "
        "are worth to clients of two classes; “w against w” shows what the tilts do to the shared model."
        + (" One seed has no standard error; it only shows which method is ahead." if single_seed else ""),
    )


def _by_chance(comparisons: list[DatasetComparison]) -> str:
    """How often two equal methods differ by more than one standard error, for the numbers of seeds in use."""
    counts = sorted({len(comparison.seeds) for comparison in comparisons} - {0, 1}, reverse=True)
    shares = [f"{2 * false_positive_rate(n):.0%} of the comparisons with {n} seeds".replace("%", " %") for n in counts]
    return f"; two equal methods differ by that much, by chance, in {', in '.join(shares)}" if shares else ""


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


def digest(figure: CaptionedFigure) -> str:
    """The SHA-256 of a figure's JSON, which shows whether its SVG file is up to date."""
    return hashlib.sha256(json.dumps(figure.figure, sort_keys=True).encode()).hexdigest()


def source(experiment: Experiment) -> str:
    """Where the paper has the experiment."""
    return f"Paper: {experiment.source}." if experiment.source else "Not in the paper."
