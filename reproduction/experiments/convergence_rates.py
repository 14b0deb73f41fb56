"""Gradient descent compared with its bounds: with the shared model fixed, and over the rounds of the algorithm."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import linear_regression
from typing import Any

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.engine.client import finish, plan
from fedtilt.engine.server import server_update
from fedtilt.engine.settings import TrainSettings
from fedtilt.methods import fedtilt
from fedtilt.parts import Parts
from fedtilt.state import ClientState, ServerState
from fedtilt.training import Trained
from reproduction.experiment import OnProgress


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """R of one client: samples with a constant feature, labels, tilts and the L2 term."""

    x: Tensor  # (n, d) float64, the last feature constant
    y: Tensor  # (n,)
    classes: int
    tau: float
    lam: float
    rho: float

    @property
    def size(self) -> int:
        """The number of parameters P = classes · d."""
        return self.classes * self.x.shape[1]

    @property
    def zero(self) -> Tensor:
        """The zero model, (P,)."""
        return self.x.new_zeros(self.size)

    def value(self, v: Tensor) -> Tensor:
        """R(v)."""
        logits = self._logits(v)
        losses = logits.logsumexp(1) - logits.gather(1, self.y[:, None])[:, 0]
        class_risks, _ = self._tilt_samples(losses)
        tilted = self.tau * class_risks + self._log_sizes
        total = tilted.logsumexp(0) / self.tau if self.tau else class_risks @ self._log_sizes.exp()
        return total + self.rho / 2 * v @ v

    def gradient(self, v: Tensor) -> Tensor:
        """∇R(v), (P,)."""
        pi, p, softmax = self._weights(v)
        return (((pi @ p)[:, None] * (softmax - self._one_hot)).T @ self.x).reshape(-1) + self.rho * v

    def hessian(self, v: Tensor) -> Tensor:
        """∇²R(v), (P, P)."""
        pi, p, softmax = self._weights(v)
        weights = pi @ p  # (n,)
        gradients = ((softmax - self._one_hot)[:, :, None] * self.x[:, None, :]).flatten(1)  # (n, P): of the samples
        outer = (softmax[:, :, None] * self.x[:, None, :]).flatten(1)  # (n, P)
        blocks = torch.einsum("n,nk,na,nb->kab", weights, softmax, self.x, self.x)
        mean_hessian = torch.block_diag(*blocks) - (weights[:, None] * outer).T @ outer
        class_gradients = p @ gradients  # (C, P)
        total = pi @ class_gradients
        within = (weights[:, None] * gradients).T @ gradients - (pi[:, None] * class_gradients).T @ class_gradients
        between = (pi[:, None] * class_gradients).T @ class_gradients - torch.outer(total, total)
        return mean_hessian + self.lam * within + self.tau * between + self.rho * _identity(v)

    def _logits(self, v: Tensor) -> Tensor:
        return self.x @ v.reshape(self.classes, -1).T

    def _weights(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weights pi of the classes (C,) and p of the samples in their class (C, n), the softmax (n, K)."""
        log_softmax = self._logits(v).log_softmax(1)
        class_risks, p = self._tilt_samples(-log_softmax.gather(1, self.y[:, None])[:, 0])
        return (self.tau * class_risks + self._log_sizes).softmax(0), p, log_softmax.exp()

    def _tilt_samples(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """R_k of the client's classes (C,), and the weight of each sample in its class (C, n).

        `fedtilt.math.tilt` does this for any tilt and any labels; this is faster in ten thousand small steps.
        """
        scores = self.lam * losses + self._log_membership  # (C, n)
        p = scores.softmax(1)
        return (scores.logsumexp(1) / self.lam if self.lam else p @ losses), p

    @cached_property
    def _log_membership(self) -> Tensor:
        """-log n_k where a sample is of class k, -inf elsewhere, (C, n)."""
        of_class = self.y.unique()[:, None] == self.y
        return torch.where(of_class, -of_class.sum(1, keepdim=True).double().log(), -torch.inf)

    @cached_property
    def _log_sizes(self) -> Tensor:
        """log(n_k / n) of the client's classes, (C,)."""
        return (self.y.unique(return_counts=True)[1].double() / len(self.y)).log()

    @cached_property
    def _one_hot(self) -> Tensor:
        """One-hot labels, (n, K)."""
        return torch.nn.functional.one_hot(self.y, self.classes).double()


def _identity(v: Tensor) -> Tensor:
    return torch.eye(len(v), dtype=v.dtype, device=v.device)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """For every v: rho ≤ ∇²R ≤ curvature + tau · between + lam · within."""

    curvature: float  # beta_max: the largest eigenvalue of a sample's Hessian, rho included
    between: float  # B_2
    within: float  # B_3

    def smoothness(self, tau: float, lam: float, mu: float) -> float:
        """B_1 + tau · B_2 + lam · B_3 of L_n(·, w) with B_1 = curvature + mu."""
        return self.curvature + mu + tau * self.between + lam * self.within


def constants(problem: Problem) -> Constants:
    """The constants of a client's data; they do not depend on tau and lam.

    The gradients of class y are (s − e_y) ⊗ x. Squared distances are convex in s, so the farthest pairs have s at
    vertices: 0 ⊗ x, or (e_j − e_y) ⊗ x of squared length 2|x|². Between two of the latter the factor c of −2<x, x'> is
    the product of (e_j − e_y) and (e_i − e_y'), which ranges over 1 … 2 inside a class and −2 … 1 between classes.
    """
    inner = problem.x @ problem.x.T  # (n, n)
    squares = inner.diagonal()
    same = problem.y[:, None] == problem.y[None, :]
    lengths = 2 * squares[:, None] + 2 * squares[None, :]
    within = torch.maximum(lengths - 2 * inner, lengths - 4 * inner)
    between = torch.maximum(lengths - 2 * inner, lengths + 4 * inner)
    single = 2 * squares.max()  # the longest gradient, and 0
    return Constants(
        curvature=squares.max().item() / 2 + problem.rho,  # diag(s) − ss' has no eigenvalue above 1/2
        within=torch.maximum(single, within[same].max()).item() / 4,
        between=(torch.maximum(single, between[~same].max()).item() if not same.all() else 0.0) / 4,
    )


def personal_optimum(problem: Problem, mu: float, anchor: Tensor) -> Tensor:
    """The minimiser of R(v) + mu/2 · ||v − anchor||², by damped Newton steps."""
    return shared_optimum([problem], mu, anchor)


def shared_optimum(problems: Sequence[Problem], mu: float = 0.0, anchor: Tensor | None = None) -> Tensor:
    """The minimiser of the mean of the clients' R, plus mu/2 · ||v − anchor||² if there is an anchor."""
    v = problems[0].zero if anchor is None else anchor.clone()
    centre = torch.zeros_like(v) if anchor is None else anchor
    eye = _identity(v)

    def value(v: Tensor) -> float:
        return float(sum(p.value(v) for p in problems) / len(problems) + mu / 2 * (v - centre).square().sum())

    for _ in range(100):
        gradient = sum((p.gradient(v) for p in problems), torch.zeros_like(v)) / len(problems) + mu * (v - centre)
        if gradient.norm() < 1e-13:
            break
        hessian = sum((p.hessian(v) for p in problems), torch.zeros_like(eye)) / len(problems) + mu * eye
        step, size = torch.linalg.solve(hessian, gradient), 1.0
        decrease = float(gradient @ step)  # below 1e-9 rounding hides it, and full Newton steps converge
        while decrease > 1e-9 and value(v - size * step) > value(v) - 1e-4 * size * decrease:
            size /= 2
        v = v - size * step
    return v


def gradient_descent(problem: Problem, start: Tensor, steps: int, lr: float, prox: float, anchor: Tensor) -> Tensor:
    """`steps` full-batch gradient steps on R(v) + prox/2 · ||v − anchor||²."""
    v = start
    for _ in range(steps):
        v = v - lr * (problem.gradient(v) + prox * (v - anchor))
    return v


def fixed_point(problems: Sequence[Problem], steps: int, lr: float, start: Tensor) -> Tensor:
    """The w that a round does not change, by Newton steps; a round averages the clients' descents from w.

    With one step it is the minimiser of the mean of R; with several the clients drift, and it is another point.
    """
    w, eye = start, _identity(start)
    for _ in range(50):
        after, mean_jacobian = torch.zeros_like(w), torch.zeros_like(eye)
        for p in problems:
            v, jacobian = w, eye
            for _ in range(steps):
                v, jacobian = v - lr * p.gradient(v), jacobian - lr * p.hessian(v) @ jacobian
            after, mean_jacobian = after + v / len(problems), mean_jacobian + jacobian / len(problems)
        if (after - w).norm() < 1e-14:
            break
        w = w + torch.linalg.solve(eye - mean_jacobian, after - w)
    return w


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
    kept = [ClientState() for _ in problems]
    errors = [[float((w - optimum).norm()) for optimum in optima]]  # v starts at the w it receives
    gaps = [[_gap(p, mu, w, w, optimum, limit) for p, optimum in zip(problems, optima, strict=True)]]
    shared = [float((w - limit).norm())]
    squared_norms = [float(w @ w)]
    for t in range(settings["rounds"]):
        lr = eta / (1 + t / decay) if decay else eta
        training = TrainSettings(lr=lr, lr_personal=eta)
        updates = {}
        for n, p in enumerate(problems):
            jobs = plan(method, ServerState(w), kept[n], parts=parts, settings=training, round=1)
            trained = {
                model: Trained(gradient_descent(p, job.start, steps, job.lr, job.prox, job.anchor))
                for model, job in jobs.items()
            }
            updates[n], kept[n] = finish(
                method, jobs, trained, kept[n], parts=parts, settings=training, rows=1, samples=1
            )
        w = server_update(method, ServerState(w), updates, training).state.parameters
        personal_now = [state.personal for state in kept if state.personal is not None]
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
    return linear_regression(*zip(*points, strict=True)).slope


def _thin(values: Sequence[float]) -> list[list[float]]:
    """(index, value) at evenly spaced indices, including the first and the last."""
    count = min(_POINTS, len(values))
    indices = sorted({round(i * (len(values) - 1) / max(1, count - 1)) for i in range(count)})
    return [[i, values[i]] for i in indices]
