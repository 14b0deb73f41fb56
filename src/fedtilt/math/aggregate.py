"""Server aggregation, (C, P) → (P,): the tilted objective of the paper, and the classical rules around it.

    G(w) = 1/q · log( Σ_n u_n · exp(q · dist(w_n, w)) )          u_n: the clients' weights, 1/C by default

For squared L2 every optimum is a convex combination of the client models, so the solvers work on the C × C Gram matrix
(`fedtilt.hull`) and touch the models twice: once for the Gram matrix, once to combine. Both passes go over column
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
from fedtilt.math.tilt import nested_shares

_CHUNK_BYTES = 16 * 2**20
_FAR = 1e4  # times a squared distance: of its 16 digits, twelve are left


def tilted(
    models: Tensor,
    q: float = 0.0,
    distance: str = "squared_l2",
    weights: Tensor | None = None,
    start: Tensor | None = None,
    steps: tuple[int, float] | None = None,
) -> Tensor:
    """The model that minimises G: the mean at q = 0, fairer to far clients for q > 0, deaf to them for q < 0.

    Squared L2: q ≥ 0 gives the global optimum, +inf the centre of the smallest enclosing ball; q < 0 the mean-shift
    fixed point reached from `start` (the mean by default), -inf the client nearest to `start`. L2 at q = 0 is the
    geometric median, L1 at q = 0 the coordinate-wise median. Anything else needs `steps=(E_2, eta_3)`: that many
    gradient steps of that size from `start`, as in the paper's Algorithm 1.

    >>> models = torch.tensor([[0.0], [1.0], [5.0]])
    >>> [round(tilted(models, q).item(), 2) for q in (float("-inf"), -0.1, 0, 0.1, float("inf"))]
    [1.0, 0.93, 2.0, 2.32, 2.5]
    """
    metric = get_distance(distance)
    u = _checked(models, weights)
    if isinstance(q, bool) or math.isnan(q):
        raise InputError(f"q must be a number or ±inf, got {q}")
    _checked_start(start, models)
    if steps is not None:
        return _descended(models, u, metric, q, start, steps)
    if distance == "squared_l2":
        if q == 0:
            return _combined(models, u)
        if q == -math.inf:
            nearest = int(_distances(models, metric, _start(models, u, start)).where(u > 0, math.inf).argmin())
            return models[nearest].clone()
        gram = _gram(models)
        if q > 0:
            return _combined(models, gram_solvers.fair_weights(gram, u, q))
        sq_dist = gram_solvers.sq_distances(gram, u.cpu()) if start is None else _distances(models, metric, start)
        return _combined(models, gram_solvers.mean_shift_weights(gram, u, q, sq_dist))
    if solvable(distance, q):
        return geometric_median(models, weights) if distance == "l2" else median(models, weights)
    raise InputError(
        f"distance {distance!r} with q = {q:g} has no direct solution; pass steps=(count, size), "
        "q = 0, or distance='squared_l2'"
    )


def solvable(distance: str, q: float) -> bool:
    """Whether G has a direct solution, or needs `steps`."""
    return distance == "squared_l2" or (distance in ("l2", "l1") and q == 0)


def mean(models: Tensor, weights: Tensor | None = None) -> Tensor:
    """The (weighted) mean: FedAvg's rule."""
    return _combined(models, _checked(models, weights))


def median(models: Tensor, weights: Tensor | None = None) -> Tensor:
    """The (weighted) coordinate-wise median; between the two middle values, their mean."""
    u = _checked(models, weights)
    out = models.new_empty(models.shape[1])
    for columns in _chunks(models):
        values, order = models[:, columns].sort(dim=0)
        mass = u[order].cumsum(0)  # (C, columns)
        low = (mass < 0.5 - 1e-12).sum(0, keepdim=True)
        high = (mass < 0.5 + 1e-12).sum(0, keepdim=True)
        a, b = values.gather(0, low)[0], values.gather(0, high.clamp(max=len(u) - 1))[0]
        out[columns] = a + (b - a) / 2
    return out


def trimmed_mean(models: Tensor, trim: float = 0.1) -> Tensor:
    """The coordinate-wise mean without the share `trim` of the clients at each end."""
    u = _checked(models, None)
    _share(trim, "trim")
    cut = int(trim * len(u) + 1e-9)
    out = models.new_empty(models.shape[1])
    for columns in _chunks(models):
        kept = models[:, columns].sort(dim=0).values[cut : len(u) - cut]
        out[columns] = kept[0] + (kept - kept[0]).mean(0)
    return out


