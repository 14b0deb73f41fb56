"""Fairness over clients on the server: weights from the clients' losses, and rules that no client should lose by.

Losses are those of the model that the clients received, on all their training samples, before they train.
"""

import torch
from torch import Tensor

from fedtilt.math.tilt import nested_tilt_grad

_LEAST_LOSS = 1e-10  # F^(q − 1) is infinite at 0
_SOLVER_STEPS_PER_ENTRY, _SOLVER_TOLERANCE = 20, 1e-12


def tilted_weights(losses: Tensor, tilt: float) -> Tensor:
    """TERM over clients: weights ∝ exp(tilt · F_n), those of the gradient of 1/t · log(mean of exp(t · F_n)), (C,).

    Li et al., Tilted Empirical Risk Minimization, ICLR 2021, arXiv 2007.01162; 0 gives equal weights, inf the largest
    loss.

    >>> tilted_weights(torch.tensor([0.0, 0.0, 1.0]), float("inf")).tolist()
    [0.0, 0.0, 1.0]
    """
    return nested_tilt_grad(losses.double(), [], [tilt])


def afl_weights(weights: Tensor, clients: list[int], losses: Tensor, rate: float) -> Tensor:
    """One step of AFL's client weights: λ_n ← λ_n + rate · N/C · (F_n − mean of F) for those that took part, (N,).

    Mohri et al., Agnostic Federated Learning, ICML 2019, arXiv 1902.00146. The result is projected onto the simplex, to
    which a constant for all clients makes no difference: with all of them, this is their step along F. N/C makes it
    right on average where C of N clients take part.

    Args:
        weights: λ of all clients, (N,)
        clients: those that took part
        losses: their losses, (C,)
        rate: the size of the step
    """
    step = torch.zeros_like(weights, dtype=torch.float64)
    step[clients] = (losses - losses.mean()).to(step) * (len(weights) / len(clients))
    return project_to_simplex(weights.double() + rate * step)


def project_to_simplex(values: Tensor) -> Tensor:
    """The nearest vector (n,) that sums to 1 with entries in [0, 1]: clamp(values − s) for the s that it takes.

    >>> project_to_simplex(torch.tensor([1.0, 0.75, 0.25])).tolist()
    [0.625, 0.375, 0.0]
    """
    v = values.double()
    below, above = v.min() - 2, v.max() + 1  # s: at the first the sum is too large, at the other too small
    for _ in range(200):
        middle = (below + above) / 2
        if (v - middle).clamp(0, 1).sum() > 1:
            below = middle
        else:
            above = middle
    p = (v - below).clamp(0, 1)
    inside = (p > 0) & (p < 1)  # of these the exact shift is known
    if inside.any():
        p = torch.where(inside, v + (1 - p[~inside].sum() - v[inside].sum()) / inside.sum(), p)
    return p


def q_ffl(models: Tensor, received: Tensor, losses: Tensor, q: float, lr: float) -> Tensor:
    """q-FedAvg, the solver of q-FFL, which minimises the sum of F_n^(q + 1): clients with a larger loss move w more.

    Li et al., Fair Resource Allocation in Federated Learning, ICLR 2020, arXiv 1905.10497, Algorithm 2; with L = 1/lr,

        g_n = L · (w − w_n),   w ← w − Σ F_n^q · g_n / Σ (q · F_n^(q − 1) · ‖g_n‖² + L · F_n^q)

    q = 0 is the mean.

    Args:
        models: the clients' models w_n, (C, P)
        received: w, (P,)
        losses: F_n, (C,)
        q: the exponent
        lr: the clients' learning rate
    """
    loss = losses.double().clamp_min(_LEAST_LOSS)
    sq_length = torch.stack([(received.double() - w.double()).square().sum() for w in models]).to(loss)  # of w − w_n
    # both sums are divided by L · (largest loss)^q, which cancels: powers of large losses overflow
    share = (loss / loss.max()) ** q
    step = share / (q * share / loss * sq_length / lr + share).sum()
    change = torch.zeros_like(received, dtype=torch.float64)
    for p, w in zip(step.tolist(), models, strict=True):
        change += p * (w.double() - received.double())
    return (received.double() + change).to(models.dtype)


