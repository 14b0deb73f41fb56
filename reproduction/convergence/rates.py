"""Gradient descent compared with its bounds: with the shared model fixed, and over the rounds of the algorithm."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.engine.client import finish, plan
from fedtilt.engine.server import server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.methods import fedtilt
from fedtilt.parts import Parts
from fedtilt.training import Trained
from reproduction.convergence.problem import (
    Problem,
    constants,
    fixed_point,
    gradient_descent,
    personal_optimum,
    shared_optimum,
)
from reproduction.experiment import OnProgress

FLOOR = 1e-11  # smaller gaps are rounding errors
SOLVED = 1e-6  # of the first gap: counts as converged
ROUND_PARTS = (
    "forget", "follow", "drift", "tightest", "shared", "personal", "bound", "shared_factor", "personal_factor",
    "shared_power", "personal_power", "client", "gap", "printed", "crossed",
)  # keys of the result of `over_rounds`  # fmt: skip
_POINTS = 80  # of a stored curve, at most


def with_w_fixed(problems: Sequence[Problem], settings: Mapping[str, Any], on_progress: OnProgress) -> dict[str, Any]:
    """Gradient descent on L_n(·, 0) from a random start, step 1 / smoothness; contraction and bound."""
    mu, clients = settings["mu"], []
    for client, p in enumerate(problems):
        smoothness = constants(p).smoothness(p.tau, p.lam, mu)
        w = p.zero
        v = seeds.normal(seeds.key(settings["seed"], "convergence/start", client=client), (p.size,)).to(w)
        optimum = personal_optimum(p, mu, w)
        minimum = _objective(p, mu, optimum, w)
        gaps = [_objective(p, mu, v, w) - minimum]
        while len(gaps) <= settings["iterations"] and gaps[-1] > FLOOR:
            v = gradient_descent(p, v, 1, 1 / smoothness, mu, w)
            gaps.append(_objective(p, mu, v, w) - minimum)
        ratios = [b / a for a, b in pairwise(gaps) if a > FLOOR]
        solved = next((i for i, gap in enumerate(gaps) if gap <= SOLVED * gaps[0]), None)
        steepest = float(torch.linalg.eigvalsh(p.hessian(optimum))[-1]) + mu
        clients.append(
            {
                "smoothness": smoothness, "steepest": steepest, "allowed": 1 - (p.rho + mu) / smoothness,
                "worst": max(ratios), "solved": solved, "curve": _thin(gaps) if client == 0 else None,
            }
        )  # fmt: skip
        on_progress(client + 1, len(problems), "")
    return {"clients": clients}


def over_rounds(problems: Sequence[Problem], settings: Mapping[str, Any], on_progress: OnProgress) -> dict[str, Any]:
    """The algorithm (`plan`, full-batch descent, `server_update`): distances of w and every v_n to their limits."""
    mu, steps, decay = settings["mu"], settings["steps"], settings["decay"]
    method = fedtilt(problems[0].tau, problems[0].lam, mu=mu)
    smoothness = max(constants(p).smoothness(p.tau, p.lam, mu) for p in problems)
    eta = 1 / smoothness
    mean_optimum = shared_optimum(problems)
    limit = mean_optimum if decay else fixed_point(problems, steps, eta, mean_optimum)
    optima = [personal_optimum(p, mu, limit) for p in problems]
    w = limit.clone() if settings["start"] == "limit" else problems[0].zero
    start, parts = w, Parts.plain(w)
    kept: list[dict[str, Tensor]] = [{} for _ in problems]
    errors = [[float((w - optimum).norm()) for optimum in optima]]  # v starts at the w it receives
    gaps = [[_gap(p, mu, w, w, optimum, limit) for p, optimum in zip(problems, optima, strict=True)]]
    shared = [float((w - limit).norm())]
    squared_norms = [float(w @ w)]
    for t in range(settings["rounds"]):
        lr = eta / (1 + t / decay) if decay else eta
        training = TrainSettings(lr=lr, lr_personal=eta)
        updates = {}
        for n, p in enumerate(problems):
            jobs = plan(method, {"parameters": w}, kept[n], parts=parts, settings=training, round=1)
            trained = {
                model: Trained(gradient_descent(p, job.start, steps, job.lr, job.prox, job.anchor))
                for model, job in jobs.items()
            }
            updates[n], kept[n] = finish(
                method, jobs, trained, kept[n], parts=parts, settings=training, rows=1, samples=1
            )
        w = server_update(method, {"parameters": w}, updates, training).state["parameters"]
        personal_now = [state["personal"] for state in kept]
        errors.append([float((v - g).norm()) for v, g in zip(personal_now, optima, strict=True)])
        gaps.append([_gap(p, mu, v, w, g, limit) for p, v, g in zip(problems, personal_now, optima, strict=True)])
        shared.append(float((w - limit).norm()))
        squared_norms.append(float(w @ w))
        on_progress(t + 1, settings["rounds"], "")
    forget = (1 - eta * (problems[0].rho + mu)) ** steps
    follow = mu / (problems[0].rho + mu)
    personal = [sum(row) / len(row) for row in errors]
    printed = [
        _printed_bound(p, mu, optimum, limit, start, shared, squared_norms, steps, smoothness)
        for p, optimum in zip(problems, optima, strict=True)
    ]
    violations = [_violations([row[n] for row in gaps], printed[n]) for n in range(len(problems))]
    firsts = [v["first"] if v else math.inf for v in violations]
    client = firsts.index(min(firsts))  # whose bound is violated first, if any
    return {
        "forget": forget, "follow": follow, "drift": float((limit - mean_optimum).norm()),
        "tightest": _tightest(errors, shared, forget, follow),
        "shared": _thin(shared), "personal": _thin(personal),
        "bound": _thin(_recursion(personal[0], shared, forget, follow)),
        "shared_factor": factor(shared), "personal_factor": factor(personal),
        "shared_power": power(shared) if decay else None,
        "personal_power": power(personal) if decay else None,
        "client": client, "gap": _thin([row[client] for row in gaps]), "printed": _thin(printed[client]),
        "crossed": violations,
    }  # fmt: skip


def _objective(p: Problem, mu: float, v: Tensor, w: Tensor) -> float:
    return float(p.value(v) + mu / 2 * (v - w).square().sum())


def _gap(p: Problem, mu: float, v: Tensor, w: Tensor, optimum: Tensor, limit: Tensor) -> float:
    return _objective(p, mu, v, w) - _objective(p, mu, optimum, limit)


def _tightest(errors: Sequence[Sequence[float]], shared: Sequence[float], forget: float, follow: float) -> float:
    """The largest ratio of an error to our bound on it, over clients and rounds; at most 1 if the bound holds."""
    return max(
        now / (forget * before + (1 - forget) * follow * distance)
        for (row, after), distance in zip(pairwise(errors), shared, strict=False)
        for before, now in zip(row, after, strict=True) if now > FLOOR
    )  # fmt: skip


def _recursion(first: float, shared: Sequence[float], forget: float, follow: float) -> list[float]:
    """Our bound on the error of v, from the first error and the distance of w in every round."""
    bound = [first]
    for distance in shared[:-1]:
        bound.append(forget * bound[-1] + (1 - forget) * follow * distance)
    return bound


def _printed_bound(
    p: Problem, mu: float, optimum: Tensor, limit: Tensor, start: Tensor, shared: Sequence[float],
    squared_norms: Sequence[float], steps: int, smoothness: float,
) -> list[float]:  # fmt: skip
    """(D + mu/2 · g(t)) · Lambda^t + E · Gamma^t after every round, with the paper's D and E and t counting iterations.

    Gamma uses the smoothness of v's objective, the largest that makes sense: L_n(v, ·) itself is mu-smooth, which
    would give Gamma = 0.
    """
    start_distance = float((start - limit).square().sum())
    optimum_norm = float(optimum @ optimum)
    d = float(p.value(start) - p.value(optimum)) + mu / 2 * (start_distance + max(squared_norms) - optimum_norm)
    e = max(0.0, float((optimum - start).square().sum() - (optimum - limit).square().sum()))
    big_lambda, big_gamma = 1 - (p.rho + mu) / smoothness, 1 - mu / smoothness
    return [
        (d + mu / 2 * distance**2) * big_lambda ** (steps * t) + e * big_gamma ** (steps * t)
        for t, distance in enumerate(shared)
    ]


def _violations(gaps: Sequence[float], bound: Sequence[float]) -> dict[str, Any] | None:
    """The rounds where a gap is above the bound by more than rounding: first and last, how many, how far.

    `times` is the largest ratio of the two, `at` its round. A larger constant in the bound compensates for a finite
    ratio; a ratio that is largest in the last round is still growing.

    >>> _violations([4.0, 2.0, 1.0], [3.0, 2.5, 1.0])
    {'first': 0, 'last': 0, 'rounds': 1, 'times': 1.3333333333333333, 'at': 0}
    """
    pairs = enumerate(zip(gaps, bound, strict=True))
    ratios = {t: gap / most if most > 0 else math.inf for t, (gap, most) in pairs if gap > most + 1e-12}
    if not ratios:
        return None
    worst = max(ratios, key=lambda t: ratios[t])
    times = ratios[worst] if ratios[worst] < math.inf else None  # None: the bound is not positive
    return {"first": min(ratios), "last": max(ratios), "rounds": len(ratios), "times": times, "at": worst}


def factor(errors: Sequence[float]) -> float | None:
    """The factor by which an error shrinks per round, fitted to the second half of the values above the floor.

    >>> round(factor([0.5**t for t in range(20)]), 6)
    0.5
    """
    points = [(float(t), math.log(e)) for t, e in enumerate(errors) if e > FLOOR]
    return math.exp(_slope(points[len(points) // 2 :])) if len(points) >= 4 else None


def power(errors: Sequence[float]) -> float | None:
    """The exponent of an error that falls like a power of the round, fitted in the same way.

    >>> round(power([1.0] + [t**-2.0 for t in range(1, 20)]), 6)
    -2.0
    """
    points = [(math.log(t), math.log(e)) for t, e in enumerate(errors) if t and e > FLOOR]
    return _slope(points[len(points) // 2 :]) if len(points) >= 4 else None


def _slope(points: Sequence[tuple[float, float]]) -> float:
    x, y = sum(p[0] for p in points) / len(points), sum(p[1] for p in points) / len(points)
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def _thin(values: Sequence[float]) -> list[list[float]]:
    """(index, value) at evenly spaced indices, including the first and the last."""
    count = min(_POINTS, len(values))
    indices = sorted({round(i * (len(values) - 1) / max(1, count - 1)) for i in range(count)})
    return [[i, values[i]] for i in indices]
