"""The recommendation: standard errors of differences on validation data, the Pareto front, and "keep yours"."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedtilt import seeds
from fedtilt.tuning.objectives import Constraint, Objective, Scores

BySeed = Mapping[int, Scores]  # seed → the scores of one setting
Values = Mapping[str, float]  # objective → value
MAX_LOSS = 5.0  # points below the best accuracy, or percent above the least error: a collapsed model may be fair
_RESAMPLES = 100


@dataclass(frozen=True)
class Difference:
    """How much better a setting is than another one, and how certain that is."""

    gain: float  # positive: better
    error: float  # standard error

    @property
    def is_clear(self) -> bool:
        """Whether it is better by more than one standard error."""
        return self.gain > self.error


def difference(ours: BySeed, theirs: BySeed, objective: Objective) -> Difference:
    """How much better `ours` is than `theirs`, paired by seed and client.

    The standard error is the larger of two: that of the clients and their validation samples, by a bootstrap over
    clients that draws the same clients for both, and, with several seeds, that of the seeds.
    """
    gains = [objective.better(objective.value(ours[seed]), objective.value(theirs[seed])) for seed in ours]
    resampled = [_resampled_gains(ours[seed], theirs[seed], objective, seed) for seed in ours]
    errors = [_deviation([fmean(draw) for draw in zip(*resampled, strict=True)])]
    if len(gains) > 1:
        errors.append(stdev(gains) / math.sqrt(len(gains)))
    return Difference(fmean(gains), max(errors))


def _resampled_gains(ours: Scores, theirs: Scores, objective: Objective, seed: int) -> list[float]:
    """The gain on clients that are drawn with replacement, many times."""
    clients = (ours.total.sum(1) > 0).nonzero()[:, 0]
    draws = clients[seeds.integers(seeds.key(seed, "tune bootstrap"), (_RESAMPLES, len(clients)), len(clients))]
    return [
        objective.better(objective.value(ours.of_clients(rows)), objective.value(theirs.of_clients(rows)))
        for rows in draws
    ]


def _deviation(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.sqrt(fmean((value - mean) ** 2 for value in values))


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
    limit = best + MAX_LOSS * (1 if main.unit == "%" else best / 100)
    return {name for name, values in settings.items() if _cost(values, main) > limit}


def pareto_front(
    settings: Mapping[str, Values], objectives: Sequence[Objective], main: Objective,
    constraints: Sequence[Constraint] = (),
) -> list[str]:  # fmt: skip
    """The settings that no other one beats in an objective without being worse in another; the best of the first first.

    Settings that miss a constraint, or are much worse than the best by the main objective, are left out.

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


@dataclass(frozen=True)
class Decision:
    """Which setting to use, and why."""

    chosen: str | None  # None: no setting keeps the constraints
    reason: str
    differences: Mapping[str, Difference]  # of every other setting to the user's own


def decide(
    scores: Mapping[str, BySeed], values: Mapping[str, Values], yours: str, by: Objective, main: Objective,
    constraints: Sequence[Constraint],
) -> Decision:  # fmt: skip
    """Recommend a setting; within one standard error of the user's own, keep that.

    Args:
        scores: of the settings that are compared, after the same number of rounds
        values: their objectives
        yours: the name of the user's own setting; it may be missing from the scores, if it diverged
        by: the objective
        main: the objective that a collapsed model is known by
        constraints: what the recommended setting has to keep
    """
    order = ranked(values, by, main, constraints)
    differences = {
        name: difference(scores[name], scores[yours], by) for name in scores if name != yours and yours in scores
    }
    best = order[0]
    if violation(values[best], constraints):
        bounds = " and ".join(map(str, constraints))
        return Decision(None, f"no setting has {bounds}; the nearest is {best!r}", differences)
    if yours not in scores:
        return Decision(best, f"your setting diverged; {best!r} is the best of the others", differences)
    if violation(values[yours], constraints):
        return Decision(best, "your setting misses " + " and ".join(map(str, constraints)), differences)
    clear = [
        name
        for name in order
        if name != yours and differences[name].is_clear and not violation(values[name], constraints)
    ]
    if not clear or order.index(clear[0]) > order.index(yours):
        if len(scores) == 1:
            return Decision(yours, "keep yours: no other setting was trained as far", differences)
        nearest = next(name for name in order if name != yours)
        found = differences[nearest]
        return Decision(
            yours,
            f"keep yours: {by.title} of the best other setting is {_amount(found.gain, by)} better, within one "
            f"standard error ({found.error:.2f})"
            if found.gain > 0
            else f"keep yours: no other setting has a better {by.title}",
            differences,
        )
    found = differences[clear[0]]
    return Decision(
        clear[0],
        f"{by.title} is {_amount(found.gain, by)} better than yours, with a standard error of {found.error:.2f}",
        differences,
    )


def _amount(gain: float, by: Objective) -> str:
    return f"{gain:.2f} points" if by.unit else f"{gain:.4g}"
