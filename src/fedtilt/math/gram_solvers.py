"""Optimal convex combinations of points known only by their Gram matrix K (C, C) around one of them, in float64.

The point Σ p_n z_n has squared distances  K_nn − 2 (K p)_n + pᵀ K p  to the others, so no solver here needs a
coordinate, and the cost does not depend on how many there are. The result does not depend on the origin, but its
accuracy does: an origin far from the points cancels the digits in which they differ (`central_point` chooses one).
"""

import math

import torch
from torch import Tensor

_TOLERANCE = 1e-9  # relative to the radius, or to the typical distance where a far point must not count
_INFINITE_Q = 1e14  # in units of 1 / radius²; the optimum differs from the centre of the ball by about 1 / q


def sq_distances(gram: Tensor, p: Tensor) -> Tensor:
    """Squared distances of all points to the combination p."""
    product = gram @ p
    return (gram.diagonal() - 2 * product + p @ product).clamp(min=0)


def pairwise_sq_distances(gram: Tensor) -> Tensor:
    """Squared distances between all points (C, C)."""
    norms = gram.diagonal()
    return (norms[:, None] + norms - 2 * gram).clamp(min=0)


def central_point(pairwise_sq_distances: Tensor) -> int:
    """The point with the least median distance to the others: a minority of far points is never chosen."""
    return int(pairwise_sq_distances.median(dim=1).values.argmin())


def _typical_sq_distance(pairwise_sq_distances: Tensor) -> float:
    """The median squared distance to the central point: a minority of far points hardly changes it."""
    from_centre = pairwise_sq_distances[central_point(pairwise_sq_distances)]
    return float(from_centre[from_centre > 0].median()) if from_centre.any() else 0.0


def positive_tilt_weights(gram: Tensor, u: Tensor, q: float) -> Tensor:
    """The p whose combination minimises 1/q · log Σ u_n exp(q · d_n²), for q in (0, inf].

    At q = inf that is the centre of the smallest enclosing ball. A finite q starts there, or at the mean, and uses
    Newton's method: the objective is strongly convex.
    """
    u = u.cpu()
    present = u > 0
    scale = float(sq_distances(gram, u)[present].max())
    if scale == 0:
        return u
    gram, weights, q = gram[present][:, present] / scale, u[present], q * scale
    p = torch.zeros_like(u)
    if q > _INFINITE_Q:
        q = math.inf
    if q <= 1:
        p[present] = _minimise_by_newton(gram, weights, q, weights)
    else:
        ball = _enclosing_ball(gram)
        p[present] = ball if math.isinf(q) else _minimise_by_newton(gram, weights, q, ball)
    return p


def _minimise_by_newton(gram: Tensor, u: Tensor, q: float, p: Tensor) -> Tensor:
    """Newton's method with backtracking on 1/q · log Σ u_n exp(q · d_n²), in weights."""
    log_u = u.log()

    def evaluate(p: Tensor) -> tuple[Tensor, Tensor, float]:
        """The objective, the residual of the fixed point equation, and its squared length."""
        exponent = log_u + q * sq_distances(gram, p)
        shift = torch.softmax(exponent, 0) - p
        return torch.logsumexp(exponent, 0) / q, shift, float(shift @ gram @ shift)

    value, shift, sq_shift = evaluate(p)
    for _ in range(100):
        if sq_shift <= _TOLERANCE**2:
            break
        direction = _newton_direction(gram, p + shift, shift, q)
        step = 1.0
        while step > 1e-10:
            candidate = evaluate(p + step * direction)
            # close to the optimum the objective is flat to rounding, and the distance to the fixed point decides
            if candidate[0] < value or (candidate[0] <= value + 1e-14 and candidate[2] < 0.5 * sq_shift):
                break
            step /= 2
        else:
            break  # rounding: no step makes it smaller
        p, (value, shift, sq_shift) = p + step * direction, candidate
    return p


