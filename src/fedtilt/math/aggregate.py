"""Server aggregation, (C, P) → (P,): the tilted objective of FedTilt, and classical rules.

    G(w) = 1/q · log( Σ_n u_n · exp(q · dist(w_n, w)) )          u_n: the clients' weights, 1/C by default

For squared L2 every optimum is a convex combination of the client models, so the solvers work on the C × C Gram matrix
(`gram_solvers`) and read the models twice: once for the Gram matrix, once to combine them. The robust rules are in
`robust`, those that weigh clients by their losses in `fair`, the steps before a rule in `mixing`.
"""

import math

from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math import gram_solvers
from fedtilt.math.client_models import (
    BlockedModels,
    ClientModels,
    Distance,
    check_start,
    client_weights,
    column_chunks,
    combine,
    distances_to,
    get_distance,
    gram,
)
from fedtilt.math.fair import fedmgda, q_ffl
from fedtilt.math.mixing import bucketing, clipping, nearest_neighbor_mixing
from fedtilt.math.robust import (
    bad_count,
    bulyan,
    centered_clipping,
    fltrust,
    geometric_median,
    krum,
    median,
    multi_krum,
    norm_clipped,
    root_selected,
    trimmed_mean,
)
from fedtilt.math.tilt import nested_tilt_grad

__all__ = [
    "bad_count",
    "bucketing",
    "bulyan",
    "centered_clipping",
    "clipping",
    "fedmgda",
    "fltrust",
    "geometric_median",
    "krum",
    "mean",
    "median",
    "multi_krum",
    "nearest_neighbor_mixing",
    "norm_clipped",
    "q_ffl",
    "root_selected",
    "solvable",
    "tilted",
    "trimmed_mean",
]


def tilted(
    models: ClientModels,
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

    >>> import torch
    >>> models = torch.tensor([[0.0], [1.0], [5.0]])
    >>> [round(tilted(models, q).item(), 2) for q in (float("-inf"), -0.1, 0, 0.1, float("inf"))]
    [1.0, 0.93, 2.0, 2.32, 2.5]
    """
    metric = get_distance(distance)
    u = client_weights(models, weights)
    if isinstance(q, bool) or math.isnan(q):
        raise InputError(f"q must be a number or ±inf, got {q}")
    check_start(start, models)
    if steps is not None:
        if isinstance(models, BlockedModels):
            raise ValueError("gradient steps need all models in one process")
        return _gradient_descent(models, u, metric, q, start, steps)
    if distance == "squared_l2":
        if q == 0:
            return combine(models, u)
        if q == -math.inf:
            distance_to_start = distances_to(models, metric, _start_or_mean(models, u, start))
            return models[int(distance_to_start.where(u > 0, math.inf).argmin())].clone()
        matrix = gram(models)
        if q > 0:
            return combine(models, gram_solvers.positive_tilt_weights(matrix, u, q))
        sq_dist = gram_solvers.sq_distances(matrix, u.cpu()) if start is None else distances_to(models, metric, start)
        return combine(models, gram_solvers.mean_shift_weights(matrix, u, q, sq_dist))
    if solvable(distance, q):
        return geometric_median(models, weights) if distance == "l2" else median(models, weights)
    raise InputError(
        f"distance {distance!r} with q = {q:g} has no direct solution; pass steps=(count, size), "
        "q = 0, or distance='squared_l2'"
    )


def solvable(distance: str, q: float) -> bool:
    """Whether G has a direct solution; otherwise `tilted` needs `steps`."""
    return distance == "squared_l2" or (distance in ("l2", "l1") and q == 0)


def mean(models: ClientModels, weights: Tensor | None = None) -> Tensor:
    """The (weighted) mean, as in FedAvg (McMahan et al., AISTATS 2017, arXiv 1602.05629)."""
    return combine(models, client_weights(models, weights))


def _start_or_mean(models: ClientModels, u: Tensor, start: Tensor | None) -> Tensor:
    return combine(models, u) if start is None else start


def _gradient_descent(
    models: Tensor, u: Tensor, metric: Distance, q: float, start: Tensor | None, steps: tuple[int, float]
) -> Tensor:
    """`count` steps of gradient descent on G: ∂G/∂distance of each client times the gradient of its distance."""
    count, size = steps
    if count < 1 or not 0 < size < math.inf:
        raise InputError(f"steps must be (count ≥ 1, size > 0), got {steps!r}")
    w = _start_or_mean(models, u, start).clone()
    for _ in range(count):
        distances = distances_to(models, metric, w)
        client_grad = nested_tilt_grad(distances, [], [q], weights=u)
        coefficient = (size * client_grad * metric.factor(distances)).to(models.dtype)
        for columns in column_chunks(models):
            w[columns] -= coefficient @ metric.direction(w[columns] - models[:, columns])
    return w
