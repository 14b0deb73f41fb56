"""Optimal convex combinations of points known only by their centred Gram matrix K (C, C), in float64.

The point Σ p_n z_n has squared distances  K_nn − 2 (K p)_n + pᵀ K p  to the others, so no solver here ever sees a
coordinate, and none depends on how many there are.
"""

import math

import torch
from torch import Tensor

_TOLERANCE = 1e-9  # of the radius


def sq_distances(gram: Tensor, p: Tensor) -> Tensor:
    """Squared distances of all points to the combination p."""
    product = gram @ p
    return (gram.diagonal() - 2 * product + p @ product).clamp(min=0)


def _radius_squared(gram: Tensor, u: Tensor) -> float:
    return float(sq_distances(gram, u)[u > 0].max())


def fair_weights(gram: Tensor, u: Tensor, q: float) -> Tensor:
    """The p whose combination minimises 1/q · log Σ u_n exp(q · d_n²), for q in (0, inf].

    By duality it maximises  Σ p_n K_nn − pᵀ K p − 1/q · KL(p ‖ u)  over the simplex: concave, and at q = inf the dual
    of the smallest enclosing ball. One primal-dual interior-point method serves every q.
    """
    held = u.cpu() > 0
    scale = _radius_squared(gram, u.cpu())
    if scale == 0:
        return u
    p = torch.zeros_like(u, device="cpu")
    p[held] = _interior_point(gram[held][:, held] / scale, u.cpu()[held] / u.cpu()[held].sum(), 1 / (q * scale))
    return p


def _interior_point(gram: Tensor, u: Tensor, entropy: float) -> Tensor:
    """Min pᵀKp − Σ p_n K_nn + entropy · KL(p ‖ u) subject to p ≥ 0, Σ p = 1."""
    norms, count = gram.diagonal(), len(u)

    def residual(p: Tensor, s: Tensor, level: Tensor, target: float) -> tuple[Tensor, Tensor]:
        slope = 2 * (gram @ p) - norms + entropy * ((p / u).log() + 1)
        return slope - level - s, p * s - target

    p, s, level = u.clone(), torch.ones_like(u), torch.zeros((), dtype=u.dtype)
    for _ in range(200):
        gap = float(p @ s)
        dual, centrality = residual(p, s, level, gap / (10 * count))
        if gap < 1e-15 and float(dual.abs().max()) < 1e-14 + 1e-8 * entropy:
            break
        # the 1e-12 keeps a rank-deficient K positive; it changes the way, not the fixed point
        newton = torch.linalg.cholesky(2 * gram + ((entropy + s) / p + 1e-12).diag())
        both = torch.cholesky_solve(torch.stack([-dual - centrality / p, torch.ones_like(u)], dim=1), newton)
        d_level = (1 - p.sum() - both[:, 0].sum()) / both[:, 1].sum()
        d_p = both[:, 0] + d_level * both[:, 1]
        d_s = -(centrality + s * d_p) / p
        step = min(1.0, 0.99 * _to_boundary(p, d_p), 0.99 * _to_boundary(s, d_s))
        before = dual.norm() + centrality.norm()
        while step > 1e-12:
            after = residual(p + step * d_p, s + step * d_s, level + step * d_level, gap / (10 * count))
            if after[0].norm() + after[1].norm() <= (1 - 0.01 * step) * before:
                break
            step /= 2
        else:
            break  # rounding: no step improves any more
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
    radius_squared = _radius_squared(gram, u)
    log_u = u.log()
    p = torch.softmax(log_u + q * sq_dist, 0)
    for step in range(100_000):
        shift = torch.softmax(log_u + q * sq_distances(gram, p), 0) - p
        moved_squared = float(shift @ gram @ shift)
        if moved_squared <= _TOLERANCE**2 * radius_squared:
            break
        if step % 10 == 9 and moved_squared <= 1e-4 * radius_squared:
            newton = _newton_to_mode(gram, p, shift, q)
            if newton is not None:
                again = torch.softmax(log_u + q * sq_distances(gram, newton), 0) - newton
                if float(again @ gram @ again) < 0.25 * moved_squared:
                    p = newton
                    continue
        p = p + shift
    return p


def _newton_to_mode(gram: Tensor, p: Tensor, shift: Tensor, q: float) -> Tensor | None:
    """The Newton step of the fixed point equation, or None where it would not lead uphill to a mode.

    Its Jacobian is −2q · Cov(z), in weights −2q · (diag(p) − p pᵀ) K; at a mode its eigenvalues are below 1.
    """
    jacobian = -2 * q * (p.diag() - torch.outer(p, p)) @ gram
    if float(torch.linalg.eigvals(jacobian).real.max()) >= 1:
        return None
    return p + torch.linalg.solve(torch.eye(len(p), dtype=p.dtype) - jacobian, shift)


def median_weights(gram: Tensor, u: Tensor) -> Tensor:
    """The p whose combination has the least weighted sum of distances (Weiszfeld; a data point may be the optimum)."""
    u = u.cpu()
    norms = gram.diagonal()
    apart = (norms[:, None] + norms - 2 * gram).clamp(min=0).sqrt()  # (C, C)
    radius = _radius_squared(gram, u) ** 0.5
    same = apart <= _TOLERANCE * radius
    # At point n the others pull with |Σ u_m (z_n − z_m) / d_nm|; it is the optimum if that is no more than its weight.
    pull = torch.where(same, 0.0, u / torch.where(same, 1.0, apart))
    across = pull.sum(1).diag() - pull
    force = (across @ gram * across).sum(1).clamp(min=0).sqrt()
    margin = torch.where(u > 0, (same * u).sum(1) - force, -math.inf)
    if margin.max() >= -1e-12:
        return torch.nn.functional.one_hot(margin.argmax(), len(u)).to(u.dtype)
    p = u
    for _ in range(100_000):
        inverse = u / sq_distances(gram, p).sqrt().clamp(min=_TOLERANCE * radius)
        moved = inverse / inverse.sum()
        shift = moved - p
        p = moved
        if float(shift @ gram @ shift) <= (0.01 * _TOLERANCE * radius) ** 2:
            break
    return p
