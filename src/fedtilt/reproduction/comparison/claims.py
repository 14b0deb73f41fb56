"""How numbers decide on what is said of the comparison tables."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from fedtilt.report.compare import Cell as Values
from fedtilt.report.compare import Metric
from fedtilt.report.tables import difference
from fedtilt.reproduction.chapter import Holds, Verdict, verdict_on
from fedtilt.reproduction.comparison.standings import METRICS, TITLES, Outcome, Standing, differences, outcome, paired
from fedtilt.reproduction.experiment import Claim
from fedtilt.reproduction.train_grid import fedtilt

Standings = Mapping[str, Standing]
Words = Mapping[Outcome, str]  # what outcomes are called, where not by their names
Found = tuple[Holds, str]
_DECIDED: tuple[Outcome, ...] = ("better", "tied", "worse")
_BY_CHANCE = 0.2  # one standard error is passed by about one equal setting in five, with five seeds
_BY_KEY = {metric.key: metric for metric in METRICS}
_LOST: Words = {
    "better": "no more", "tied": "too close to tell", "worse": "more", "ahead": "no more", "not ahead": "more",
}  # fmt: skip


def verdicts(claims: tuple[Claim, ...], standings: Standings, clean: Standings | None = None) -> list[Verdict]:
    """A verdict on every claim, with clean data beside where it is there; without a rule, nothing can be measured."""
    found = []
    for claim in claims:
        holds, numbers = RULES[claim.rule](claim.check, standings, clean or {}) if claim.rule else ("not measured", "")
        found.append(verdict_on(claim, holds, numbers))
    return found


def _best(check: Mapping[str, Any], standings: Standings, _: Standings) -> Found:
    """Each of `rows` is better than all `rivals`, on every one of `metrics` and `data`, `by` more than so many points.

    What `also` names is compared in the same way and told, but decides nothing.
    """
    holds, told = _compared(check, check.get("rows", ["fedtilt-validated"]), standings)
    besides = [_compared(check, [row], standings)[1] for row in check.get("also", [])]
    return holds, " ".join(filter(None, [told, *besides]))


def _compared(check: Mapping[str, Any], rows: list[str], standings: Standings) -> Found:
    rivals = check.get("rivals", ["fedavg", "ditto-validated"])
    metrics = [_BY_KEY[key] for key in check.get("metrics", TITLES)]
    outcomes: dict[str, list[Outcome]] = {}
    for standing in _asked(check, standings):
        outcomes[standing.data] = [
            _least([standing.compare(row, rival, metric, check.get("by", 0.0)) for rival in rivals])
            for row in rows
            for metric in metrics
        ]
    names = next(iter(standings.values())).titles
    sides = [" and ".join(names[row] for row in side) for side in (rows, rivals)]
    by = f" by more than {check['by']:g} points" if "by" in check else ""
    what = "all four metrics" if len(metrics) == len(TITLES) else ", ".join(TITLES[m.key] for m in metrics)
    words: Words = {"tied": f"within {check['by']:g} points"} if "by" in check else {}
    labels = [TITLES[m.key] for m in metrics] if len(rows) == 1 < len(metrics) else []
    holds, told = _counted(outcomes, f"{sides[0]} better than {sides[1]}{by} on {what}", words, labels)
    return holds, told + (_margins(rows, rivals, metrics, _asked(check, standings)) if "by" in check else "")


def _margins(rows: list[str], rivals: list[str], metrics: list[Metric], standings: list[Standing]) -> str:
    """By how many points each row is ahead of each rival, for claims that speak of a margin."""
    told = []
    for standing, row, rival, metric in product(standings, rows, rivals, metrics):
        ahead = differences(standing.rows.get(row, {}), standing.rows.get(rival, {}), metric)
        if ahead is not None:
            told.append(f"{standing.data} {standing.titles[row]} {difference(ahead, 0.0)}{_error(ahead)}")
    return _listed("In points", told)


def _paper_tilts(check: Mapping[str, Any], standings: Standings, _: Standings) -> Found:
    """The paper's tilts are not beaten in test accuracy, by more settings of the grid than chance would have it."""
    outcomes: dict[str, list[Outcome]] = {}
    told = []
    for standing in _asked(check, standings):
        ours, accuracy = standing.rows.get("fedtilt", {}), _BY_KEY["accuracy"]
        others = {
            name: paired(theirs, ours, accuracy)
            for name, theirs in standing.settings.items()
            if not any(theirs.get(seed) is own for seed, own in ours.items())  # the paper's own
        }
        decided = [outcome for outcome in others.values() if outcome in _DECIDED]
        word: Outcome = "better" if decided else "ahead"
        above = [name for name, outcome in others.items() if outcome == word]
        beaten = len(above) > (_BY_CHANCE * len(decided) if decided else 0)
        if set(others.values()) <= {"not measured"}:
            outcomes[standing.data] = ["not measured"]
        elif decided:
            outcomes[standing.data] = ["worse" if beaten else "better"]
        else:
            outcomes[standing.data] = ["not ahead" if beaten else "ahead"]
        if above:
            told.append(f"{standing.data}: {len(above)} of {len(others)} others are {word}, {above[0]} among them")
    asked = f"The paper’s tilts are beaten in accuracy by no more than {_BY_CHANCE:.0%} of the others in our grid"
    holds, numbers = _counted(outcomes, asked)
    return holds, " ".join([numbers, *(f"{text}." for text in told)])


