"""Strongly convex tilted objectives in float64, with the constants that the convergence results speak of.

The loss is softmax regression with an L2 term, l(z; v) = cross-entropy + rho/2 · ||v||². The term may stand in the
sample loss or in the objective: a tilted mean moves with its values, tilt(l + c) = tilt(l) + c, so it is the same
function. For tau, lam > 0 the tilts of the convex cross-entropy are convex, hence R is rho-strongly convex.

With shares p of the samples in their class and pi of the classes, whose products are the gradient of the tilts,

    ∇²R = Σ_z pi_k p_z · ∇²l_z  +  lam · Σ_k pi_k · Cov_p(∇l | k)  +  tau · Cov_pi(g_k),     g_k = Σ_z p_z ∇l_z

and the regulariser's gradient, the same for every sample, drops out of both covariances. What is left is bounded for
all v: the gradient of cross-entropy is (s − e_y) ⊗ x with s in the simplex, and a distribution on a set of diameter d
has no variance beyond d²/4. So L_n is (B_1 + tau · B_2 + lam · B_3)-smooth everywhere, with constants from the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


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
        """The model that is 0, (P,)."""
        return self.x.new_zeros(self.size)

    def value(self, v: Tensor) -> Tensor:
        """R(v)."""
        logits = self._logits(v)
        losses = logits.logsumexp(1) - logits.gather(1, self.y[:, None])[:, 0]
        worth, _ = self._tilted(losses)
        total = (
            (self.tau * worth + self._log_size).logsumexp(0) / self.tau if self.tau else worth @ self._log_size.exp()
        )
        return total + self.rho / 2 * v @ v

    def gradient(self, v: Tensor) -> Tensor:
        """∇R(v), (P,)."""
        pi, inside, guess = self._shares(v)
        return (((pi @ inside)[:, None] * (guess - self._label)).T @ self.x).reshape(-1) + self.rho * v

    def hessian(self, v: Tensor) -> Tensor:
        """∇²R(v), (P, P)."""
        pi, inside, guess = self._shares(v)
        share = pi @ inside  # (n,)
        each = ((guess - self._label)[:, :, None] * self.x[:, None, :]).flatten(1)  # (n, P): gradients of the samples
        spread = (guess[:, :, None] * self.x[:, None, :]).flatten(1)  # (n, P)
        blocks = torch.einsum("n,nk,na,nb->kab", share, guess, self.x, self.x)
        curved = torch.block_diag(*blocks) - (share[:, None] * spread).T @ spread
        means = inside @ each  # (C, P): the gradients of the classes
        total = pi @ means
        within = (share[:, None] * each).T @ each - (pi[:, None] * means).T @ means
        between = (pi[:, None] * means).T @ means - torch.outer(total, total)
        return curved + self.lam * within + self.tau * between + self.rho * _identity(v)

    def _logits(self, v: Tensor) -> Tensor:
        return self.x @ v.reshape(self.classes, -1).T

    def _shares(self, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What every class counts for (C,), what every sample counts for in its class (C, n), the softmax (n, K)."""
        logs = self._logits(v).log_softmax(1)
        worth, inside = self._tilted(-logs.gather(1, self.y[:, None])[:, 0])
        return (self.tau * worth + self._log_size).softmax(0), inside, logs.exp()

    def _tilted(self, losses: Tensor) -> tuple[Tensor, Tensor]:
        """R_k of the classes held (C,), and what each sample counts for in its class (C, n).

        `fedtilt.tilt` says the same for any tilt and any labels; ten thousand small steps want fewer calls.
        """
        scores = self.lam * losses + self._member  # (C, n)
        inside = scores.softmax(1)
        return (scores.logsumexp(1) / self.lam if self.lam else inside @ losses), inside

    @cached_property
    def _member(self) -> Tensor:
        """-log n_k where a sample is of class k, -inf elsewhere, (C, n)."""
        own = self.y.unique()[:, None] == self.y
        return torch.where(own, -own.sum(1, keepdim=True).double().log(), -torch.inf)

    @cached_property
    def _log_size(self) -> Tensor:
        """The logarithms of n_k / n of the classes held, (C,)."""
        return (self.y.unique(return_counts=True)[1].double() / len(self.y)).log()

    @cached_property
    def _label(self) -> Tensor:
        """Labels as rows of the identity, (n, K)."""
        return torch.nn.functional.one_hot(self.y, self.classes).double()


