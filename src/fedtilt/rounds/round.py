"""One round of the algorithm, for the simulator and Flower alike.

plan           method, received w, last v  →  local jobs        on every selected client
train          local jobs, batches         →  trained models    on every selected client (`fedtilt.training`)
server_update  method, received w, all w_n →  new w             on the server
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedtilt.errors import Diverged, InputError
from fedtilt.math.aggregate import AGGREGATORS, tilted
from fedtilt.methods import Method
from fedtilt.rounds.settings import TrainSettings
from fedtilt.training import LocalJob


class Plan(NamedTuple):
    """The local jobs of one client in one round."""

    shared: LocalJob
    personal: LocalJob | None  # None: the method has no personal models

    @property
    def jobs(self) -> list[LocalJob]:
        """The jobs to train, shared first."""
        return [self.shared] if self.personal is None else [self.shared, self.personal]


def plan(
    method: Method, received: Tensor, last: Tensor | None, settings: TrainSettings, *, initial: Tensor | None = None
) -> Plan:
    """The local jobs of a client; both have the received w as their anchor, so they are independent of each other.

    Args:
        method: tilts, weights of the proximal terms, learning rates of its own
        received: the shared model w, (P,)
        last: the client's personal model v, (P,); None: the client is selected for the first time
        settings: learning rates and epochs of the run
        initial: the model that the run starts from, (P,); needed by methods with `personal_start = "initial"`
    """
    lr, lr_personal = method.rates(settings.lr, settings.lr_personal)
    tilts = {"tau": method.tau, "lam": method.lam}
    shared = LocalJob(start=received, anchor=received, prox=method.prox, lr=lr, epochs=settings.epochs, **tilts)
    if not method.personal:
        return Plan(shared, None)
    start = received if last is None or method.personal_start == "received" else last
    if last is None and method.personal_start == "initial":
        assert initial is not None
        start = initial
    epochs = method.epochs_personal or settings.epochs
    return Plan(shared, LocalJob(start=start, anchor=received, prox=method.mu, lr=lr_personal, epochs=epochs, **tilts))


class ServerUpdate(NamedTuple):
    """The new shared model, and the clients that were left out of it."""

    shared: Tensor
    rejected: dict[int, str]  # client → reason


def invalid_reason(update: Tensor, reference: Tensor) -> str | None:
    """Why a trained model may not be averaged or stored, or None if it is valid."""
    return invalid_reasons({0: update}, reference).get(0)


def _mismatch(update: Tensor, reference: Tensor) -> str | None:
    if update.shape != reference.shape:
        return f"has shape {tuple(update.shape)} instead of {tuple(reference.shape)}"
    if update.dtype != reference.dtype:
        return f"has type {update.dtype} instead of {reference.dtype}"
    return None


def invalid_reasons(updates: Mapping[int, Tensor], reference: Tensor) -> dict[int, str]:
    """`invalid_reason` by client, for the invalid models only; on a GPU, one synchronisation for all of them."""
    reasons = {client: reason for client, update in updates.items() if (reason := _mismatch(update, reference))}
    comparable = [client for client in updates if client not in reasons]
    if comparable:
        # 0 · inf and 0 · NaN are NaN: five times as fast as isfinite
        finite = ((torch.stack([updates[client] for client in comparable]) * 0).sum(1) == 0).tolist()
        reasons |= {client: "is not finite" for client, ok in zip(comparable, finite, strict=True) if not ok}
    return {client: reasons[client] for client in sorted(reasons)}


def server_update(
    method: Method, received: Tensor, updates: Mapping[int, Tensor], samples: Mapping[int, int]
) -> ServerUpdate:
    """Aggregate the clients' w_n into the next w; invalid models are left out and reported.

    Clients are aggregated in the order of their numbers, so the order of arrival does not matter.

    Args:
        method: the aggregation rule and its settings
        received: the w that the clients started from, (P,)
        updates: client → w_n, (P,)
        samples: client → number of training samples; used with weighting="samples" only
    """
    rejected = invalid_reasons(updates, received)
    accepted = [client for client in sorted(updates) if client not in rejected]
    if not accepted:
        reasons = "; ".join(f"client {client} {reason}" for client, reason in rejected.items())
        raise InputError(f"method {method.name!r} has no client model to aggregate ({reasons or 'none arrived'})")
    models = torch.stack([updates[client] for client in accepted])  # (C, P)
    weights = None
    if method.weighting == "samples":
        weights = torch.tensor([samples[client] for client in accepted], dtype=torch.float64)
    if method.aggregator != "tilted":
        shared = AGGREGATORS[method.aggregator].apply(models, weights, received, method.bad_share)
    else:
        shared = tilted(models, method.q, method.distance, weights=weights, start=received, steps=method.steps)
    if reason := invalid_reason(shared, received):
        rule = method.aggregator if method.aggregator != "tilted" else f"tilted, q = {method.q:g}"
        raise Diverged(
            f"method {method.name!r} diverged on the server: the aggregated model {reason}; "
            + (f"lower the size in steps = {method.steps}" if method.steps else f"check its aggregation rule {rule!r}"),
            methods=[method.name],
        )
    return ServerUpdate(shared, rejected)