def _rises(check: Mapping[str, Any], standings: Standings, _: Standings) -> Found:
    """What the larger of two `lam` gains over the smaller is more at the larger `tau`, beyond one standard error."""
    (low, high), (small, large) = check["tau"], check["lam"]
    metrics = METRICS[:3]  # as the figures of the tilts have them
    outcomes: dict[str, list[Outcome]] = {}
    told = []
    for standing in _asked(check, standings):
        corners = {t: standing.settings.get(fedtilt(*t, 0.0)[0], {}) for t in product((low, high), (small, large))}
        outcomes[standing.data] = []
        for metric in metrics:
            at_high, at_low = (differences(corners[tau, large], corners[tau, small], metric) for tau in (high, low))
            more = None
            if at_high and at_low and len(at_high.values) == len(at_low.values):
                more = Values(tuple(a - b for a, b in zip(at_high.values, at_low.values, strict=True)))
            outcomes[standing.data].append(outcome(more))
            if more:
                told.append(f"{standing.data} {TITLES[metric.key]} {difference(more, 0.0)}{_error(more)}")
    what = f"lam {large:g} instead of {small:g} is worth more at tau {high:g} than at tau {low:g}"
    holds, numbers = _counted(outcomes, what, labels=[TITLES[metric.key] for metric in metrics])
    return holds, numbers + _listed("In points", told)


def _stable(check: Mapping[str, Any], standings: Standings, clean: Standings) -> Found:
    """None of `rows` loses more accuracy against clean data than `points`: what the paper's own rows lose at most."""
    outcomes: dict[str, list[Outcome]] = {}
    told = []
    for standing in _asked(check, standings):
        outcomes[standing.data] = []
        for row in check["rows"]:
            before = clean[standing.data].rows.get(row, {}) if standing.data in clean else {}
            lost = differences(before, standing.rows.get(row, {}), _BY_KEY["accuracy"])
            left = lost and Values(tuple(check["points"] - value for value in lost.values))
            outcomes[standing.data].append(outcome(left))
            if lost:
                told.append(f"{standing.data} {standing.titles[row]} {lost.mean:.2f}{_error(lost)}".replace(" -", " −"))
    what = (
        f"At most {check['points']:g} points of accuracy lost against clean data, which is the most that the paper’s "
        "own rows lose here"
    )
    holds, numbers = _counted(outcomes, what, _LOST)
    return holds, numbers + _listed("Points lost", told)


RULES: dict[str, Callable[[Mapping[str, Any], Standings, Standings], Found]] = {
    "best": _best,
    "paper-tilts": _paper_tilts,
    "rises": _rises,
    "stable": _stable,
}


def _asked(check: Mapping[str, Any], standings: Standings) -> list[Standing]:
    return [standings[data] for data in check.get("data", standings) if data in standings]


def _listed(what: str, told: Sequence[str]) -> str:
    error = " (± standard error)" if any("±" in text for text in told) else ""
    return f" {what}{error}: {'; '.join(told)}." if told else ""


def _error(values: Values) -> str:
    return f" ± {values.error:.2f}" if len(values.values) > 1 else ""


def _least(outcomes: list[Outcome]) -> Outcome:
    """What can be said against all rivals together: the weakest of what can be said against each.

    One lost comparison is enough to lose, whatever the others would be.
    """
    order: tuple[Outcome, ...] = ("worse", "tied", "not ahead", "not measured", "ahead", "better")
    return min(outcomes, key=order.index)


def _counted(
    outcomes: Mapping[str, list[Outcome]], what: str, words: Words | None = None, labels: Sequence[str] = ()
) -> Found:
    """Holds where all are better, not where none is, partly in between; `labels` name the outcomes of a data set.

    What is not measured does not count. One seed cannot make a claim hold, but it can stand against it.
    """
    decided = [outcome for row in outcomes.values() for outcome in row if outcome in _DECIDED]
    missing = [data for data, row in outcomes.items() if "not measured" in row]
    late = f" Not measured yet: {', '.join(missing)}." if missing else ""
    lone = _by_data(outcomes, ("ahead", "not ahead"), words or {}, labels)
    if lone:
        late = f" On one seed: {lone}.{late}"
    if not decided:
        return ("one seed", f"{what}.{late}") if lone else ("not measured", "")
    wins = decided.count("better")
    against = len(decided) - wins + sum(row.count("not ahead") for row in outcomes.values())
    holds: Holds = "holds partly" if wins and against else "holds" if wins else "does not hold"
    return holds, f"{what}: {wins} of {len(decided)} ({_by_data(outcomes, _DECIDED, words or {}, labels)}).{late}"


def _by_data(
    outcomes: Mapping[str, list[Outcome]], kinds: tuple[Outcome, ...], words: Words, labels: Sequence[str]
) -> str:
    """How often each of these kinds came out, for the data sets that have any, and what stood against the claim."""

    def told(kind: Outcome, row: list[Outcome]) -> str:
        which = [label for label, outcome in zip(labels, row, strict=False) if outcome == kind]
        named = f" ({'; '.join(which)})" if which and kind not in ("better", "ahead") and len(set(row)) > 1 else ""
        return f"{row.count(kind)} {words.get(kind, kind)}{named}"

    counts = {data: [told(kind, row) for kind in kinds if kind in row] for data, row in outcomes.items()}
    return "; ".join(f"{data} {', '.join(found)}" for data, found in counts.items() if found)
