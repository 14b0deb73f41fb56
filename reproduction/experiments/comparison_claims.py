"""Check what is claimed of the comparison tables against the results."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from fedtilt.evaluation.verdicts import LEVEL
from fedtilt.report.compare import Metric
from fedtilt.report.summary import format_interval
from reproduction.chapter import Holds, Verdict, verdict_on
from reproduction.experiment import Claim
from reproduction.experiments.paired import COMPARED_METRICS, PAPER_METRICS, TITLES, DatasetComparison
from reproduction.records import Difference, Outcome, below, difference, interaction, outcome
from reproduction.training import fedtilt

Comparisons = Mapping[str, DatasetComparison]  # by data set, or by data set and condition
OutcomeNames = Mapping[Outcome, str]  # names that replace the outcome's own
Finding = tuple[Holds, str]  # whether a claim holds, and the numbers that decide it
_DECIDED: tuple[Outcome, ...] = ("better", "not told apart", "worse")
_CHANCE = LEVEL / 2  # the share of equal settings that are better by chance
_MAX_LABELLED = 4  # comparisons in a verdict that names the metrics which count against a claim
_BY_KEY = {metric.key: metric for metric in COMPARED_METRICS}
_LIMIT_NAMES: OutcomeNames = {
    "better": "within the limit", "not told apart": "too close to call", "worse": "above the limit",
    "ahead": "within the limit", "not ahead": "above the limit",
}  # fmt: skip


def verdicts(claims: tuple[Claim, ...], comparisons: Comparisons, clean: Comparisons | None = None) -> list[Verdict]:
    """A verdict on every claim; a claim without a rule cannot be measured.

    Args:
        claims: The claims of one experiment.
        comparisons: Its results, by data set.
        clean: The results on clean data, for rules that compare with them.
    """
    result = []
    for claim in claims:
        holds, numbers = (
            CLAIM_CHECKS[claim.rule](claim.check, comparisons, clean or {}) if claim.rule else ("not measured", "")
        )
        result.append(verdict_on(claim, holds, numbers))
    return result


def _best(check: Mapping[str, Any], comparisons: Comparisons, _: Comparisons) -> Finding:
    """Each of `rows` is better than all `rivals` on each of `metrics` and `data`, `by` more than that number of points.

    Rows under `also` are compared and listed in the same way, but do not decide.
    """
    holds, numbers = _compare_rows(check, check.get("rows", ["fedtilt-validated"]), comparisons)
    also = [_compare_rows(check, [row], comparisons)[1] for row in check.get("also", [])]
    return holds, " ".join(filter(None, [numbers, *also]))


def _compare_rows(check: Mapping[str, Any], rows: list[str], comparisons: Comparisons) -> Finding:
    rivals = check.get("rivals", ["fedavg", "ditto-validated"])
    metrics = [_BY_KEY[key] for key in check["metrics"]] if "metrics" in check else list(PAPER_METRICS)
    outcomes: dict[str, list[Outcome]] = {}
    selected = _selected(check, comparisons)
    for where, comparison in selected.items():
        outcomes[where] = [
            _weakest([comparison.compare(row, rival, metric, check.get("by", 0.0)) for rival in rivals])
            for row in rows
            for metric in metrics
        ]
    titles = next(iter(comparisons.values())).titles
    ours, theirs = (" and ".join(titles[row] for row in names) for names in (rows, rivals))
    margin = f" by more than {check['by']:g} points" if "by" in check else ""
    counted = {len(PAPER_METRICS): "the paper’s four metrics", len(COMPARED_METRICS): "all five metrics"}
    on = counted.get(len(metrics)) or ", ".join(TITLES[m.key] for m in metrics)
    names: OutcomeNames = {"not told apart": f"not clearly by {check['by']:g} points"} if "by" in check else {}
    labelled = len(rows) == 1 < len(metrics) and len(selected) <= _MAX_LABELLED
    labels = [TITLES[m.key] for m in metrics] if labelled else []
    holds, numbers = _count(outcomes, f"{ours} better than {theirs}{margin} on {on}", names, labels)
    return holds, numbers + (_margins(rows, rivals, metrics, selected) if "by" in check else "")


def _margins(rows: list[str], rivals: list[str], metrics: list[Metric], comparisons: Comparisons) -> str:
    """How many points each row is better than each rival, for claims with a margin."""
    margins = []
    for (where, comparison), row, rival, metric in product(comparisons.items(), rows, rivals, metrics):
        found = comparison.difference(row, rival, metric)
        if found is not None:
            margins.append(f"{where} {comparison.titles[row]} {_format_interval(found)}")
    return _sentence("In points", margins)


def _paper_tilts(check: Mapping[str, Any], comparisons: Comparisons, _: Comparisons) -> Finding:
    """No more settings of the grid than expected by chance are better than the paper's tilts, and most are worse."""
    outcomes: dict[str, list[Outcome]] = {}
    notes = []
    for where, comparison in _selected(check, comparisons).items():
        paper, accuracy = comparison.rows.get("fedtilt", {}), _BY_KEY["accuracy"]
        others = {
            name: outcome(difference(by_seed, paper, accuracy, comparison.clients))
            for name, by_seed in comparison.settings.items()
            if not any(by_seed.get(seed) is result for seed, result in paper.items())  # the paper's tilts themselves
        }
        decided = [other for other in others.values() if other in _DECIDED]
        winning: Outcome = "better" if decided else "ahead"
        winners = [name for name, other in others.items() if other == winning]
        beaten = len(winners) > (_CHANCE * len(decided) if decided else 0)
        if set(others.values()) <= {"not measured"}:
            outcomes[where] = ["not measured"]
        elif decided:
            alone = decided.count("worse") > len(decided) / 2
            outcomes[where] = ["worse" if beaten else "better" if alone else "not told apart"]
        else:
            outcomes[where] = ["not ahead" if beaten else "ahead"]
        if winners:
            notes.append(f"{where}: {len(winners)} of {len(others)} other settings are {winning}, such as {winners[0]}")
        elif decided:
            notes.append(f"{where}: {decided.count('worse')} of {len(decided)} other settings are worse")
    share = f"{_CHANCE:.1%}".replace("%", " %")
    what = f"At most {share} of the other settings of our grid are better in accuracy than the paper’s, most are worse"
    holds, numbers = _count(outcomes, what)
    return holds, " ".join([numbers, *(f"{note}." for note in notes)])


