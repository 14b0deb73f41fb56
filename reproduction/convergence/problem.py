"""Strongly convex tilted objectives in float64, with the constants of the convergence results.

The loss is softmax regression with an L2 term, l(z; v) = cross-entropy + rho/2 · ||v||². The term may be part of the
sample loss or of the objective: it is the same function, because tilt(l + c) = tilt(l) + c. For tau, lam > 0 the tilts
of the convex cross-entropy are convex, hence R is rho-strongly convex.

With weights p of the samples in their class and pi of the classes, whose products are the gradient of the tilts,

    ∇²R = Σ_z pi_k p_z · ∇²l_z  +  lam · Σ_k pi_k · Cov_p(∇l | k)  +  tau · Cov_pi(g_k),     g_k = Σ_z p_z ∇l_z

and the regulariser's gradient, the same for every sample, drops out of both covariances. The rest is bounded for
all v: the gradient of cross-entropy is (s − e_y) ⊗ x with s in the simplex, and a distribution on a set of diameter d
has a variance of at most d²/4. So L_n is (B_1 + tau · B_2 + lam · B_3)-smooth everywhere, with constants from the data.
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
