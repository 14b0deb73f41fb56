"""Server aggregation, (C, P) → (P,): the tilted objective of FedTilt, and classical rules.

    G(w) = 1/q · log( Σ_n u_n · exp(q · dist(w_n, w)) )          u_n: the clients' weights, 1/C by default

For squared L2 every optimum is a convex combination of the client models, so the solvers work on the C × C Gram matrix
(`gram_solvers`) and read the models twice: once for the Gram matrix, once to combine them. Both passes go over column
chunks, so the working set does not grow with the model.
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math import gram_solvers
from fedtilt.math.distances import Distance, get_distance
from fedtilt.math.tilt import nested_tilt_grad

_CHUNK_BYTES = 16 * 2**20
_FAR_RATIO = 1e4  # of squared distances; above it more than four of 16 digits cancel


def tilted(
    models: Tensor,
    q: float = 0.0,
    distance: str = "squared_l2",
    weights: Tensor | None = None,
    start: Tensor | None = None,
    steps: tuple[int, float] | None = None,
) -> Tensor:
    """The model that minimises G: the mean at q = 0, closer to far clients for q > 0, to a dense cluster for q < 0.

    The aggregation of FedTilt (arXiv 2503.13537). Squared L2: q ≥ 0 gives the global optimum, +inf the centre of the
    smallest enclosing ball; q < 0 the fixed point of mean shift (Fukunaga and Hostetler, 1975) from `start`, -inf the
    client nearest to `start`. L2 at q = 0 is the geometric median, L1 at q = 0 the coordinate-wise median. Everything
    else needs `steps`.

    Args:
        models: The clients' parameters, (C, P).
        q: The tilt over the clients' distances, a number or ±inf.
        distance: "squared_l2", "l2" or "l1".
        weights: The clients' weights, (C,), non-negative; equal by default.
        start: Where an iteration starts, (P,), such as the model the clients received; their mean by default.
        steps: (count, size): gradient descent on G from `start`, E_2 and eta_3 of the paper's Algorithm 1.

    >>> models = torch.tensor([[0.0], [1.0], [5.0]])
    >>> [round(tilted(models, q).item(), 2) for q in (float("-inf"), -0.1, 0, 0.1, float("inf"))]
    [1.0, 0.93, 2.0, 2.32, 2.5]
    """
    metric = get_distance(distance)
    u = _client_weights(models, weights)
    if isinstance(q, bool) or math.isnan(q):
        raise InputError(f"q must be a number or ±inf, got {q}")
    _check_start(start, models)
    if steps is not None:
        return _gradient_descent(models, u, metric, q, start, steps)
    if distance == "squared_l2":
        if q == 0:
            return _combine(models, u)
        if q == -math.inf:
            nearest = int(_distances(models, metric, _start_or_mean(models, u, start)).where(u > 0, math.inf).argmin())
            return models[nearest].clone()
        gram = _gram(models)
        if q > 0:
            return _combine(models, gram_solvers.positive_tilt_weights(gram, u, q))
        sq_dist = gram_solvers.sq_distances(gram, u.cpu()) if start is None else _distances(models, metric, start)
        return _combine(models, gram_solvers.mean_shift_weights(gram, u, q, sq_dist))
    if solvable(distance, q):
        return geometric_median(models, weights) if distance == "l2" else median(models, weights)
    raise InputError(
        f"distance {distance!r} with q = {q:g} has no direct solution; pass steps=(count, size), "
        "q = 0, or distance='squared_l2'"
    )


def solvable(distance: str, q: float) -> bool:
    """Whether G has a direct solution; otherwise `tilted` needs `steps`."""
    return distance == "squared_l2" or (distance in ("l2", "l1") and q == 0)


def mean(models: Tensor, weights: Tensor | None = None) -> Tensor:
    """The (weighted) mean, as in FedAvg (McMahan et al., AISTATS 2017, arXiv 1602.05629)."""
    return _combine(models, _client_weights(models, weights))


def median(models: Tensor, weights: Tensor | None = None) -> Tensor:
    """The (weighted) coordinate-wise median; between two middle values, their mean.

    Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018, arXiv 1803.01498.
    """
    u = _client_weights(models, weights)
    out = models.new_empty(models.shape[1])
    for columns in _column_chunks(models):
        values, order = models[:, columns].sort(dim=0)
        mass = u[order].cumsum(0)  # (C, columns)
        low = (mass < 0.5 - 1e-12).sum(0, keepdim=True)
        high = (mass < 0.5 + 1e-12).sum(0, keepdim=True)
        a, b = values.gather(0, low)[0], values.gather(0, high.clamp(max=len(u) - 1))[0]
        out[columns] = a + (b - a) / 2
    return out


def trimmed_mean(models: Tensor, trim: float = 0.1) -> Tensor:
    """The coordinate-wise mean without the share `trim` of the values at each end (Yin et al., arXiv 1803.01498)."""
    u = _client_weights(models, None)
    _check_share(trim, "trim")
    cut = int(trim * len(u) + 1e-9)
    out = models.new_empty(models.shape[1])
    for columns in _column_chunks(models):
        middle = models[:, columns].sort(dim=0).values[cut : len(u) - cut]
        out[columns] = middle[0] + (middle - middle[0]).mean(0)
    return out


def krum(models: Tensor, bad_share: float = 0.1) -> Tensor:
    """The client model closest to its nearest neighbours, if at most a share `bad_share` of the clients is malicious.

    Krum: Blanchard et al., NeurIPS 2017, arXiv 1703.02757.
    """
    _client_weights(models, None)
    return models[_krum_ranking(models, bad_share)[0]].clone()


def multi_krum(models: Tensor, bad_share: float = 0.1) -> Tensor:
    """The mean of all clients but the share `bad_share` that Krum ranks last (Blanchard et al., arXiv 1703.02757)."""
    u = _client_weights(models, None)
    order = _krum_ranking(models, bad_share)
    return mean(models[sorted(order[: len(u) - int(bad_share * len(u) + 1e-9)])])


def geometric_median(models: Tensor, weights: Tensor | None = None) -> Tensor:
    """The model with the least (weighted) sum of L2 distances to the clients' models.

    RFA: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", arXiv 1912.13445.
    """
    u = _client_weights(models, weights)
    return _combine(models, gram_solvers.geometric_median_weights(_gram(models), u))


def norm_clipped(models: Tensor, start: Tensor | None = None, limit: float | None = None) -> Tensor:
    """The mean of the clients' updates, each clipped to the length `limit` (Sun et al., 2019, arXiv 1911.07963).

    Args:
        models: The clients' parameters, (C, P).
        start: The model the clients received, (P,); without it, updates are relative to the coordinate-wise median.
        limit: The largest L2 norm of an update; by default the median norm.
    """
    u = _client_weights(models, None)
    if limit is not None and not limit > 0:
        raise InputError(f"limit must be > 0, got {limit}")
    _check_start(start, models)
    origin = median(models) if start is None else start
    length = _distances(models, get_distance("l2"), origin)
    bound = length.median() if limit is None else torch.as_tensor(limit, dtype=length.dtype, device=length.device)
    scale = u * (bound / length.where(length > 0, 1.0)).clamp(max=1.0)
    out = origin.clone()
    for columns in _column_chunks(models):
        out[columns] += scale.to(models.dtype) @ (models[:, columns] - origin[columns])
    return out


class Aggregator(NamedTuple):
    """A classical rule as a server calls it: apply(models, weights, received model, share of bad clients)."""

    apply: Callable[[Tensor, Tensor | None, Tensor, float], Tensor]
    takes_weights: bool  # whether it uses client weights
    takes_bad_share: bool = False  # whether it uses the share of bad clients


AGGREGATORS = {
    "mean": Aggregator(lambda models, weights, start, bad_share: mean(models, weights), True),
    "median": Aggregator(lambda models, weights, start, bad_share: median(models, weights), True),
    "geometric_median": Aggregator(lambda models, weights, start, bad_share: geometric_median(models, weights), True),
    "trimmed_mean": Aggregator(
        lambda models, weights, start, bad_share: trimmed_mean(models, bad_share), False, takes_bad_share=True
    ),
    "krum": Aggregator(lambda models, weights, start, bad_share: krum(models, bad_share), False, takes_bad_share=True),
    "multi_krum": Aggregator(
        lambda models, weights, start, bad_share: multi_krum(models, bad_share), False, takes_bad_share=True
    ),
    "norm_clipped": Aggregator(lambda models, weights, start, bad_share: norm_clipped(models, start), False),
}


def _client_weights(models: Tensor, weights: Tensor | None) -> Tensor:
    """The clients' weights (C,) in float64, normalised to sum 1; models and weights are checked."""
    if not isinstance(models, Tensor):
        kind = type(models).__name__
        raise InputError(f"models must be a tensor (clients, parameters), got a {kind}; use torch.stack")
    if models.dim() != 2 or 0 in models.shape or not models.is_floating_point():
        raise InputError(
            f"models must be a floating-point tensor (clients, parameters), got {models.dtype} of shape "
            f"{tuple(models.shape)}"
        )
    for client in (~models.sum(1).isfinite()).nonzero()[:, 0].tolist():  # a sum may also overflow: check the values
        if not models[client].isfinite().all():
            raise InputError(f"the model of client {client} is not finite; exclude it before aggregating")
    count = len(models)
    if weights is None:
        return torch.full((count,), 1 / count, dtype=torch.float64, device=models.device)
    u = weights.to(models.device, torch.float64)
    if u.shape != (count,) or not u.isfinite().all() or (u < 0).any() or u.sum() <= 0:
        raise InputError(f"weights must be {count} numbers ≥ 0, not all 0, got {weights.tolist()}")
    return u / u.sum()


