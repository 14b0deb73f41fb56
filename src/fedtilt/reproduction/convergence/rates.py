"""Descents against their bounds: with the shared model fixed, and over the rounds of the algorithm itself."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.methods import fedtilt
from fedtilt.reproduction.convergence.problem import (
    Problem,
    constants,
    descended,
    personal_optimum,
    resting_point,
    shared_optimum,
)
from fedtilt.reproduction.experiment import OnProgress
from fedtilt.rounds.round import plan, server_update

FLOOR = 1e-11  # below it, rounding is what a gap consists of
SOLVED = 1e-6  # of the first gap: where we stop counting iterations
ROUND_PARTS = (
    "forget", "follow", "drift", "tightest", "shared", "personal", "bound", "shared_factor", "personal_factor",
    "shared_power", "personal_power", "client", "gap", "printed", "crossed",
)  # of the result of `over_rounds`  # fmt: skip
_POINTS = 80  # of a curve, no more


def with_w_fixed(problems: Sequence[Problem], settings: Mapping[str, Any], on_progress: OnProgress) -> dict[str, Any]:
    """Gradient descent on L_n(·, 0) from a random start, step 1 / smoothness; every iteration against the bound."""
    mu, found = settings["mu"], []
    for client, p in enumerate(problems):
        smoothness = constants(p).smoothness(p.tau, p.lam, mu)
        w = p.zero
        v = seeds.normal(seeds.key(settings["seed"], "convergence/start", client=client), (p.size,)).to(w)
        best = personal_optimum(p, mu, w)
        least = _objective(p, mu, best, w)
        gaps = [_objective(p, mu, v, w) - least]
        while len(gaps) <= settings["iterations"] and gaps[-1] > FLOOR:
            v = descended(p, v, 1, 1 / smoothness, mu, w)
            gaps.append(_objective(p, mu, v, w) - least)
        ratios = [b / a for a, b in pairwise(gaps) if a > FLOOR]
        solved = next((i for i, gap in enumerate(gaps) if gap <= SOLVED * gaps[0]), None)
        steepest = float(torch.linalg.eigvalsh(p.hessian(best))[-1]) + mu
        found.append(
            {
                "smoothness": smoothness, "steepest": steepest, "allowed": 1 - (p.rho + mu) / smoothness,
                "worst": max(ratios), "solved": solved, "curve": _thin(gaps) if client == 0 else None,
            }
        )  # fmt: skip
        on_progress(client + 1, len(problems), "")
    return {"clients": found}


def over_rounds(problems: Sequence[Problem], settings: Mapping[str, Any], on_progress: OnProgress) -> dict[str, Any]:
    """The algorithm itself (`plan`, full-batch descent, `settle`): distances of w and every v_n to their limits."""
    mu, steps, decay = settings["mu"], settings["steps"], settings["decay"]
    method = fedtilt(problems[0].tau, problems[0].lam, mu=mu)
    smoothness = max(constants(p).smoothness(p.tau, p.lam, mu) for p in problems)
    eta = 1 / smoothness
    mean_optimum = shared_optimum(problems)
    limit = mean_optimum if decay else resting_point(problems, steps, eta, mean_optimum)
    goals = [personal_optimum(p, mu, limit) for p in problems]
    w = limit.clone() if settings["start"] == "limit" else problems[0].zero
    start, last = w, list[Tensor | None]([None] * len(problems))
    errors = [[float((w - goal).norm()) for goal in goals]]  # v starts at the w it receives
    gaps = [[_gap(p, mu, w, w, goal, limit) for p, goal in zip(problems, goals, strict=True)]]
    shared = [float((w - limit).norm())]
    lengths = [float(w @ w)]
    for t in range(settings["rounds"]):
        rate = eta / (1 + t / decay) if decay else eta
        updates: dict[int, Tensor] = {}
        for n, p in enumerate(problems):
            planned = plan(method, w, last[n], lr=rate, lr_personal=eta)
            updates[n], last[n] = (
                descended(p, lane.start, steps, lane.lr, lane.prox, lane.anchor) for lane in planned.jobs
            )
        w = server_update(method, w, updates, dict.fromkeys(updates, 1)).shared
        own = [v for v in last if v is not None]
        errors.append([float((v - g).norm()) for v, g in zip(own, goals, strict=True)])
        gaps.append([_gap(p, mu, v, w, g, limit) for p, v, g in zip(problems, own, goals, strict=True)])
        shared.append(float((w - limit).norm()))
        lengths.append(float(w @ w))
        on_progress(t + 1, settings["rounds"], "")
    forget = (1 - eta * (problems[0].rho + mu)) ** steps
    follow = mu / (problems[0].rho + mu)
    personal = [sum(row) / len(row) for row in errors]
    printed = [
        _printed_bound(p, mu, goal, limit, start, shared, lengths, steps, smoothness)
        for p, goal in zip(problems, goals, strict=True)
    ]
    broken = [_broken([row[n] for row in gaps], printed[n]) for n in range(len(problems))]
    firsts = [found["first"] if found else math.inf for found in broken]
    shown = firsts.index(min(firsts))  # the first one broken, if any
    return {
        "forget": forget, "follow": follow, "drift": float((limit - mean_optimum).norm()),
        "tightest": _tightest(errors, shared, forget, follow),
        "shared": _thin(shared), "personal": _thin(personal),
        "bound": _thin(_recursion(personal[0], shared, forget, follow)),
        "shared_factor": factor(shared), "personal_factor": factor(personal),
        "shared_power": power(shared) if decay else None,
        "personal_power": power(personal) if decay else None,
        "client": shown, "gap": _thin([row[shown] for row in gaps]), "printed": _thin(printed[shown]),
        "crossed": broken,
    }  # fmt: skip


def _objective(p: Problem, mu: float, v: Tensor, w: Tensor) -> float:
    return float(p.value(v) + mu / 2 * (v - w).square().sum())


def _gap(p: Problem, mu: float, v: Tensor, w: Tensor, goal: Tensor, limit: Tensor) -> float:
    return _objective(p, mu, v, w) - _objective(p, mu, goal, limit)


def _tightest(errors: Sequence[Sequence[float]], shared: Sequence[float], forget: float, follow: float) -> float:
    """The largest share of our own bound that any client used up in any round: at most 1."""
    return max(
        now / (forget * before + (1 - forget) * follow * away)
        for (row, after), away in zip(pairwise(errors), shared, strict=False)
        for before, now in zip(row, after, strict=True) if now > FLOOR
    )  # fmt: skip


def _recursion(first: float, shared: Sequence[float], forget: float, follow: float) -> list[float]:
    """Our bound from the first error on, given how far w was in every round."""
    bound = [first]
    for away in shared[:-1]:
        bound.append(forget * bound[-1] + (1 - forget) * follow * away)
    return bound


def _printed_bound(
    p: Problem, mu: float, goal: Tensor, limit: Tensor, start: Tensor, shared: Sequence[float],
    lengths: Sequence[float], steps: int, smoothness: float,
) -> list[float]:  # fmt: skip
    """(D + mu/2 · g(t)) · Lambda^t + E · Gamma^t after every round, with the paper's D and E and t counting iterations.

    Gamma is taken with the smoothness of v's objective, the largest that makes sense: L_n(v, ·) itself is mu-smooth,
    which would give Gamma = 0.
    """
    away_at_first = float((start - limit).square().sum())
    d = float(p.value(start) - p.value(goal)) + mu / 2 * (away_at_first + max(lengths) - float(goal @ goal))
    e = max(0.0, float((goal - start).square().sum() - (goal - limit).square().sum()))
    fast, slow = 1 - (p.rho + mu) / smoothness, 1 - mu / smoothness
    return [(d + mu / 2 * away**2) * fast ** (steps * t) + e * slow ** (steps * t) for t, away in enumerate(shared)]


def _broken(gaps: Sequence[float], bound: Sequence[float]) -> dict[str, Any] | None:
    """The rounds in which a gap is above the bound by more than rounding: how often, from when to when, how far.

    `times` is the largest ratio of the two. A larger constant in the bound makes up for a ratio that stays finite; one
    that is largest `at` the last round has not stopped growing.

    >>> _broken([4.0, 2.0, 1.0], [3.0, 2.5, 1.0])
    {'first': 0, 'last': 0, 'rounds': 1, 'times': 1.3333333333333333, 'at': 0}
    """
    both = enumerate(zip(gaps, bound, strict=True))
    over = {t: gap / most if most > 0 else math.inf for t, (gap, most) in both if gap > most + 1e-12}
    if not over:
        return None
    worst = max(over, key=lambda t: over[t])
    times = over[worst] if over[worst] < math.inf else None  # None: the bound is not even positive
    return {"first": min(over), "last": max(over), "rounds": len(over), "times": times, "at": worst}


def factor(errors: Sequence[float]) -> float | None:
    """By how much an error shrinks per round, fitted to the second half of what is above the floor.

    >>> round(factor([0.5**t for t in range(20)]), 6)
    0.5
    """
    points = [(float(t), math.log(e)) for t, e in enumerate(errors) if e > FLOOR]
    return math.exp(_slope(points[len(points) // 2 :])) if len(points) >= 4 else None


def power(errors: Sequence[float]) -> float | None:
    """The exponent of an error that falls like a power of the round, fitted to the second half.

    >>> round(power([1.0] + [t**-2.0 for t in range(1, 20)]), 6)
    -2.0
    """
    points = [(math.log(t), math.log(e)) for t, e in enumerate(errors) if t and e > FLOOR]
    return _slope(points[len(points) // 2 :]) if len(points) >= 4 else None


def _slope(points: Sequence[tuple[float, float]]) -> float:
    x, y = sum(p[0] for p in points) / len(points), sum(p[1] for p in points) / len(points)
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def _thin(values: Sequence[float]) -> list[list[float]]:
    """(index, value) at evenly spread places, the first and the last among them."""
    count = min(_POINTS, len(values))
    places = sorted({round(i * (len(values) - 1) / max(1, count - 1)) for i in range(count)})
    return [[i, values[i]] for i in places]