def krum(models: Tensor, bad: float = 0.1) -> Tensor:
    """The one client model closest to its neighbours, with a share `bad` of the clients not trusted."""
    _checked(models, None)
    return models[_krum_order(models, bad)[0]].clone()


def multi_krum(models: Tensor, bad: float = 0.1) -> Tensor:
    """The mean of the clients that Krum ranks first, the share `bad` left out."""
    u = _checked(models, None)
    order = _krum_order(models, bad)
    return mean(models[sorted(order[: len(u) - int(bad * len(u) + 1e-9)])])


def geometric_median(models: Tensor, weights: Tensor | None = None) -> Tensor:
    """The model with the least (weighted) sum of L2 distances to the clients'."""
    u = _checked(models, weights)
    return _combined(models, gram_solvers.median_weights(_gram(models), u))


def norm_clipped(models: Tensor, start: Tensor | None = None, limit: float | None = None) -> Tensor:
    """The mean of the clients' updates, none longer than `limit` (by default their median length).

    Updates are counted from `start`, the received model; without one, from the coordinate-wise median.
    """
    u = _checked(models, None)
    if limit is not None and not limit > 0:
        raise InputError(f"limit must be > 0, got {limit}")
    _checked_start(start, models)
    origin = median(models) if start is None else start
    length = _distances(models, get_distance("l2"), origin)
    bound = length.median() if limit is None else torch.as_tensor(limit, dtype=length.dtype, device=length.device)
    scale = u * (bound / length.where(length > 0, 1.0)).clamp(max=1.0)
    out = origin.clone()
    for columns in _chunks(models):
        out[columns] += scale.to(models.dtype) @ (models[:, columns] - origin[columns])
    return out


class Aggregator(NamedTuple):
    """A classical rule as a server calls it: (models, weights, received model, share of bad clients)."""

    apply: Callable[[Tensor, Tensor | None, Tensor, float], Tensor]
    takes_weights: bool  # whether it takes client weights
    takes_bad_share: bool = False  # whether it takes a share of bad clients


AGGREGATORS = {
    "mean": Aggregator(lambda models, weights, start, bad: mean(models, weights), True),
    "median": Aggregator(lambda models, weights, start, bad: median(models, weights), True),
    "geometric_median": Aggregator(lambda models, weights, start, bad: geometric_median(models, weights), True),
    "trimmed_mean": Aggregator(
        lambda models, weights, start, bad: trimmed_mean(models, bad), False, takes_bad_share=True
    ),
    "krum": Aggregator(lambda models, weights, start, bad: krum(models, bad), False, takes_bad_share=True),
    "multi_krum": Aggregator(lambda models, weights, start, bad: multi_krum(models, bad), False, takes_bad_share=True),
    "norm_clipped": Aggregator(lambda models, weights, start, bad: norm_clipped(models, start), False),
}


def _checked(models: Tensor, weights: Tensor | None) -> Tensor:
    """The clients' weights (C,) in float64, summing to 1, after a look at everything that enters."""
    if not isinstance(models, Tensor):
        kind = type(models).__name__
        raise InputError(f"models must be a tensor (clients, parameters), got a {kind}; use torch.stack")
    if models.dim() != 2 or 0 in models.shape or not models.is_floating_point():
        raise InputError(
            f"models must be a floating-point table (clients, parameters), got {models.dtype} of shape "
            f"{tuple(models.shape)}"
        )
    for client in (~models.sum(1).isfinite()).nonzero()[:, 0].tolist():  # a sum may also overflow: look closer
        if not models[client].isfinite().all():
            raise InputError(f"the model of client {client} is not finite; leave it out before aggregating")
    count = len(models)
    if weights is None:
        return torch.full((count,), 1 / count, dtype=torch.float64, device=models.device)
    u = weights.to(models.device, torch.float64)
    if u.shape != (count,) or not u.isfinite().all() or (u < 0).any() or u.sum() <= 0:
        raise InputError(f"weights must be {count} numbers ≥ 0, not all 0, got {weights.tolist()}")
    return u / u.sum()