def _newton_direction(gram: Tensor, tilted: Tensor, shift: Tensor, q: float) -> Tensor:
    """The Newton direction, in weights, of the fixed point equation Σ tilted_n z_n = y.

    The derivative of its left side by y is −2q · Cov(z) under the weights `tilted`; in weights, −2q · (diag − outer) K.
    """
    jacobian = -2 * q * (tilted.diag() - torch.outer(tilted, tilted)) @ gram
    return torch.linalg.solve(torch.eye(len(tilted), dtype=tilted.dtype) - jacobian, shift)


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
        # the 1e-12 keeps a rank-deficient K positive definite; it changes the path, not the fixed point
        factor = torch.linalg.cholesky(2 * gram + (s / p + 1e-12).diag())
        solutions = torch.cholesky_solve(torch.stack([-dual - centrality / p, torch.ones_like(p)], dim=1), factor)
        d_level = (1 - p.sum() - solutions[:, 0].sum()) / solutions[:, 1].sum()
        d_p = solutions[:, 0] + d_level * solutions[:, 1]
        d_s = -(centrality + s * d_p) / p
        step = min(1.0, 0.99 * _max_step(p, d_p), 0.99 * _max_step(s, d_s))
        p, s, level = p + step * d_p, s + step * d_s, level + step * d_level
    return p / p.sum()


def _max_step(x: Tensor, dx: Tensor) -> float:
    """The longest step along dx that keeps x ≥ 0."""
    falling = dx < 0
    return float((-x[falling] / dx[falling]).min()) if falling.any() else math.inf


def mean_shift_weights(gram: Tensor, u: Tensor, q: float, sq_dist: Tensor) -> Tensor:
    """The fixed point p = softmax(log u + q · d²(p)), q < 0, from a start at these squared distances to the points.

    Mean shift (Fukunaga and Hostetler, 1975, IEEE Transactions on Information Theory) converges to a mode, but slowly;
    close to one, Newton's method takes the last steps.
    """
    u, sq_dist = u.cpu(), sq_dist.cpu()
    present = u > 0
    typical = _typical_sq_distance(pairwise_sq_distances(gram[present][:, present]))
    log_u = u.log()
    p = torch.softmax(log_u + q * sq_dist, 0)
    for step in range(100_000):
        shift = torch.softmax(log_u + q * sq_distances(gram, p), 0) - p
        sq_shift = float(shift @ gram @ shift)
        if not sq_shift > _TOLERANCE**2 * typical:  # nor of points that are not finite
            break
        if step % 10 == 9 and sq_shift <= 1e-4 * typical and _is_near_mode(gram, p, q):
            candidate = p + _newton_direction(gram, p, shift, q)
            next_shift = torch.softmax(log_u + q * sq_distances(gram, candidate), 0) - candidate
            if float(next_shift @ gram @ next_shift) < 0.25 * sq_shift:
                p = candidate
                continue
        p = p + shift
    return p


def _is_near_mode(gram: Tensor, p: Tensor, q: float) -> bool:
    """Whether the nearby fixed point attracts mean shift (a mode) or repels it (a saddle)."""
    jacobian = -2 * q * (p.diag() - torch.outer(p, p)) @ gram
    return float(torch.linalg.eigvals(jacobian).real.max()) < 1


def geometric_median_weights(gram: Tensor, u: Tensor) -> Tensor:
    """The p whose combination has the least weighted sum of distances: Weiszfeld's algorithm.

    The optimum may be one of the points, where the iteration is undefined, so that is checked first.
    """
    u = u.cpu()
    present = u > 0
    distance = pairwise_sq_distances(gram).sqrt()
    tolerance = _TOLERANCE * _typical_sq_distance(pairwise_sq_distances(gram[present][:, present])) ** 0.5
    same = distance <= tolerance
    # Point n is the optimum if the others' gradient there, |Σ u_m (z_n − z_m) / d_nm|, is at most its weight.
    inverse = torch.where(same, 0.0, u / torch.where(same, 1.0, distance))
    laplacian = inverse.sum(1).diag() - inverse
    gradient_norm = (laplacian @ gram * laplacian).sum(1).clamp(min=0).sqrt()
    margin = torch.where(present, (same * u).sum(1) - gradient_norm, -math.inf)
    if margin.max() >= -1e-12:
        return torch.nn.functional.one_hot(margin.argmax(), len(u)).to(u.dtype)
    p = u
    for _ in range(100_000):
        inverse = u / sq_distances(gram, p).sqrt().clamp(min=tolerance)
        new_p = inverse / inverse.sum()
        shift = new_p - p
        p = new_p
        if not float(shift @ gram @ shift) > (0.01 * tolerance) ** 2:  # nor of points that are not finite
            break
    return p