def _check_start(start: Tensor | None, models: Tensor) -> None:
    if start is not None and start.shape != models.shape[1:]:
        raise InputError(f"start must have shape {tuple(models.shape[1:])}, got {tuple(start.shape)}")
    if start is not None and not start.isfinite().all():
        raise InputError("start is not finite; pass the model that the clients received")


def _check_share(value: float, name: str) -> None:
    if not 0 <= value < 0.5:
        raise InputError(f"{name} must be in [0, 0.5), got {value}")


def _column_chunks(models: Tensor) -> Iterator[slice]:
    """Slices of columns, small enough that a float64 copy of them for all clients stays in the cache."""
    width = max(256, _CHUNK_BYTES // (8 * len(models)))
    for left in range(0, models.shape[1], width):
        yield slice(left, left + width)


def _gram(models: Tensor) -> Tensor:
    """The Gram matrix (C, C) around one client, in float64, on the CPU.

    The differences to one client are taken first: in products of the models themselves, digits would cancel where
    clients agree. If that client is so far from the others that digits cancel again, the central one is used instead.
    """
    gram = _gram_around(models, 0)
    sq_dist = gram_solvers.pairwise_sq_distances(gram)
    centre = gram_solvers.central_point(sq_dist)
    if sq_dist[0].median() > _FAR_RATIO * sq_dist[centre].median():
        gram = _gram_around(models, centre)
    return gram


def _gram_around(models: Tensor, centre: int) -> Tensor:
    gram = torch.zeros(len(models), len(models), dtype=torch.float64, device=models.device)
    half = (len(models) + 1) // 2
    buffer: Tensor | None = None
    for columns in _column_chunks(models):
        chunk = models[:, columns]
        buffer = torch.empty_like(chunk, dtype=torch.float64) if buffer is None else buffer[:, : chunk.shape[1]]
        buffer.copy_(chunk)
        buffer -= buffer[centre].clone()
        gram[:half, :half].addmm_(buffer[:half], buffer[:half].T)
        gram[half:].addmm_(buffer[half:], buffer.T)
    gram[:half, half:] = gram[half:, :half].T
    return gram.cpu()


def _combine(models: Tensor, p: Tensor) -> Tensor:
    """Σ_n p_n · w_n, from differences to the client of largest weight, so that a common offset costs no digits."""
    base = int(p.argmax())
    p = p.to(models.device, models.dtype)
    out = models.new_empty(models.shape[1])
    for columns in _column_chunks(models):
        out[columns] = models[base, columns] + p @ (models[:, columns] - models[base, columns])
    return out


def _distances(models: Tensor, metric: Distance, centre: Tensor) -> Tensor:
    """dist(w_n, w) for every client, in float64."""
    total = torch.zeros(len(models), dtype=torch.float64, device=models.device)
    for columns in _column_chunks(models):
        difference = centre[columns].double() - models[:, columns].double()  # squares overflow half and float types
        total += metric.summand(difference).sum(1)
    return metric.finish(total)


def _start_or_mean(models: Tensor, u: Tensor, start: Tensor | None) -> Tensor:
    return _combine(models, u) if start is None else start


def _gradient_descent(
    models: Tensor, u: Tensor, metric: Distance, q: float, start: Tensor | None, steps: tuple[int, float]
) -> Tensor:
    """`count` steps of gradient descent on G: ∂G/∂distance of each client times the gradient of its distance."""
    count, size = steps
    if count < 1 or not 0 < size < math.inf:
        raise InputError(f"steps must be (count ≥ 1, size > 0), got {steps!r}")
    w = _start_or_mean(models, u, start).clone()
    for _ in range(count):
        distances = _distances(models, metric, w)
        client_grad = nested_tilt_grad(distances, [], [q], weights=u)
        coefficient = (size * client_grad * metric.factor(distances)).to(models.dtype)
        for columns in _column_chunks(models):
            w[columns] -= coefficient @ metric.direction(w[columns] - models[:, columns])
    return w


def _krum_ranking(models: Tensor, bad_share: float) -> list[int]:
    """Clients by Krum's score, best first: the sum of squared distances to the nearest other clients."""
    _check_share(bad_share, "bad_share")
    sq_dist = gram_solvers.pairwise_sq_distances(_gram(models)).fill_diagonal_(math.inf)  # (C, C)
    count = len(models)
    neighbours = max(1, count - int(bad_share * count + 1e-9) - 2)
    scores = sq_dist.sort(dim=1).values[:, : min(neighbours, count - 1)].sum(1)
    return scores.argsort(stable=True).tolist()