def _identity(v: Tensor) -> Tensor:
    return torch.eye(len(v), dtype=v.dtype, device=v.device)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """∇²R lies between rho and curvature + tau · between + lam · within, wherever v is."""

    curvature: float  # beta_max: the largest eigenvalue of a sample's Hessian, rho included
    between: float  # B_2
    within: float  # B_3

    def smoothness(self, tau: float, lam: float, mu: float) -> float:
        """B_1 + tau · B_2 + lam · B_3 of L_n(·, w) with B_1 = curvature + mu."""
        return self.curvature + mu + tau * self.between + lam * self.within


def constants(problem: Problem) -> Constants:
    """The constants of a client's data; tau and lam do not enter.

    The gradients of class y are (s − e_y) ⊗ x. Squared distances are convex in s, so the farthest pairs have s at
    vertices: 0 ⊗ x, or (e_j − e_y) ⊗ x of squared length 2|x|². Between two of the latter the factor c of −2<x, x'> is
    the product of (e_j − e_y) and (e_i − e_y'), which ranges over 1 … 2 inside a class and −2 … 1 between classes.
    """
    inner = problem.x @ problem.x.T  # (n, n)
    square = inner.diagonal()
    same = problem.y[:, None] == problem.y[None, :]
    lengths = 2 * square[:, None] + 2 * square[None, :]
    within = torch.maximum(lengths - 2 * inner, lengths - 4 * inner)
    between = torch.maximum(lengths - 2 * inner, lengths + 4 * inner)
    alone = 2 * square.max()  # one gradient at its longest, the other 0
    return Constants(
        curvature=square.max().item() / 2 + problem.rho,  # diag(s) − ss' has no eigenvalue above 1/2
        within=torch.maximum(alone, within[same].max()).item() / 4,
        between=(torch.maximum(alone, between[~same].max()).item() if not same.all() else 0.0) / 4,
    )


def personal_optimum(problem: Problem, mu: float, anchor: Tensor) -> Tensor:
    """The minimiser of R(v) + mu/2 · ||v − anchor||², by damped Newton steps."""
    return shared_optimum([problem], mu, anchor)


def shared_optimum(problems: Sequence[Problem], mu: float = 0.0, anchor: Tensor | None = None) -> Tensor:
    """The minimiser of the mean of the clients' R, plus a pull towards an anchor."""
    v = problems[0].zero if anchor is None else anchor.clone()
    at = torch.zeros_like(v) if anchor is None else anchor
    eye = _identity(v)

    def value(v: Tensor) -> float:
        return float(sum(p.value(v) for p in problems) / len(problems) + mu / 2 * (v - at).square().sum())

    for _ in range(100):
        slope = sum((p.gradient(v) for p in problems), torch.zeros_like(v)) / len(problems) + mu * (v - at)
        if slope.norm() < 1e-13:
            break
        bend = sum((p.hessian(v) for p in problems), torch.zeros_like(eye)) / len(problems) + mu * eye
        step, size = torch.linalg.solve(bend, slope), 1.0
        promise = float(slope @ step)  # below 1e-9 rounding hides the decrease, and Newton is at home
        while promise > 1e-9 and value(v - size * step) > value(v) - 1e-4 * size * promise:
            size /= 2
        v = v - size * step
    return v


def descended(problem: Problem, start: Tensor, steps: int, lr: float, pull: float, anchor: Tensor) -> Tensor:
    """`steps` full-batch gradient steps on R(v) + pull/2 · ||v − anchor||²."""
    v = start
    for _ in range(steps):
        v = v - lr * (problem.gradient(v) + pull * (v - anchor))
    return v


def resting_point(problems: Sequence[Problem], steps: int, lr: float, start: Tensor) -> Tensor:
    """The w that a round of the mean of the clients' descents leaves where it is, by Newton on that map.

    With one step it is the minimiser of the mean of R; with several the clients drift, and it is another point.
    """
    w, eye = start, _identity(start)
    for _ in range(50):
        ends, turn = torch.zeros_like(w), torch.zeros_like(eye)
        for p in problems:
            v, jacobian = w, eye
            for _ in range(steps):
                v, jacobian = v - lr * p.gradient(v), jacobian - lr * p.hessian(v) @ jacobian
            ends, turn = ends + v / len(problems), turn + jacobian / len(problems)
        if (ends - w).norm() < 1e-14:
            break
        w = w + torch.linalg.solve(eye - turn, ends - w)
    return w
