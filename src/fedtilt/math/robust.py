"""Robust rules, (C, P) → (P,): a minority of bad clients moves their result by a bounded length."""

import functools
import math

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.math import gram_solvers
from fedtilt.math.client_models import (
    ClientModels,
    check_share,
    check_start,
    client_weights,
    column_chunks,
    combine,
    distances_to,
    get_distance,
    gram,
    map_blocks,
)


def bad_count(bad_share: float, clients: int) -> int:
    """How many of these clients may be bad: the share of them, rounded down.

    >>> bad_count(0.3, 10), bad_count(0.1, 9)
    (3, 0)
    """
    return int(bad_share * clients + 1e-9)


def median(models: ClientModels, weights: Tensor | None = None) -> Tensor:
    """The (weighted) coordinate-wise median; between two middle values, their mean.

    Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018, arXiv 1803.01498.
    """
    return torch.cat(list(map_blocks(models, _median, client_weights(models, weights))))


def _median(block: Tensor, u: Tensor) -> Tensor:
    u, out = u.to(block.device), block.new_empty(block.shape[1])
    is_weighted = bool((u != u[0]).any())
    for columns in column_chunks(block):
        low, high = _weighted_middle(block[:, columns], u) if is_weighted else _middle(block[:, columns])
        out[columns] = low + (high - low) / 2
    return out