def fedmgda(models: Tensor, received: Tensor, bound: float = 1.0, length: float = 1.0) -> Tensor:
    """FedMGDA+: a step along the shortest combination of the updates, all scaled to one length; it hurts no client.

    Hu et al., Federated Learning Meets Multi-Objective Optimization, IEEE TNSE 2022, arXiv 2006.11489; with the unit
    vectors u_n of w_n − w,

        λ = argmin ‖Σ λ_n · u_n‖²  over Σ λ_n = 1, λ_n ≥ 0, |λ_n − 1/C| ≤ bound,   w ← w + length · Σ λ_n · u_n

    Args:
        models: the clients' models, (C, P)
        received: w, (P,)
        bound: 0 is the mean of the unit vectors, 1 is MGDA
        length: the longest step
    """
    updates = models.double() - received.double()
    lengths = updates.norm(dim=1, keepdim=True)
    unit = updates / lengths.clamp_min(torch.finfo(torch.float64).tiny)
    share = 1 / len(models)
    weights = shortest_combination(unit @ unit.T, max(0.0, share - bound), min(1.0, share + bound))
    return (received.double() + length * (weights @ unit)).to(models.dtype)


def shortest_combination(gram: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """The λ with the least λᵀ · gram · λ that sum to 1 with entries in [low, high], by an active-set method.

    Every step goes to the minimum over the free entries, or as far as one of them comes to a bound and stays there. At
    the minimum, the entry that gains most leaves its bound (Nocedal and Wright, Numerical Optimization, 2006, 16.5).

    >>> shortest_combination(torch.tensor([[1.0, 0.0], [0.0, 4.0]])).round(decimals=6).tolist()
    [0.8, 0.2]
    """
    count = len(gram)
    p = torch.full((count,), 1 / count, dtype=torch.float64)
    matrix = gram.double().cpu() / gram.diagonal().max().clamp_min(torch.finfo(gram.dtype).tiny).double().cpu()
    free = torch.full((count,), low < high)
    for _ in range(_SOLVER_STEPS_PER_ENTRY * count):
        step = _minimum_over(free, matrix, p) - p
        room = torch.where(step > 0, high - p, p - low) / step.abs()  # how much of the step an entry may take
        share, entry = room.where(free & (step.abs() > _SOLVER_TOLERANCE), torch.inf).min(0)
        p = (p + share.clamp(max=1) * step).clamp(low, high)
        if share < 1:
            p[entry], free[entry] = (high if step[entry] > 0 else low), False
            continue
        slope = matrix @ p
        at_low, at_high = ~free & (p <= low), ~free & (p >= high)
        level = slope[free].mean() if free.any() else (slope[at_low].min() + slope[at_high].max()) / 2
        gain, entry = torch.where(at_low, level - slope, slope - level).where(~free, 0.0).max(0)
        if low == high or gain <= _SOLVER_TOLERANCE:
            break
        free[entry] = True
    return p.to(gram.device)


def _minimum_over(free: Tensor, matrix: Tensor, p: Tensor) -> Tensor:
    """P with its free entries at the minimum of pᵀ · matrix · p, all entries together with the sum 1."""
    count, fixed = int(free.sum()), p[~free]
    system = torch.ones(count + 1, count + 1, dtype=p.dtype)  # the stationary point, and the sum
    system[:count, :count], system[count, count] = matrix[free][:, free], 0
    right = torch.cat([-matrix[free][:, ~free] @ fixed, 1 - fixed.sum()[None]])
    minimum = p.clone()  # by singular values, since equal clients make it singular; gelsd fails on some such systems
    minimum[free] = torch.linalg.lstsq(system, right[:, None], driver="gelss").solution[:count, 0]
    return minimum
