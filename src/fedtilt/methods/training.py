"""The whole update of a client in plain PyTorch, for what no composition of the other components says."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.methods.component import Component, ServerRound, Slot

Step = Callable[[Tensor], None]  # takes one step along the gradient of a loss


def mean(losses: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean of the losses of samples (n,) with these weights."""
    return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()


def plain_sgd(parameters: Sequence[nn.Parameter], lr: float) -> Step:
    """Steps of plain SGD on these parameters."""

    def step(loss: Tensor) -> None:
        grads = torch.autograd.grad(loss, parameters, materialize_grads=True)
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.sub_(grad, alpha=lr)

    return step


class ClientBatch(NamedTuple):
    """What one step trains on."""

    x: Any
    y: Tensor
    groups: Tensor  # the group of each sample, those that the data names, else its class, (n,)
    weights: Tensor | None  # how much each counts, (n,); None: they count the same

    def mean(self, losses: Tensor) -> Tensor:
        """The mean of the losses of these samples, by their weights."""
        return mean(losses, self.weights)


@dataclass(kw_only=True, eq=False)
class ClientBatches(Sequence[tuple[Any, Tensor]]):
    """A client's batches of one round, in order: samples and labels on the model's device.

    `for x, y in batches` makes all epochs of the run, `for batch in batches.steps` too, with the groups and weights of
    the samples; the first rejects weighted data. `batches.x`, `.y`, `.groups` and `.weights` are of all its samples.
    """

    x: Any
    y: Tensor
    groups: Tensor
    weights: Tensor | None
    steps: Sequence[ClientBatch]
    lr: float  # the learning rate of this round
    loss: Any  # (outputs, targets) → the loss of every sample (n,)
    round: int
    epochs: int
    classes: int  # outputs of the model
    new_step: Callable[[Sequence[nn.Parameter], float], Step]
    made_stepper: bool = False

    def stepper(self, parameters: Iterable[nn.Parameter], lr: float | None = None) -> Step:
        """A function that takes one step along the gradient of a loss, with the optimiser of the run.

        Args:
            parameters: what it trains; those with requires_grad = False stay as they are
            lr: the learning rate, if it is not that of the run
        """
        self.made_stepper = True
        return self.new_step([p for p in parameters if p.requires_grad], self.lr if lr is None else lr)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: Any) -> Any:
        if self.weights is not None:
            raise InputError(
                "the samples have weights, which `for x, y in batches` does not give; write `for batch in "
                "batches.steps`, and batch.mean(losses)"
            )
        return [batch[:2] for batch in self.steps][index]

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return iter(self[:])


@dataclass(frozen=True)
class ClientResult:
    """What a client has after its round."""

    model: nn.Module  # its w_n: what it sends
    personal: nn.Module | None = None  # stays on the client and is evaluated
    slot: Slot = field(default_factory=dict)  # stays on the client
    sends: Slot = field(default_factory=dict)  # travels beside the model


@dataclass(frozen=True)
class Training(Component):
    """A client's update, and if it needs one a step of its own on the server; a subclass has `train`.

    It takes the place of objective, personal, local and correction. It is trained by autograd, one client at a time.
    """

    kind: ClassVar[str] = "training"
    has_personal: ClassVar[bool] = False  # whether `train` returns a personal model

    def init_client(self, model: nn.Module) -> Slot:
        """A client's slot before its first round: float32 tensors of the shapes that they keep."""
        return {}

    def init_server(self, model: nn.Module, population: int) -> Slot:
        """The server's slot before the first round; all of it is sent to the clients."""
        return {}

    def sends(self, model: nn.Module) -> Slot:
        """Tensors of the names and shapes that a client sends beside its model; by default none."""
        return {}

    def group_count(self, model: nn.Module) -> int | None:
        """How many groups, by their number, the tensors of messages are about; None: they are not by group.

        Every site of a deployment must then have all of these groups: a site numbers those that it has.
        """
        return None

    def train(self, model: nn.Module, batches: ClientBatches, received: Slot, slot: Slot) -> ClientResult:
        """One round of a client.

        Args:
            model: the shared model as received, in training mode; it may be trained in place
            batches: the client's data of this round, with the learning rate and the loss of the run
            received: the server's slot
            slot: the client's own
        """
        raise InputError(f"training {self.label!r} has no train(model, batches, received, slot); write one")

    def server_step(self, sent: Mapping[str, Tensor], round: ServerRound, slot: Slot) -> Slot:
        """The server's next slot, from what the clients sent, each (C, …)."""
        return slot
