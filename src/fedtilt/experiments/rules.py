"""How numbers decide on what the paper says of its comparison tables."""

from collections.abc import Callable, Mapping
from typing import Any

from fedtilt.experiments.chapter import Holds, Verdict
from fedtilt.experiments.experiment import Claim
from fedtilt.experiments.standings import METRICS, TITLES, Outcome, Standing, paired

Standings = Mapping[str, Standing]
_DECIDED: tuple[Outcome, ...] = ("better", "tied", "worse")
_BY_CHANCE = 0.2  # one standard error is passed by about one equal setting in five, with five seeds
_BY_KEY = {metric.key: metric for metric in METRICS}


def verdicts(claims: tuple[Claim, ...], standings: Standings) -> list[Verdict]:
    """A verdict on every claim; one without a rule cannot be measured here."""
    found = []
    for claim in claims:
        holds, numbers = RULES[claim.rule](claim.check, standings) if claim.rule else ("not measured", "")
        why = " ".join(filter(None, (numbers, claim.why)))
        found.append(Verdict(claim=claim.text, holds=holds, why=why, ours=claim.ours))
    return found


def _best(check: Mapping[str, Any], standings: Standings) -> tuple[Holds, str]:
    """Each of `rows` is better than all `rivals`, on every one of `metrics` and `data`, `by` more than so many points.

    What `also` names is compared in the same way and told, but decides nothing.
    """
    holds, told = _compared(check, check.get("rows", ["fedtilt-validated"]), standings)
    besides = [_compared(check, [row], standings)[1] for row in check.get("also", [])]
    return holds, " ".join(filter(None, [told, *besides]))


def _compared(check: Mapping[str, Any], rows: list[str], standings: Standings) -> tuple[Holds, str]:
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
    tie = f"within {check['by']:g} points" if "by" in check else "tied"
    return _counted(outcomes, f"{sides[0]} better than {sides[1]}{by} on {what}", tie)


def _paper_tilts(check: Mapping[str, Any], standings: Standings) -> tuple[Holds, str]:
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


RULES: dict[str, Callable[[Mapping[str, Any], Standings], tuple[Holds, str]]] = {
    "best": _best,
    "paper-tilts": _paper_tilts,
}


def _asked(check: Mapping[str, Any], standings: Standings) -> list[Standing]:
    return [standings[data] for data in check.get("data", standings) if data in standings]


def _least(outcomes: list[Outcome]) -> Outcome:
    """What can be said against all rivals together: the weakest of what can be said against each.

    One lost comparison is enough to lose, whatever the others would be.
    """
    order: tuple[Outcome, ...] = ("worse", "tied", "not ahead", "not measured", "ahead", "better")
    return min(outcomes, key=order.index)


def _counted(outcomes: Mapping[str, list[Outcome]], what: str, tie: str = "tied") -> tuple[Holds, str]:
    """Holds where all are better, not where none is, partly in between.

    What is not measured does not count. One seed cannot make a claim hold, but it can stand against it.
    """
    decided = [outcome for row in outcomes.values() for outcome in row if outcome in _DECIDED]
    missing = [data for data, row in outcomes.items() if "not measured" in row]
    late = f" Not measured yet: {', '.join(missing)}." if missing else ""
    lone = _by_data(outcomes, ("ahead", "not ahead"), tie)
    if lone:
        late = f" On one seed: {lone}.{late}"
    if not decided:
        return ("one seed", f"{what}.{late}") if lone else ("not measured", "")
    wins = decided.count("better")
    against = len(decided) - wins + sum(row.count("not ahead") for row in outcomes.values())
    holds: Holds = "holds partly" if wins and against else "holds" if wins else "does not hold"
    return holds, f"{what}: {wins} of {len(decided)} ({_by_data(outcomes, _DECIDED, tie)}).{late}"


def _by_data(outcomes: Mapping[str, list[Outcome]], kinds: tuple[Outcome, ...], tie: str) -> str:
    """How often each of these kinds came out, for the data sets that have any."""
    words = {"tied": tie}
    counts = {
        data: [f"{row.count(kind)} {words.get(kind, kind)}" for kind in kinds if kind in row]
        for data, row in outcomes.items()
    }
    return "; ".join(f"{data} {', '.join(found)}" for data, found in counts.items() if found)