def _rises(check: Mapping[str, Any], comparisons: Comparisons, _: Comparisons) -> Finding:
    """The gain from the larger of two `lam` is higher at the larger `tau`."""
    (low, high), (small, large) = check["tau"], check["lam"]
    metrics = COMPARED_METRICS[:3]  # those of the tilts' figures
    outcomes: dict[str, list[Outcome]] = {}
    gains = []
    for where, comparison in _selected(check, comparisons).items():
        corners = {t: comparison.settings.get(fedtilt(*t, 0.0)[0], {}) for t in product((low, high), (small, large))}
        outcomes[where] = []
        for metric in metrics:
            at_high, at_low = ((corners[tau, large], corners[tau, small]) for tau in (high, low))
            gain = interaction(at_high, at_low, metric, comparison.clients)
            outcomes[where].append(outcome(gain))
            if gain:
                gains.append(f"{where} {TITLES[metric.key]} {_format_interval(gain)}")
    what = f"lam {large:g} instead of {small:g} gains more at tau {high:g} than at tau {low:g}"
    holds, numbers = _count(outcomes, what, labels=[TITLES[metric.key] for metric in metrics])
    return holds, numbers + _sentence("In points", gains)


def _stable(check: Mapping[str, Any], comparisons: Comparisons, clean: Comparisons) -> Finding:
    """Each of `rows` loses at most `points` of accuracy against clean data: the largest loss of the paper's rows."""
    outcomes: dict[str, list[Outcome]] = {}
    losses = []
    for where, comparison in _selected(check, comparisons).items():
        outcomes[where] = []
        for row in check["rows"]:
            before = clean[comparison.data].rows.get(row, {}) if comparison.data in clean else {}
            loss = difference(before, comparison.rows.get(row, {}), _BY_KEY["accuracy"], comparison.clients)
            outcomes[where].append(below(loss, check["points"]))
            if loss:
                losses.append(f"{where} {comparison.titles[row]} {_format_interval(loss)}")
    what = (
        f"At most {check['points']:g} points of accuracy lost against clean data, the largest loss in the paper’s own "
        "rows"
    )
    holds, numbers = _count(outcomes, what, _LIMIT_NAMES)
    return holds, numbers + _sentence("Points lost", losses)


