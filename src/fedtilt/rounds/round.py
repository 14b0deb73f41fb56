"""One round of the algorithm, whoever runs it: plan what a client trains, settle what the clients have trained.

    plan      method, received w, last v  →  lanes            on every selected client
    descend   lanes, batches              →  trained lanes    on every selected client (`fedtilt.descend`)
    settle    method, received w, w_n     →  new w            on the server

The simulator and the Flower runner both go through these and nothing else.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.errors import Diverged, InputError
from fedtilt.math.aggregate import AGGREGATORS, tilted
from fedtilt.methods import Method
from fedtilt.training import LocalJob

_NOT_FINITE = "is not finite"


class Plan(NamedTuple):
    """The lanes of one client's round; without a personal model there is one."""

    shared: LocalJob
    personal: LocalJob | None

    @property
    def jobs(self) -> list[LocalJob]:
        """The lanes to train, shared first."""
        return [self.shared] if self.personal is None else [self.shared, self.personal]


def plan(method: Method, received: Tensor, last: Tensor | None, *, lr: float, lr_personal: float) -> Plan:
    """What a client trains that received w and whose personal model was `last` (None: it takes part the first time).

    The anchor is the received w, so the lanes never meet inside a round.
    """
    tilts = {"tau": method.tau, "lam": method.lam}
    shared = LocalJob(start=received, anchor=received, prox=method.prox, lr=lr, **tilts)
    if not method.personal:
        return Plan(shared, None)
    start = received if last is None else last
    return Plan(shared, LocalJob(start=start, anchor=received, prox=method.mu, lr=lr_personal, **tilts))


class ServerUpdate(NamedTuple):
    """The new shared model, and why which clients did not enter it."""

    shared: Tensor
    rejected: dict[int, str]


def invalid_reason(update: Tensor, like: Tensor) -> str | None:
    """What is wrong with a trained model, or None: nothing flawed may enter an average or be kept."""
    return invalid_reasons({0: update}, like).get(0)


def _mismatch(update: Tensor, like: Tensor) -> str | None:
    if update.shape != like.shape:
        return f"has shape {tuple(update.shape)} instead of {tuple(like.shape)}"
    if update.dtype != like.dtype:
        return f"has type {update.dtype} instead of {like.dtype}"
    return None


def invalid_reasons(updates: Mapping[int, Tensor], like: Tensor) -> dict[int, str]:
    """What is wrong with which of these models; on a GPU, one look at all of them."""
    found = {client: why for client, update in updates.items() if (why := _mismatch(update, like))}
    rest = [client for client in updates if client not in found]
    if rest:
        # 0 · inf and 0 · NaN are NaN: a fifth of what isfinite takes
        finite = ((torch.stack([updates[client] for client in rest]) * 0).sum(1) == 0).tolist()
        found |= {client: _NOT_FINITE for client, well in zip(rest, finite, strict=True) if not well}
    return {client: found[client] for client in sorted(found)}


def server_update(
    method: Method, received: Tensor, updates: Mapping[int, Tensor], samples: Mapping[int, int]
) -> ServerUpdate:
    """Aggregate the clients' w_n into the next w; flawed ones are left out and named.

    Clients enter in the order of their numbers, so the order of arrival does not matter.
    """
    rejected = invalid_reasons(updates, received)
    accepted = [client for client in sorted(updates) if client not in rejected]
    if not accepted:
        reasons = "; ".join(f"client {client} {why}" for client, why in rejected.items())
        raise InputError(f"method {method.name!r} has no client model to aggregate ({reasons or 'none arrived'})")
    models = torch.stack([updates[client] for client in accepted])
    weights = None
    if method.weighting == "samples":
        weights = torch.tensor([samples[client] for client in accepted], dtype=torch.float64)
    if method.aggregator != "tilted":
        shared = AGGREGATORS[method.aggregator].apply(models, weights, received, method.bad_share)
    else:
        shared = tilted(models, method.q, method.distance, weights=weights, start=received, steps=method.steps)
    if why := invalid_reason(shared, received):
        raise Diverged(
            f"method {method.name!r} diverged on the server: what it made of the clients' models {why}; "
            + (f"lower the size in steps = {method.steps}" if method.steps else f"look at its rule {_rule(method)!r}"),
            methods=[method.name],
        )
    return ServerUpdate(shared, rejected)


def _rule(method: Method) -> str:
    return method.aggregator if method.aggregator != "tilted" else f"tilted, q = {method.q:g}"
