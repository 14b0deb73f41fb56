"""The whole update of a client in plain PyTorch, for what no composition of the other components says."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from fedtilt.errors import InputError
from fedtilt.methods.component import Component, ServerRound, Slot


class ClientBatches(Sequence[tuple[Any, Tensor]]):
    """A client's batches of one round, in order: samples and labels on the model's device.

    `for x, y in batches` makes all epochs of the run; `batches.x` and `batches.y` are all its samples.
    """

    def __init__(
        self, x: Any, y: Tensor, batches: Sequence[tuple[Any, Tensor]], *, lr: float, loss: Any, round: int,
        epochs: int, classes: int,
    ) -> None:  # fmt: skip
        self.x, self.y = x, y
        self.lr = lr  # the learning rate of this round
        self.loss = loss  # (outputs, targets) → the loss of every sample (n,)
        self.round = round
        self.epochs = epochs
        self.classes = classes  # outputs of the model
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: Any) -> Any:
        return self._batches[index]

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        return iter(self._batches)

    def of_epoch(self, epoch: int) -> Sequence[tuple[Any, Tensor]]:
        """The batches of one epoch, counted from 0."""
        per_epoch = len(self._batches) // self.epochs
        return self._batches[epoch * per_epoch : (epoch + 1) * per_epoch]


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


TRAINING: dict[str, type[Training]] = {}