def _close(check: Mapping[str, Any], comparisons: Comparisons, _: Comparisons) -> Finding:
    """The two rows of each of `pairs` differ by less than `within` points in accuracy: the whole interval is inside."""
    limit = check["within"]
    outcomes: dict[str, list[Outcome]] = {}
    largest, text = 0.0, ""
    for where, comparison in _selected(check, comparisons).items():
        outcomes[where] = []
        for row, other in check["pairs"]:
            gaps = [comparison.difference(*pair, _BY_KEY["accuracy"]) for pair in ((row, other), (other, row))]
            outcomes[where].append(_weakest([below(gap, limit) for gap in gaps]))
            if gaps[0] and abs(gaps[0].verdict.difference) >= largest:
                largest = abs(gaps[0].verdict.difference)
                text = f"{where} {comparison.titles[row]} {_format_interval(gaps[0])}"
    holds, numbers = _count(outcomes, f"Less than {limit:g} points of accuracy apart", _LIMIT_NAMES)
    return holds, numbers + _sentence("The largest difference in points", [text] if text else [])


CLAIM_CHECKS: dict[str, Callable[[Mapping[str, Any], Comparisons, Comparisons], Finding]] = {
    "best": _best,
    "close": _close,
    "paper-tilts": _paper_tilts,
    "rises": _rises,
    "stable": _stable,
}


def _selected(check: Mapping[str, Any], comparisons: Comparisons) -> dict[str, DatasetComparison]:
    """The comparisons on the data sets and under the conditions that a check names, or all."""
    return {
        where: comparison
        for where, comparison in comparisons.items()
        if comparison.data in check.get("data", [comparison.data])
        and comparison.condition in check.get("conditions", [comparison.condition])
    }


def _sentence(what: str, items: Sequence[str]) -> str:
    interval = " (95 % interval)" if any(" to " in item for item in items) else ""
    return f" {what}{interval}: {'; '.join(items)}." if items else ""


def _format_interval(found: Difference) -> str:
    return format_interval(found.verdict)


def _weakest(outcomes: list[Outcome]) -> Outcome:
    """The outcome against all rivals: the weakest of those against each.

    One lost comparison is enough to lose, even where others are not measured.
    """
    order: tuple[Outcome, ...] = ("worse", "not told apart", "not ahead", "not measured", "ahead", "better")
    return min(outcomes, key=order.index)


def _count(
    outcomes: Mapping[str, list[Outcome]], what: str, names: OutcomeNames | None = None, labels: Sequence[str] = ()
) -> Finding:
    """Holds if all outcomes are better, does not hold if none is, holds partly otherwise.

    Outcomes that are not measured do not count. One seed cannot make a claim hold, but it can count against it.

    Args:
        outcomes: The outcomes of every data set.
        what: What was compared, for the text.
        names: Names of outcomes in the text, where they differ from the outcome.
        labels: What each outcome of a data set compares.
    """
    decided = [outcome for row in outcomes.values() for outcome in row if outcome in _DECIDED]
    missing = [data for data, row in outcomes.items() if "not measured" in row]
    rest = f" Not measured yet: {', '.join(missing)}." if missing else ""
    one_seed = _by_data(outcomes, ("ahead", "not ahead"), names or {}, labels)
    if one_seed:
        rest = f" On one seed: {one_seed}.{rest}"
    if not decided:
        return ("one seed", f"{what}.{rest}") if one_seed else ("not measured", "")
    wins = decided.count("better")
    against = len(decided) - wins + sum(row.count("not ahead") for row in outcomes.values())
    holds: Holds = "holds partly" if wins and against else "holds" if wins else "does not hold"
    return holds, f"{what}: {wins} of {len(decided)} ({_by_data(outcomes, _DECIDED, names or {}, labels)}).{rest}"


def _by_data(
    outcomes: Mapping[str, list[Outcome]], kinds: tuple[Outcome, ...], names: OutcomeNames, labels: Sequence[str]
) -> str:
    """Counts of these outcomes per data set, with the labels of those that count against the claim."""

    def count(kind: Outcome, row: list[Outcome]) -> str:
        matching = [label for label, outcome in zip(labels, row, strict=False) if outcome == kind]
        against = matching and kind not in ("better", "ahead") and len(set(row)) > 1
        listed = f" ({'; '.join(matching)})" if against else ""
        return f"{row.count(kind)} {names.get(kind, kind)}{listed}"

    counts = {data: [count(kind, row) for kind in kinds if kind in row] for data, row in outcomes.items()}
    return "; ".join(f"{data} {', '.join(texts)}" for data, texts in counts.items() if texts)
