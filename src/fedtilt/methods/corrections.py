"""Corrections of client drift: a vector added to every gradient of a client, from what it and the server remember.

Clients whose data differs move the shared model towards their own optimum while they train. A correction estimates that
drift. All its vectors are (S,), the shared parameters.

On the server a correction is given means over the clients, which a robust rule of the method makes itself: it never
sees what one client sent.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.methods.component import Component, Slot


class ClientStep(NamedTuple):
    """What a correction knows on a client after it has trained."""

    received: Tensor  # (S,) the shared parameters w
    trained: Tensor  # (S,) the client's w_n
    drift: Tensor  # (S,) that was added to every gradient
    slot: Slot  # of the client
    steps: int  # how many it made
    lr: float  # their learning rate


class ServerStep(NamedTuple):
    """What a correction knows on the server."""

    aggregated: Tensor  # (S,) the result of the aggregation rule
    received: Tensor  # (S,) the shared parameters w that the clients received
    update: Tensor  # (S,) the mean of the clients' w_n − w; with a robust rule, aggregated − w
    sent: Slot  # the mean of what they sent; with a robust rule, what it makes of that
    slot: Slot  # of the server
    clients: int  # how many sent an update, C
    population: int  # how many there are, N


@dataclass(frozen=True)
class Correction(Component):
    """Which vectors exist, and how they change; all start at 0."""

    kind: ClassVar[str] = "correction"
    client_vectors: ClassVar[tuple[str, ...]] = ()  # of a client's slot
    server_vectors: ClassVar[tuple[str, ...]] = ()  # of the server's slot
    broadcasts: ClassVar[tuple[str, ...]] = ()  # vectors of the server's slot that the clients receive
    sends: ClassVar[tuple[str, ...]] = ()  # vectors that a client sends beside its model
    needs_plain_sgd: ClassVar[bool] = False  # whether it takes the clients' steps for lr times a gradient

    @property
    def prox(self) -> float:
        """The weight of the proximal term that it adds to the objective of the shared model."""
        return 0.0

    def drift(self, server: Slot, client: Slot) -> Tensor:
        """The vector that is added to every gradient, from what the server broadcasts and the client's slot."""
        raise InputError(f"correction {self.label!r} has no drift(server, client); write one")

    def client_step(self, step: ClientStep) -> tuple[Slot, Slot]:
        """What the client sends, and its next slot."""
        return {}, step.slot

    def server_step(self, step: ServerStep) -> tuple[Tensor, Slot]:
        """The next shared parameters, and the next slot of the server."""
        return step.aggregated, step.slot


@dataclass(frozen=True)
class Scaffold(Correction):
    """Control variates c of the server and c_n of the clients, which estimate the gradients of all and of one.

        drift = c − c_n,   c_n ← c_n − c + (w − w_n) / (K · lr),   c ← c + 1/N · Σ change of c_n        (option II)

    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, arXiv 1910.06378.
    """

    rule: ClassVar[str] = "scaffold"
    client_vectors: ClassVar[tuple[str, ...]] = ("control",)
    server_vectors: ClassVar[tuple[str, ...]] = ("control",)
    broadcasts: ClassVar[tuple[str, ...]] = ("control",)
    sends: ClassVar[tuple[str, ...]] = ("control",)  # its change
    needs_plain_sgd: ClassVar[bool] = True

    def drift(self, server: Slot, client: Slot) -> Tensor:
        """C − c_n."""
        return server["control"] - client["control"]

    def client_step(self, step: ClientStep) -> tuple[Slot, Slot]:
        """The change of c_n, and c_n."""
        control = (step.received - step.trained) / (step.steps * step.lr) - step.drift
        return {"control": control - step.slot["control"]}, {"control": control}

    def server_step(self, step: ServerStep) -> tuple[Tensor, Slot]:
        """C moves by the mean change over all clients, those that did not take part with 0."""
        share = step.clients / step.population
        return step.aggregated, {"control": step.slot["control"] + share * step.sent["control"]}


@dataclass(frozen=True)
class FedDyn(Correction):
    """A proximal and a linear term: g_n estimates the gradient of a client at its own model, h their mean.

        drift = −g_n,   g_n ← g_n − alpha · (w_n − w),   h ← h − alpha/N · Σ (w_n − w),   w ← aggregated − h / alpha

    Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, arXiv 2111.04263.
    """

    rule: ClassVar[str] = "feddyn"
    client_vectors: ClassVar[tuple[str, ...]] = ("gradient",)
    server_vectors: ClassVar[tuple[str, ...]] = ("dual",)
    alpha: float = setting(0.01, "weight of both terms", gt=0)

    @property
    def prox(self) -> float:
        """Alpha."""
        return self.alpha

    def drift(self, server: Slot, client: Slot) -> Tensor:
        """−g_n."""
        return -client["gradient"]

    def client_step(self, step: ClientStep) -> tuple[Slot, Slot]:
        """Nothing is sent; g_n."""
        return {}, {"gradient": step.slot["gradient"] - self.alpha * (step.trained - step.received)}

    def server_step(self, step: ServerStep) -> tuple[Tensor, Slot]:
        """The aggregated model minus h / alpha, and h."""
        dual = step.slot["dual"] - self.alpha * step.clients / step.population * step.update
        return step.aggregated - dual / self.alpha, {"dual": dual}
