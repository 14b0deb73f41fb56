"""FedTilt against every other tuned method, with Holm's correction over all of these comparisons."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

from fedtilt.evaluation.statistics import CONFIDENCE, PairedDifference, mean_difference
from fedtilt.report.compare import Metric
from fedtilt.report.tables import format_effect_size, format_interval
from reproduction.chapter import Table
from reproduction.comparison.dataset_comparison import (
    COMPARED_METRICS,
    TITLES,
    DatasetComparison,
    Outcome,
    outcome_of,
)
from reproduction.holm import holm
from reproduction.tuned.rows import METHOD_TITLES, NOISY

OURS = "fedtilt"
RIVALS = ("fedavg_finetuned", "ditto", "local", "term", "fedprox", "fedavg")
_OUTCOMES: dict[Outcome, str] = {
    "better": "better", "tied": "tied", "worse": "worse", "ahead": "one seed: ahead", "not ahead": "one seed: not",
    "not measured": "not measured",
}  # fmt: skip


class Score(NamedTuple):
    """FedTilt against one rival on one metric, in one cell: a data set under one condition."""

    data: str
    condition: str
    rival: str
    noisy: bool  # whether the settings of both are chosen on noisy validation data
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

    @property
    def test(self) -> tuple[object, ...] | None:
        """What identifies the test: settings chosen alike on both kinds of validation data make one test, not two."""
        if self.difference is None or self.difference.pairs == 1:
            return None
        return self.data, self.condition, self.rival, self.metric.key, self.difference


def score_all(comparisons: Iterable[DatasetComparison]) -> list[Score]:
    """FedTilt against every rival on every metric; all different tests with several seeds are corrected together."""
    scores = []
    for comparison, noisy, rival, metric in product(comparisons, (False, True), RIVALS, COMPARED_METRICS):
        suffix = NOISY if noisy else ""
        differences = comparison.differences(f"{OURS}{suffix}", f"{rival}{suffix}", metric)
        difference = differences and mean_difference(differences.values)
        scores.append(Score(comparison.data, comparison.condition, rival, noisy, metric, difference))
    p_values = {test: s.difference.p_value for s in scores if s.difference is not None and (test := s.test)}
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return [score._replace(adjusted=adjusted[test]) if (test := score.test) else score for score in scores]


def count_tests(scores: Sequence[Score]) -> int:
    """The number of tests that Holm's correction counts."""
    return len({score.test for score in scores} - {None})


def outcome_table(scores: Sequence[Score], *, by_metric: bool) -> Table:
    """How often FedTilt is better than each rival, tied, or worse; and how often after the correction.

    Args:
        scores: All scores.
        by_metric: Whether a row counts one metric or all five.
    """
    groups: dict[tuple[str, ...], list[Score]] = {}
    for score in scores:
        metric = (TITLES[score.metric.key],) if by_metric else ()
        key = ("noisy" if score.noisy else "clean", METHOD_TITLES[score.rival], *metric)
        groups.setdefault(key, []).append(score)
    groups = {key: groups[key] for key in sorted(groups, key=lambda key: key[0])}  # clean, then noisy
    groups = {key: group for key, group in groups.items() if any(score.difference is not None for score in group)}
    counts = {key: Counter(score.outcome for score in group) for key, group in groups.items()}
    always = ("better", "tied", "worse")  # other columns only where they are not empty
    outcomes = [o for o in _OUTCOMES if o in always or any(count[o] for count in counts.values())]
    rows: list[list[str | float]] = []
    for key, group in groups.items():
        surviving = Counter(score.outcome for score in group if score.survives)
        corrected = [str(surviving[outcome]) for outcome in ("better", "worse")]
        rows.append([*key, *(str(counts[key][outcome]) for outcome in outcomes), *corrected])
    cells = len({(score.data, score.condition) for score in scores})
    what = "by metric" if by_metric else f"all five metrics, {cells} cells"
    columns = ["validation", "against", *(["metric"] if by_metric else []), *(_OUTCOMES[o] for o in outcomes)]
    return Table(
        caption=f"FedTilt against the others: how often it is better, tied or worse, {what}",
        columns=[*columns, "better, Holm", "worse, Holm"],
        rows=rows,
        notes="Validation: the data that settings are chosen on, clean or with the outliers of the training data. A "
        "cell is one data set under one condition. Better and worse mean: the 95 % interval of the difference, paired "
        "by seed, does not contain 0; of two equal methods, one is better in 2.5 % of the comparisons by chance, and "
        "worse in as many. The last two columns count what remains after Holm’s correction over the "
        f"{count_tests(scores)} different comparisons (all rivals, metrics and cells, both kinds of validation data): "
        "with a probability of at least 95 %, none of these is chance. The five metrics of a cell are not independent.",
        folded=by_metric,
    )


def difference_table(scores: Sequence[Score], rival: str) -> Table:
    """Every difference to one rival, with its interval, effect size and p-values."""
    kinds: dict[tuple[object, ...], list[Score]] = {}
    for score in scores:
        if score.rival == rival and score.test:
            kinds.setdefault(score.test, []).append(score)
    rows: list[list[str | float]] = []
    for same in kinds.values():
        score, difference = same[0], same[0].difference
        assert difference is not None
        text = format_interval(difference)
        rows.append(
            [
                score.condition, score.data, "both" if len(same) == 2 else "noisy" if score.noisy else "clean",
                TITLES[score.metric.key], f"**{text}**" if difference.sign() else text, format_effect_size(difference),
                str(difference.pairs), f"{difference.p_value:.4f}", f"{score.adjusted:.4f}",
            ]
        )  # fmt: skip
    title = METHOD_TITLES[rival]
    return Table(
        caption=f"FedTilt against {title}: differences, intervals, effect sizes and p-values",
        columns=["condition", "data", "validation", "metric", "difference", "effect size", "seeds", "p", "p, Holm"],
        rows=rows,
        notes="Mean difference in points, positive where FedTilt is better, and its 95 % interval by Student’s t, "
        "paired by seed; bold where the interval does not contain 0. Validation: the data that settings are chosen on; "
        "“both” where both kinds choose the same settings of both methods. Effect size: the mean divided by the "
        "standard deviation of the differences. p: two-sided; Holm: corrected over all comparisons of FedTilt that "
        "this page counts.",
        folded=True,
    )