def _middle(block: Tensor) -> tuple[Tensor, Tensor]:
    """The two middle values of every column; of an odd number, the same one twice."""
    values = sort_rows(block, (len(block) - 1) // 2)
    return values[0], values[-1]


def _weighted_middle(block: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    values, order = block.sort(dim=0)
    mass = u[order].cumsum(0)  # (C, columns)
    low = (mass < 0.5 - 1e-12).sum(0, keepdim=True)
    high = (mass < 0.5 + 1e-12).sum(0, keepdim=True)
    return values.gather(0, low)[0], values.gather(0, high.clamp(max=len(u) - 1))[0]


def sort_rows(block: Tensor, cut: int = 0) -> Tensor:
    """The values of every column in ascending order without the first and last `cut`, (C − 2 · cut, columns).

    On a CPU by a sorting network of rows, four to six times as fast as `Tensor.sort` along the first dimension.

    >>> sort_rows(torch.tensor([[3, 1], [2, 5], [1, 4]])).tolist()
    [[1, 1], [2, 4], [3, 5]]
    """
    if block.device.type != "cpu":
        return block.sort(dim=0).values[cut : len(block) - cut]
    rows = list(block.clone().unbind())
    spare = torch.empty_like(rows[0])
    for i, j in _comparators(len(block)):
        torch.minimum(rows[i], rows[j], out=spare)
        torch.maximum(rows[i], rows[j], out=rows[j])
        rows[i], spare = spare, rows[i]
    return torch.stack(rows[cut : len(block) - cut])


@functools.cache
def _comparators(count: int) -> list[tuple[int, int]]:
    """The pairs of rows that a sorting network puts in order one after the other.

    Batcher's merge exchange: Knuth, The Art of Computer Programming, volume 3, Algorithm 5.2.2 M.
    """
    pairs: list[tuple[int, int]] = []
    top = 1 << max(0, (count - 1).bit_length() - 1)
    p = top if count > 1 else 0
    while p:
        q, r, distance = top, 0, p
        while True:
            pairs += [(i, i + distance) for i in range(count - distance) if i & p == r]
            if q == p:
                break
            distance, q, r = q - p, q // 2, p
        p //= 2
    return pairs


def geometric_median(models: ClientModels, weights: Tensor | None = None) -> Tensor:
    """The model with the least (weighted) sum of L2 distances to the clients' models.

    RFA: Pillutla, Kakade, Harchaoui, "Robust Aggregation for Federated Learning", arXiv 1912.13445.
    """
    u = client_weights(models, weights)
    return combine(models, gram_solvers.geometric_median_weights(gram(models), u))


def trimmed_mean(models: ClientModels, trim: float = 0.1) -> Tensor:
    """The coordinate-wise mean without the share `trim` of the values at each end (Yin et al., arXiv 1803.01498)."""
    u = client_weights(models, None)
    check_share(trim, "trim")
    return torch.cat(list(map_blocks(models, _trimmed_mean, bad_count(trim, len(u)))))


def _trimmed_mean(block: Tensor, cut: int) -> Tensor:
    out = block.new_empty(block.shape[1])
    for columns in column_chunks(block):
        middle = sort_rows(block[:, columns], cut)
        out[columns] = middle[0] + (middle - middle[0]).mean(0)
    return out


def krum(models: ClientModels, bad_share: float = 0.1) -> Tensor:
    """The client model closest to its nearest neighbours, if at most a share `bad_share` of the clients is malicious.

    Krum: Blanchard et al., NeurIPS 2017, arXiv 1703.02757.
    """
    client_weights(models, None)
    return models[krum_ranking(gram(models), bad_share)[0]].clone()


def multi_krum(models: Tensor, bad_share: float = 0.1) -> Tensor:
    """The mean of all clients but the share `bad_share` that Krum ranks last (Blanchard et al., arXiv 1703.02757)."""
    u = client_weights(models, None)
    order = krum_ranking(gram(models), bad_share)
    chosen = models[sorted(order[: len(u) - bad_count(bad_share, len(u))])]
    return combine(chosen, client_weights(chosen, None))


def bulyan(models: Tensor, bad_share: float = 0.1) -> Tensor:
    """The coordinate-wise mean of the values nearest to the median, among the C − 2f clients that Krum ranks first.

    Of these, C − 4f values count in every coordinate, where f is the share `bad_share` of the clients; C ≥ 4f + 3. El
    Mhamdi et al., "The Hidden Vulnerability of Distributed Learning in Byzantium", ICML 2018, arXiv 1802.07927. Clients
    are ranked once, as in Flower; the paper ranks the rest again after every choice.
    """
    count = len(client_weights(models, None))
    bad = bad_count(bad_share, count)
    if bad and count < 4 * bad + 3:
        raise InputError(f"bulyan with {bad} bad clients needs {4 * bad + 3} models, got {count}; lower bad_share")
    chosen = models[sorted(krum_ranking(gram(models), bad_share)[: count - 2 * bad])]
    centre = median(chosen)
    out = models.new_empty(models.shape[1])
    for columns in column_chunks(models):
        difference = chosen[:, columns] - centre[columns]
        nearest = difference.abs().argsort(dim=0, stable=True)[: count - 4 * bad]
        out[columns] = centre[columns] + difference.gather(0, nearest).mean(0)
    return out


def krum_ranking(matrix: Tensor, bad_share: float) -> list[int]:
    """Clients by Krum's score, best first, from their Gram matrix: the sum of the least squared distances to others."""
    check_share(bad_share, "bad_share")
    sq_dist = gram_solvers.pairwise_sq_distances(matrix).fill_diagonal_(math.inf)  # (C, C)
    count = len(matrix)
    neighbours = max(1, count - bad_count(bad_share, count) - 2)
    scores = sq_dist.sort(dim=1).values[:, : min(neighbours, count - 1)].sum(1)
    return scores.argsort(stable=True).tolist()


def clip_factors(models: Tensor, origin: Tensor, radius: float | None) -> Tensor:
    """What each update w_n − origin is multiplied with, so that none is longer than `radius`, (C,) in float64.

    Args:
        models: the clients' parameters, (C, P)
        origin: where updates start, (P,)
        radius: the largest L2 norm of an update; None: the median norm
    """
    if radius is not None and not 0 < radius < math.inf:
        raise InputError(f"radius must be a number > 0, got {radius}")
    length = distances_to(models, get_distance("l2"), origin)
    bound = length.median() if radius is None else torch.as_tensor(radius, dtype=length.dtype, device=length.device)
    return (bound / length.where(length > 0, 1.0)).clamp(max=1.0)


def norm_clipped(models: Tensor, start: Tensor | None = None, radius: float | None = None) -> Tensor:
    """Norm bounding: the mean of the clients' updates, each clipped to the length `radius`.

    Sun et al., "Can You Really Backdoor Federated Learning?", 2019, arXiv 1911.07963.

    Args:
        models: the clients' parameters, (C, P)
        start: the model that the clients received, (P,); without it, updates are relative to the coordinate-wise median
        radius: the largest L2 norm of an update; by default the median norm
    """
    u = client_weights(models, None)
    check_start(start, models)
    origin = median(models) if start is None else start
    return _add_scaled(models, origin, u * clip_factors(models, origin, radius))


def centered_clipping(
    models: Tensor, start: Tensor | None = None, radius: float | None = None, iterations: int = 5
) -> Tensor:
    """Centred clipping: v ← v + mean of (w_n − v), each clipped to the length `radius`, several times from `start`.

    One iteration is `norm_clipped`. Karimireddy, He, Jaggi, "Learning from History for Byzantine Robust Optimization",
    ICML 2021, arXiv 2012.10333.

    Args:
        models: the clients' parameters, (C, P)
        start: the first centre, (P,), such as the model that the clients received; by default the median
        radius: the largest L2 norm of a difference; by default the median norm, in every iteration
        iterations: how many
    """
    u = client_weights(models, None)
    check_start(start, models)
    if iterations < 1:
        raise InputError(f"iterations must be ≥ 1, got {iterations}")
    centre = median(models) if start is None else start
    for _ in range(iterations):
        centre = _add_scaled(models, centre, u * clip_factors(models, centre, radius))
    return centre


def fltrust(models: Tensor, start: Tensor, root: Tensor) -> Tensor:
    """FLTrust: the mean of the updates, scaled to the length of the server's own, by their agreement with it.

    With g_n = w_n − start and g_0 = root − start, the weight of a client is max(0, cos(g_n, g_0)); if all are 0, the
    result is `start`. Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS 2021,
    arXiv 2012.13995.

    Args:
        models: the clients' parameters, (C, P)
        start: the model that the clients received, (P,)
        root: the model that the server trained from it on its own clean samples, the root set, (P,)
    """
    client_weights(models, None)
    for given in (start, root):
        check_start(given, models)
    inner = torch.zeros(len(models), dtype=torch.float64, device=models.device)
    for columns in column_chunks(models):
        origin = start[columns].double()
        inner += (models[:, columns].double() - origin) @ (root[columns].double() - origin)
    length = distances_to(models, get_distance("l2"), start)
    own_length = distances_to(root[None], get_distance("l2"), start)
    safe_length = length.where(length > 0, 1.0)
    trust = (inner / (safe_length * own_length)).nan_to_num(0.0).clamp(min=0.0)  # cosines; NaN: no own update
    if trust.sum() == 0:
        return start.clone()
    return _add_scaled(models, start, trust / trust.sum() * own_length / safe_length)


def root_selected(models: Tensor, start: Tensor, root: Tensor, bad_share: float = 0.1) -> Tensor:
    """The mean of the updates that together agree best with the server's own, which replaces those left out.

    Updates are clipped to their median length. Of C clients f, the share `bad_share`, are left out one after the other:
    each time the one without which the sum of the others has the largest cosine with g_0 = root − start. The result is
    start + (the sum of the others + f · g_0, scaled to the median length) / C. A sum is compared, not every update by
    itself as in `fltrust`: clients with other classes point elsewhere, and their sum does not. Without an own update,
    the result is `start`.

    Args:
        models: the clients' parameters, (C, P)
        start: the model that the clients received, (P,)
        root: the model that the server trained from it on its own clean samples, the root set, (P,)
        bad_share: the share of the clients that is left out
    """
    client_weights(models, None)
    check_share(bad_share, "bad_share")
    for given in (start, root):
        check_start(given, models)
    own_length = float(distances_to(root[None], get_distance("l2"), start))
    if own_length == 0:
        return start.clone()
    count, factors = len(models), clip_factors(models, start, None)
    matrix = torch.zeros(count, count, dtype=torch.float64, device=models.device)
    inner = torch.zeros(count, dtype=torch.float64, device=models.device)
    for columns in column_chunks(models):
        origin = start[columns].double()
        steps = factors[:, None] * (models[:, columns].double() - origin)
        matrix += steps @ steps.T
        inner += steps @ (root[columns].double() - origin)
    kept = torch.ones_like(inner)
    bad = bad_count(bad_share, count)
    for _ in range(bad):
        with_sum = matrix @ kept
        sq_length = kept @ with_sum - 2 * with_sum + matrix.diagonal()  # of the sum without each client
        cosines = (kept @ inner - inner) / sq_length.clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        kept[cosines.where(kept > 0, -math.inf).argmax()] = 0
    length = float(distances_to(models, get_distance("l2"), start).median())
    out = _add_scaled(models, start, factors * kept / count)
    return out + (root - start) * (bad / count * length / own_length)


def _add_scaled(models: Tensor, origin: Tensor, scale: Tensor) -> Tensor:
    """The point origin + Σ scale_n · (w_n − origin)."""
    out = origin.clone()
    for columns in column_chunks(models):
        out[columns] += scale.to(models.dtype) @ (models[:, columns] - origin[columns])
    return out
