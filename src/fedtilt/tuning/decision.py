"""The recommendation: differences on validation data beyond chance, the Pareto front, and the decision."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from fedtilt.evaluation.verdicts import LEVEL, Verdict, compare, holm
from fedtilt.tuning.objectives import Constraint, Objective, SeedScores, draw_of

Values = Mapping[str, float]  # objective → value
MAX_LOSS = 5.0  # points below the best accuracy, or percent above the least error: a collapsed model may be fair


def ranked(
    settings: Mapping[str, Values], by: Objective, main: Objective, constraints: Sequence[Constraint]
) -> list[str]:
    """Names of settings, the best first: those that keep the constraints, those that have not collapsed, then by value.

    Among equals, the better ones by the main objective are first: after few rounds, the worst clients may be equal.

    >>> from fedtilt.tuning.objectives import OBJECTIVES
    >>> by_name = OBJECTIVES["classification"]
    >>> settings = {
    ...     "accurate": {"accuracy": 97.0, "client_fairness": 3.0},
    ...     "fair": {"accuracy": 96.0, "client_fairness": 1.0},
    ...     "collapsed": {"accuracy": 50.0, "client_fairness": 0.0},
    ... }
    >>> ranked(settings, by_name["client_fairness"], by_name["accuracy"], ())
    ['fair', 'accurate', 'collapsed']
    """
    collapsed = _collapsed(settings, main)

    def key(name: str) -> tuple[float, bool, float, float]:
        values = settings[name]
        return violation(values, constraints), name in collapsed, _cost(values, by), _cost(values, main)

    return sorted(settings, key=key)


def _cost(values: Values, objective: Objective) -> float:
    return -objective.better(values[objective.name], 0.0)


def violation(values: Values, constraints: Sequence[Constraint]) -> float:
    """By how much a setting misses its constraints, in all; 0 if it keeps them."""
    return sum(constraint.violation(values[constraint.objective.name]) for constraint in constraints)


def _collapsed(settings: Mapping[str, Values], main: Objective) -> set[str]:
    """Settings that are much worse than the best: a model that predicts one class per client is perfectly fair."""
    best = min((_cost(values, main) for values in settings.values()), default=0.0)
    limit = best + MAX_LOSS / 100 * (main.largest if math.isfinite(main.largest) else best)
    return {name for name, values in settings.items() if _cost(values, main) > limit}


def pareto_front(
    settings: Mapping[str, Values], objectives: Sequence[Objective], main: Objective,
    constraints: Sequence[Constraint] = (),
) -> list[str]:  # fmt: skip
    """The settings that no other one beats in an objective without being worse in another; the best of the first first.

    Without settings that miss a constraint, or are much worse than the best by the main objective.

    >>> from fedtilt.tuning.objectives import OBJECTIVES
    >>> by_name = OBJECTIVES["classification"]
    >>> pareto_front({
    ...     "fair": {"accuracy": 96.0, "client_fairness": 1.0},
    ...     "accurate": {"accuracy": 97.0, "client_fairness": 3.0},
    ...     "neither": {"accuracy": 95.0, "client_fairness": 3.0},
    ...     "collapsed": {"accuracy": 50.0, "client_fairness": 0.0},
    ... }, [by_name["accuracy"], by_name["client_fairness"]], by_name["accuracy"])
    ['accurate', 'fair']
    """
    collapsed = _collapsed(settings, main)
    costs = {
        name: tuple(_cost(values, objective) for objective in objectives)
        for name, values in settings.items()
        if name not in collapsed and not violation(values, constraints)
    }

    def dominated(name: str) -> bool:
        return any(
            other != costs[name] and all(a <= b for a, b in zip(other, costs[name], strict=True))
            for other in costs.values()
        )

    return sorted((name for name in costs if not dominated(name)), key=lambda name: costs[name])


class Decision(NamedTuple):
    """Which setting to use, and why."""

    chosen: str | None  # None: no setting keeps the constraints
    reason: str
    differences: Mapping[str, Verdict]  # of every other setting to the current one, above 0: better


def decide(
    scores: Mapping[str, SeedScores], values: Mapping[str, Values], current: str, by: Objective, main: Objective,
    constraints: Sequence[Constraint], tried: int = 0,
) -> Decision:  # fmt: skip
    """Recommend a setting; the current one, unless another is better beyond chance on the validation rows.

    The settings are compared after the same number of rounds; the current one is missing if it diverged. Of several
    settings, p is corrected by Holm for all that were `tried`, also those that were stopped earlier on the same rows;
    the intervals are at the level of Bonferroni.
    """
    order = ranked(values, by, main, constraints)
    best, bounds = order[0], " and ".join(map(str, constraints))
    compared = [name for name in order if name != current and current in scores]
    tried = max(1, tried, len(compared))
    others = dict(zip(compared, _verdicts(scores, compared, current, by, tried), strict=True))
    p_values = [verdict.p_value for verdict in others.values()]
    adjusted = dict(zip(compared, holm(p_values + [1.0] * (tried - len(compared))), strict=False))
    if violation(values[best], constraints):
        return Decision(None, f"no setting has {bounds}; the nearest is {best!r}", others)
    if current not in scores:
        return Decision(best, f"your setting diverged; {best!r} is the first of the others", others)
    if violation(values[current], constraints):
        return Decision(best, f"your setting misses {bounds}", others)
    if not others:
        return Decision(current, "keep yours: no other setting was trained as far", others)
    for name in order[: order.index(current)]:
        if adjusted[name] <= LEVEL and others[name].difference > 0:
            reason = f"{by.title} is {_amount(others[name].difference, by)} better than yours ({_p(adjusted[name])})"
            return Decision(name, reason, others)
    first, found = next(iter(others.items()))  # the best other setting
    if found.difference <= 0:
        return Decision(current, f"keep yours: no other setting has a better {by.title}", others)
    better = f"{by.title} of the best other setting is {_amount(found.difference, by)} better"
    why = found.reason or _p(adjusted[first])
    return Decision(current, f"keep yours: {better}, which is not told apart ({why})", others)


def _verdicts(
    scores: Mapping[str, SeedScores], names: Sequence[str], current: str, by: Objective, tried: int
) -> list[Verdict]:
    if not names:
        return []
    means = {name: fmean(by.value(table) for table in scores[name].values()) for name in (current, *names)}
    gains = [by.better(means[name], means[current]) for name in names]  # also where nothing can be said about them
    totals = {seed: table.total for seed, table in scores[current].items()}
    if any(not scores[name][seed].total.equal(total) for name in names for seed, total in totals.items()):
        other = "other validation rows"  # of clients that one setting has selected, and another has not
        return [Verdict(gain, -math.inf, math.inf, 1.0, other) for gain in gains]
    draws = [draw_of({name: scores[name][seed] for name in (current, *names)}, by) for seed in totals]
    pairs, higher = [(name, current) for name in names], by.higher_is_better
    found = compare(draws, by.compared, pairs, higher_is_better=higher, confidence=1 - LEVEL / tried)
    return [verdict._replace(difference=gain) for verdict, gain in zip(found, gains, strict=True)]


def _p(value: float) -> str:
    return f"p = {value:.2g}" if value >= 0.001 else "p < 0.001"


def _amount(gain: float, by: Objective) -> str:
    return f"{by.text(gain)}{' points' if by.unit else ''}"
