"""Optimal convex combinations of points known only by their Gram matrix K (C, C) around one of them, in float64.

The point Σ p_n z_n has squared distances  K_nn − 2 (K p)_n + pᵀ K p  to the others, so no solver here ever sees a
coordinate, and none depends on how many there are. The origin falls out, but not its digits: it must lie among the
points, or what tells them apart is lost (`central` finds one).
"""

import math

import torch
from torch import Tensor

_TOLERANCE = 1e-9  # of the radius, or of the typical distance where a far point must not count
_AS_IF_INFINITE = 1e14  # q in units of 1 / radius²: its optimum is off the ball's centre by about 1 / q


def sq_distances(gram: Tensor, p: Tensor) -> Tensor:
    """Squared distances of all points to the combination p."""
    product = gram @ p
    return (gram.diagonal() - 2 * product + p @ product).clamp(min=0)


def pairwise_sq_distances(gram: Tensor) -> Tensor:
    """Squared distances between all points (C, C)."""
    norms = gram.diagonal()
    return (norms[:, None] + norms - 2 * gram).clamp(min=0)


def central(pairwise_sq_distances: Tensor) -> int:
    """A point with the closest neighbours: fewer than half of all, however far away, cannot choose another."""
    return int(pairwise_sq_distances.median(dim=1).values.argmin())


def _typical(pairwise_sq_distances: Tensor) -> float:
    """A squared distance that fewer than half of the points, however far away, cannot change much."""
    near = pairwise_sq_distances[central(pairwise_sq_distances)]
    return float(near[near > 0].median()) if near.any() else 0.0


def _radius_squared(gram: Tensor, u: Tensor) -> float:
    return float(sq_distances(gram, u)[u > 0].max())


def fair_weights(gram: Tensor, u: Tensor, q: float) -> Tensor:
    """The p whose combination minimises 1/q · log Σ u_n exp(q · d_n²), for q in (0, inf].

    At q = inf that is the smallest enclosing ball; a finite q starts there, or at the mean, and descends by Newton's
    method: the objective is strongly convex.
    """
    u = u.cpu()
    held = u > 0
    scale = _radius_squared(gram, u)
    if scale == 0:
        return u
    gram, weights, q = gram[held][:, held] / scale, u[held], q * scale
    p = torch.zeros_like(u)
    if q > _AS_IF_INFINITE:
        q = math.inf
    if q <= 1:
        p[held] = _descended(gram, weights, q, weights)
    else:
        ball = _enclosing_ball(gram)
        p[held] = ball if math.isinf(q) else _descended(gram, weights, q, ball)
    return p


def _descended(gram: Tensor, u: Tensor, q: float, p: Tensor) -> Tensor:
    """Newton's method on 1/q · log Σ u_n exp(q · d_n²), in weights; every step makes it smaller."""
    log_u = u.log()

    def look(p: Tensor) -> tuple[Tensor, Tensor, float]:
        """The objective, the way to the fixed point, and its squared length."""
        exponent = log_u + q * sq_distances(gram, p)
        shift = torch.softmax(exponent, 0) - p
        return torch.logsumexp(exponent, 0) / q, shift, float(shift @ gram @ shift)

    value, shift, away = look(p)
    for _ in range(100):
        if away <= _TOLERANCE**2:
            break
        direction = _newton(gram, p + shift, shift, q)
        step = 1.0
        while step > 1e-10:
            further = look(p + step * direction)
            # close to the optimum the objective is flat to rounding, and the distance to the fixed point decides
            if further[0] < value or (further[0] <= value + 1e-14 and further[2] < 0.5 * away):
                break
            step /= 2
        else:
            break  # rounding: nothing makes it smaller any more
        p, (value, shift, away) = p + step * direction, further
    return p


def _newton(gram: Tensor, tilt: Tensor, shift: Tensor, q: float) -> Tensor:
    """The Newton direction, in weights, of the fixed point equation Σ tilt_n z_n = y.

    The derivative of its left side by y is −2q · Cov(z) under the weights `tilt`; in weights, −2q · (diag − outer) K.
    """
    jacobian = -2 * q * (tilt.diag() - torch.outer(tilt, tilt)) @ gram
    return torch.linalg.solve(torch.eye(len(tilt), dtype=tilt.dtype) - jacobian, shift)


