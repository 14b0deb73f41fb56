"""Corrections of client drift: a vector added to every gradient of a client, from what it and the server keep.

Clients whose data differs move the shared model towards their own optimum while they train. A correction estimates that
drift. All its vectors are (S,), the shared parameters, and start at 0.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

Tensors = Mapping[str, Tensor]


class ClientStep(NamedTuple):
    """What a correction knows on a client after it has trained."""

    received: Tensor  # the shared parameters w
    trained: Tensor  # the client's w_n
    drift: Tensor  # that was added to every gradient
    kept: Tensors  # the vectors that the client kept before
    steps: int  # how many it made
    lr: float  # their learning rate
    prox: float  # the weight of the proximal term


class ServerStep(NamedTuple):
    """What a correction knows on the server."""

    aggregated: Tensor  # the result of the aggregation rule
    received: Tensor  # the shared parameters that the clients received
    models: Tensor  # (C, S) the clients' w_n
    sent: Sequence[Tensors]  # the vectors that each of them sent
    kept: Tensors  # the vectors that the server kept before
    clients: int  # how many there are, N
    prox: float  # the weight of the proximal term


class Correction(NamedTuple):
    """Which vectors exist, and how they change."""

    client_keeps: tuple[str, ...]
    server_keeps: tuple[str, ...]
    server_sends: tuple[str, ...]  # of those that it keeps
    client_sends: tuple[str, ...]
    drift: Callable[[Tensors, Tensors], Tensor]  # from what the server sends and what the client keeps
    client_step: Callable[[ClientStep], tuple[dict[str, Tensor], dict[str, Tensor]]]  # what it sends, what it keeps
    server_step: Callable[[ServerStep], tuple[Tensor, dict[str, Tensor]]]  # the shared parameters, what it keeps
    needs_plain_sgd: bool = False  # whether it takes the clients' steps for lr times a gradient
    needs_prox: bool = False  # whether it divides by the weight of the proximal term


def _scaffold_client(step: ClientStep) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    control = (step.received - step.trained) / (step.steps * step.lr) - step.drift
    return {"control": control - step.kept["control"]}, {"control": control}


def _scaffold_server(step: ServerStep) -> tuple[Tensor, dict[str, Tensor]]:
    change = sum((sent["control"] for sent in step.sent), start=step.received.new_zeros(()))
    return step.aggregated, {"control": step.kept["control"] + change / step.clients}


# Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, arXiv 1910.06378,
# option II: control variates c of the server and c_n of the clients estimate the gradients of all and of one,
#     drift = c − c_n,   c_n ← c_n − c + (w − w_n) / (K · lr),   c ← c + 1/N · Σ change of c_n
SCAFFOLD = Correction(
    client_keeps=("control",),
    server_keeps=("control",),
    server_sends=("control",),
    client_sends=("control",),
    drift=lambda server, client: server["control"] - client["control"],
    client_step=_scaffold_client,
    server_step=_scaffold_server,
    needs_plain_sgd=True,
)


def _feddyn_client(step: ClientStep) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return {}, {"gradient": step.kept["gradient"] - step.prox * (step.trained - step.received)}


def _feddyn_server(step: ServerStep) -> tuple[Tensor, dict[str, Tensor]]:
    moved = (step.models - step.received).sum(0) / step.clients
    dual = step.kept["dual"] - step.prox * moved
    return step.aggregated - dual / step.prox, {"dual": dual}


# Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, arXiv 2111.04263: with alpha = prox, g_n
# estimates the gradient of client n at its own model, and the optimum of all clients is a fixed point,
#     drift = −g_n,   g_n ← g_n − alpha · (w_n − w),   h ← h − alpha/N · Σ (w_n − w),   w ← aggregated − h / alpha
FEDDYN = Correction(
    client_keeps=("gradient",),
    server_keeps=("dual",),
    server_sends=(),
    client_sends=(),
    drift=lambda server, client: -client["gradient"],
    client_step=_feddyn_client,
    server_step=_feddyn_server,
    needs_prox=True,
)

CORRECTIONS = {"scaffold": SCAFFOLD, "feddyn": FEDDYN}