def _checked_start(start: Tensor | None, models: Tensor) -> None:
    if start is not None and start.shape != models.shape[1:]:
        raise InputError(f"start must have shape {tuple(models.shape[1:])}, got {tuple(start.shape)}")
    if start is not None and not start.isfinite().all():
        raise InputError("start is not finite; pass the model that the clients received")


def _share(value: float, what: str) -> None:
    if not 0 <= value < 0.5:
        raise InputError(f"{what} must be in [0, 0.5), got {value}")


def _chunks(models: Tensor) -> Iterator[slice]:
    """Slices of columns, small enough that a float64 copy of all clients' stays in the cache."""
    width = max(256, _CHUNK_BYTES // (8 * len(models)))
    for left in range(0, models.shape[1], width):
        yield slice(left, left + width)


def _gram(models: Tensor) -> Tensor:
    """The Gram matrix (C, C) around one client, in float64, on the CPU.

    Differences to a client first: products of the models themselves would cancel where clients agree. If that client is
    so far from the others that they cancel again, the one with the closest neighbours takes its place.
    """
    gram = _gram_around(models, 0)
    pairwise_sq_distances = gram_solvers.pairwise_sq_distances(gram)
    centre = gram_solvers.central(pairwise_sq_distances)
    if pairwise_sq_distances[0].median() > _FAR * pairwise_sq_distances[centre].median():
        gram = _gram_around(models, centre)
    return gram


def _gram_around(models: Tensor, centre: int) -> Tensor:
    gram = torch.zeros(len(models), len(models), dtype=torch.float64, device=models.device)
    half = (len(models) + 1) // 2
    buffer: Tensor | None = None
    for columns in _chunks(models):
        chunk = models[:, columns]
        buffer = torch.empty_like(chunk, dtype=torch.float64) if buffer is None else buffer[:, : chunk.shape[1]]
        buffer.copy_(chunk)
        buffer -= buffer[centre].clone()
        gram[:half, :half].addmm_(buffer[:half], buffer[:half].T)
        gram[half:].addmm_(buffer[half:], buffer.T)
    gram[:half, half:] = gram[half:, :half].T
    return gram.cpu()


def _combined(models: Tensor, p: Tensor) -> Tensor:
    """Σ_n p_n · w_n, as differences to the client that counts most, so that a common offset costs no digits."""
    base = int(p.argmax())
    p = p.to(models.device, models.dtype)
    out = models.new_empty(models.shape[1])
    for columns in _chunks(models):
        out[columns] = models[base, columns] + p @ (models[:, columns] - models[base, columns])
    return out


def _distances(models: Tensor, metric: Distance, centre: Tensor) -> Tensor:
    """dist(w_n, w) for every client, in float64."""
    total = torch.zeros(len(models), dtype=torch.float64, device=models.device)
    for columns in _chunks(models):
        away = centre[columns].double() - models[:, columns].double()  # squares overflow half and even float types
        total += metric.summand(away).sum(1)
    return metric.finish(total)


def _start(models: Tensor, u: Tensor, start: Tensor | None) -> Tensor:
    return _combined(models, u) if start is None else start


def _descended(
    models: Tensor, u: Tensor, metric: Distance, q: float, start: Tensor | None, steps: tuple[int, float]
) -> Tensor:
    """`count` steps of gradient descent on G: shares of the tilt over the clients times each distance's slope."""
    count, size = steps
    if count < 1 or not 0 < size < math.inf:
        raise InputError(f"steps are (count ≥ 1, size > 0), got {steps!r}")
    w = _start(models, u, start).clone()
    for _ in range(count):
        distances = _distances(models, metric, w)
        shares = nested_shares(distances, [], [q], weights=u)
        pull = (size * shares * metric.factor(distances)).to(models.dtype)
        for columns in _chunks(models):
            w[columns] -= pull @ metric.direction(w[columns] - models[:, columns])
    return w


def _krum_order(models: Tensor, bad: float) -> list[int]:
    """Clients from the most to the least trusted: by the sum of squared distances to their nearest others."""
    _share(bad, "bad")
    sq_dist = gram_solvers.pairwise_sq_distances(_gram(models)).fill_diagonal_(math.inf)  # (C, C)
    count = len(models)
    near = max(1, count - int(bad * count + 1e-9) - 2)
    scores = sq_dist.sort(dim=1).values[:, : min(near, count - 1)].sum(1)
    return scores.argsort(stable=True).tolist()