def _enclosing_ball(gram: Tensor) -> Tensor:
    """The p whose combination is the centre of the smallest ball around all points.

    By duality it minimises pᵀKp − Σ p_n K_nn over the simplex: a primal-dual interior-point method.
    """
    norms, count = gram.diagonal(), len(gram)
    p = torch.full_like(norms, 1 / count)
    s, level = torch.ones_like(p), torch.zeros((), dtype=p.dtype)

    def residual(p: Tensor, s: Tensor, level: Tensor, target: float) -> tuple[Tensor, Tensor]:
        return 2 * (gram @ p) - norms - level - s, p * s - target

    for _ in range(100):
        gap = float(p @ s)
        dual, centrality = residual(p, s, level, gap / (10 * count))
        if gap < 1e-15 and float(dual.abs().max()) < 1e-13:
            break
        # the 1e-12 keeps a rank-deficient K positive; it changes the way, not the fixed point
        newton = torch.linalg.cholesky(2 * gram + (s / p + 1e-12).diag())
        both = torch.cholesky_solve(torch.stack([-dual - centrality / p, torch.ones_like(p)], dim=1), newton)
        d_level = (1 - p.sum() - both[:, 0].sum()) / both[:, 1].sum()
        d_p = both[:, 0] + d_level * both[:, 1]
        d_s = -(centrality + s * d_p) / p
        step = min(1.0, 0.99 * _to_boundary(p, d_p), 0.99 * _to_boundary(s, d_s))
        p, s, level = p + step * d_p, s + step * d_s, level + step * d_level
    return p / p.sum()


def _to_boundary(x: Tensor, dx: Tensor) -> float:
    """The longest step along dx that keeps x ≥ 0."""
    falling = dx < 0
    return float((-x[falling] / dx[falling]).min()) if falling.any() else math.inf


def mean_shift_weights(gram: Tensor, u: Tensor, q: float, sq_dist: Tensor) -> Tensor:
    """The fixed point p = softmax(log u + q · d²(p)), q < 0, reached from a point at these squared distances.

    Mean shift finds the mode but may creep towards it; once it is close, Newton's method takes the last steps.
    """
    u, sq_dist = u.cpu(), sq_dist.cpu()
    held = u > 0
    typical = _typical(pairwise_sq_distances(gram[held][:, held]))
    log_u = u.log()
    p = torch.softmax(log_u + q * sq_dist, 0)
    for step in range(100_000):
        shift = torch.softmax(log_u + q * sq_distances(gram, p), 0) - p
        moved_squared = float(shift @ gram @ shift)
        if moved_squared <= _TOLERANCE**2 * typical:
            break
        if step % 10 == 9 and moved_squared <= 1e-4 * typical and _at_mode(gram, p, q):
            newton = p + _newton(gram, p, shift, q)
            again = torch.softmax(log_u + q * sq_distances(gram, newton), 0) - newton
            if float(again @ gram @ again) < 0.25 * moved_squared:
                p = newton
                continue
        p = p + shift
    return p


def _at_mode(gram: Tensor, p: Tensor, q: float) -> bool:
    """Whether the fixed point nearby draws mean shift in (a mode) and does not push it away (a saddle)."""
    jacobian = -2 * q * (p.diag() - torch.outer(p, p)) @ gram
    return float(torch.linalg.eigvals(jacobian).real.max()) < 1


def median_weights(gram: Tensor, u: Tensor) -> Tensor:
    """The p whose combination has the least weighted sum of distances (Weiszfeld; a data point may be the optimum)."""
    u = u.cpu()
    held = u > 0
    apart = pairwise_sq_distances(gram).sqrt()
    nothing = _TOLERANCE * _typical(pairwise_sq_distances(gram[held][:, held])) ** 0.5
    same = apart <= nothing
    # At point n the others pull with |Σ u_m (z_n − z_m) / d_nm|; it is the optimum if that is no more than its weight.
    pull = torch.where(same, 0.0, u / torch.where(same, 1.0, apart))
    across = pull.sum(1).diag() - pull
    force = (across @ gram * across).sum(1).clamp(min=0).sqrt()
    margin = torch.where(held, (same * u).sum(1) - force, -math.inf)
    if margin.max() >= -1e-12:
        return torch.nn.functional.one_hot(margin.argmax(), len(u)).to(u.dtype)
    p = u
    for _ in range(100_000):
        inverse = u / sq_distances(gram, p).sqrt().clamp(min=nothing)
        moved = inverse / inverse.sum()
        shift = moved - p
        p = moved
        if float(shift @ gram @ shift) <= (0.01 * nothing) ** 2:
            break
    return p
