"""The recommendation: standard errors of differences on validation data, the Pareto front, and the decision."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev, stdev
from typing import NamedTuple

from fedtilt import seeds
from fedtilt.tuning.objectives import Constraint, Objective, ScoreTable, SeedScores

Values = Mapping[str, float]  # objective → value
MAX_LOSS = 5.0  # points below the best accuracy, or percent above the least error: a collapsed model may be fair
_RESAMPLES = 100


class Difference(NamedTuple):
    """How much better a setting is than another one, and how certain that is."""

    gain: float  # positive: better
    error: float  # standard error

    @property
    def is_clear(self) -> bool:
        """Whether it is better by more than one standard error."""
        return self.gain > self.error


def difference(ours: SeedScores, theirs: SeedScores, objective: Objective) -> Difference:
    """How much better `ours` is than `theirs`, paired by seed and client.

    The standard error is the larger of two: that of the clients and their validation samples, by a bootstrap over
    clients that draws the same clients for both, and, with several seeds, that of the seeds.
    """
    gains = [objective.better(objective.value(ours[seed]), objective.value(theirs[seed])) for seed in ours]
    resampled = [_resampled_gains(ours[seed], theirs[seed], objective, seed) for seed in ours]
    drawn = [fmean(draw) for draw in zip(*resampled, strict=True)]
    defined = [gain for gain in drawn if not math.isnan(gain)]  # clients without a class have no AUPRC of it
    errors = [pstdev(defined) if defined else math.inf]
    if len(gains) > 1:
        errors.append(stdev(gains) / math.sqrt(len(gains)))
    return Difference(fmean(gains), max(errors))


def _resampled_gains(ours: ScoreTable, theirs: ScoreTable, objective: Objective, seed: int) -> list[float]:
    """The gain on clients that are drawn with replacement, many times."""
    clients = (ours.total.sum(1) > 0).nonzero()[:, 0]
    draws = clients[seeds.integers(seeds.key(seed, "tune bootstrap"), (_RESAMPLES, len(clients)), len(clients))]
    return [
        objective.better(objective.value(ours.of_clients(rows)), objective.value(theirs.of_clients(rows)))
        for rows in draws
    ]


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
    differences: Mapping[str, Difference]  # of every other setting to the current one


def decide(
    scores: Mapping[str, SeedScores], values: Mapping[str, Values], current: str, by: Objective, main: Objective,
    constraints: Sequence[Constraint],
) -> Decision:  # fmt: skip
    """Recommend a setting; the current one, unless another is better by more than one standard error.

    The settings are compared after the same number of rounds; the current one is missing if it diverged.
    """
    order = ranked(values, by, main, constraints)
    best, bounds = order[0], " and ".join(map(str, constraints))
    compared = [name for name in order if name != current and current in scores]
    others = {name: difference(scores[name], scores[current], by) for name in compared}
    if violation(values[best], constraints):
        return Decision(None, f"no setting has {bounds}; the nearest is {best!r}", others)
    if current not in scores:
        return Decision(best, f"your setting diverged; {best!r} is the best of the others", others)
    if violation(values[current], constraints):
        return Decision(best, f"your setting misses {bounds}", others)
    if not others:
        return Decision(current, "keep yours: no other setting was trained as far", others)
    for name in order[: order.index(current)]:
        gain, error = others[name]
        if others[name].is_clear:
            reason = f"{by.title} is {_amount(gain, by)} better than yours, with a standard error of {by.text(error)}"
            return Decision(name, reason, others)
    gain, error = next(iter(others.values()))  # of the best other setting
    if gain <= 0:
        return Decision(current, f"keep yours: no other setting has a better {by.title}", others)
    within = f"{_amount(gain, by)} better, within one standard error ({by.text(error)})"
    return Decision(current, f"keep yours: {by.title} of the best other setting is {within}", others)


def _amount(gain: float, by: Objective) -> str:
    return f"{by.text(gain)}{' points' if by.unit else ''}"
