"""FedTilt (validated) against its rivals in every comparison, with Holm's correction over all of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedtilt.evaluation.statistics import CONFIDENCE, PairedDifference, holm, mean_difference
from fedtilt.report.compare import Metric
from fedtilt.report.tables import format_effect_size, format_interval
from fedtilt.reproduction.chapter import Table
from fedtilt.reproduction.comparison.dataset_comparison import (
    COMPARED_METRICS,
    TITLES,
    DatasetComparison,
    Outcome,
    outcome_of,
)

OURS = "fedtilt-validated"
RIVALS = (
    ("ditto-validated", "evaluated"), ("ditto", "evaluated"), ("fedavg", "evaluated"), ("fedavg", "shared"),
)  # row, and which of its models are compared with the same models of ours  # fmt: skip
OUTCOMES: dict[Outcome, str] = {
    "better": "better", "tied": "tied", "worse": "worse", "ahead": "one seed: ahead", "not ahead": "one seed: not",
    "not measured": "not measured",
}  # fmt: skip


class Score(NamedTuple):
    """One comparison with one rival on one metric."""

    data: str
    condition: str
    rival: str
    view: str
    metric: Metric
    difference: PairedDifference | None  # positive where FedTilt is better; None: not measured
    adjusted: float = 1.0  # the p-value after Holm's correction

    @property
    def outcome(self) -> Outcome:
        """The outcome by the 95 % interval."""
        if self.difference is None:
            return "not measured"
        if self.difference.pairs == 1:
            return "ahead" if self.difference.mean > 0 else "not ahead"
        return outcome_of(self.difference)

    @property
    def survives(self) -> bool:
        """Whether the difference is significant after Holm's correction."""
        return self.adjusted < 1 - CONFIDENCE


def score_all(comparisons: Sequence[DatasetComparison]) -> list[Score]:
    """FedTilt (validated) against every rival on every metric; those with several seeds are corrected together."""
    scores = []
    for comparison in comparisons:
        for rival, view in RIVALS:
            for metric in COMPARED_METRICS:
                differences = comparison.differences(OURS, rival, metric, view)
                difference = None if differences is None else mean_difference(differences.values)
                scores.append(Score(comparison.data, comparison.condition, rival, view, metric, difference))
    tested = [i for i, score in enumerate(scores) if score.difference is not None and score.difference.pairs > 1]
    p_values = [difference.p_value for i in tested if (difference := scores[i].difference) is not None]
    for i, adjusted in zip(tested, holm(p_values), strict=True):
        scores[i] = scores[i]._replace(adjusted=adjusted)
    return scores


def tested(scores: Sequence[Score]) -> int:
    """The number of comparisons with several seeds: those that Holm's correction counts."""
    return sum(score.outcome in ("better", "tied", "worse") for score in scores)


def outcome_table(scores: Sequence[Score], titles: Mapping[str, str]) -> Table:
    """How often FedTilt (validated) is better than each rival, tied, or worse; and how often after the correction."""
    groups = {
        (_title(rival, view, titles), TITLES[metric.key]): [
            s for s in scores if (s.rival, s.view, s.metric) == (rival, view, metric)
        ]
        for rival, view in RIVALS
        for metric in COMPARED_METRICS
    }
    counts = {key: Counter(score.outcome for score in group) for key, group in groups.items()}
    always = ("better", "tied", "worse")  # other columns only where they are not empty
    outcomes = [o for o in OUTCOMES if o in always or any(count[o] for count in counts.values())]
    rows: list[list[str | float]] = []
    for key, group in groups.items():
        surviving = Counter(score.outcome for score in group if score.survives)
        corrected = [str(surviving[outcome]) for outcome in ("better", "worse")]
        rows.append([*key, *(str(counts[key][outcome]) for outcome in outcomes), *corrected])
    cells = len({(score.data, score.condition) for score in scores})
    single_seed = any(count["ahead"] + count["not ahead"] for count in counts.values())
    return Table(
        caption=f"FedTilt (validated) against the others in {cells} cells: how often it is better, tied or worse",
        columns=["against", "metric", *(OUTCOMES[outcome] for outcome in outcomes), "better, Holm", "worse, Holm"],
        rows=rows,
        notes="A cell is one data set under one condition (clean, corruptions, Gaussian noise, label flips). Better "
        "and worse mean: the 95 % interval of the difference, paired by seed, does not contain 0; of two equal "
        "methods, one is better in 2.5 % of the cells by chance, and worse in as many. The last two columns count "
        f"what remains after Holm’s correction over the {tested(scores)} comparisons of this table with several seeds: "
        f"with a probability of at least 95 %, none of these is chance. {_ditto_alone(scores)}FedAvg has no personal "
        "models, so its rows mostly show what personal models are worth to clients of two classes; “w against w” shows "
        "what the tilts do to the shared model."
        + (" One seed has no interval; it only shows which method is ahead." if single_seed else ""),
        folded=True,
    )


def _ditto_alone(scores: Sequence[Score]) -> str:
    """How many differences to Ditto (validated) remain if only those are corrected for."""
    differences = [s.difference for s in scores if s.rival == "ditto-validated" and s.difference is not None]
    p_values = [difference.p_value for difference in differences if difference.pairs > 1]
    if not p_values:
        return ""
    remaining = sum(adjusted < 1 - CONFIDENCE for adjusted in holm(p_values))
    return f"With a correction over the {len(p_values)} against Ditto (validated) alone, {remaining} of them remain. "


def _title(rival: str, view: str, titles: Mapping[str, str]) -> str:
    return f"{titles[rival]}, w against w" if view == "shared" else titles[rival]


def difference_table(scores: Sequence[Score]) -> Table:
    """Every difference to Ditto (validated), with its interval, effect size and p-values."""
    rows = []
    for score in scores:
        difference = score.difference
        if score.rival == "ditto-validated" and difference is not None and difference.pairs > 1:
            text = format_interval(difference)
            rows.append(
                [
                    score.condition, score.data, TITLES[score.metric.key], f"**{text}**" if difference.sign() else text,
                    format_effect_size(difference), str(difference.pairs), f"{difference.p_value:.4f}",
                    f"{score.adjusted:.4f}",
                ]
            )  # fmt: skip
    return Table(
        caption="FedTilt (validated) against Ditto (validated): differences, intervals, effect sizes and p-values",
        columns=["condition", "data", "metric", "difference", "effect size", "seeds", "p", "p, Holm"],
        rows=rows,
        notes="Mean difference in points, positive where FedTilt is better, and its 95 % interval by Student’s t, "
        "paired by seed; bold where the interval does not contain 0. Effect size: the mean divided by the standard "
        "deviation of the differences. p: two-sided; Holm: corrected as in the table above.",
        folded=True,
    )
