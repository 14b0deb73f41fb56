"""The samples of each client, by index: they are copied only when a client's data is read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from fedtilt.data.dataset import Dataset
from fedtilt.data.groups import CLASS, GroupColumn
from fedtilt.data.inputs import Inputs, Shape, concatenate, take, to_device
from fedtilt.data.naming import client_number
from fedtilt.data.outliers import Outliers, apply
from fedtilt.data.sampling import AS_GIVEN, DrawnRows
from fedtilt.data.targets import Target
from fedtilt.errors import InputError

Device = torch.device | str
Clients = int | str | list[int]  # one, by number or name, or the numbers of several


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientData:
    """A data set divided among clients, as a model trains on it and is evaluated with it."""

    dataset: Dataset
    outliers: Outliers
    client_names: tuple[str, ...]
    train_index: Sequence[Tensor]
    validation_index: Sequence[Tensor]
    test_index: Sequence[Tensor]
    client_classes: Sequence[Tensor]  # the classes of each client's training samples, ascending
    has_outliers: Tensor  # (clients,) bool
    seed: int = 0
    validation_outliers: bool = False  # whether validation data has the outliers of the training data
    flip_map: Tensor | None = None  # (classes,) the class that each class flips to; None: drawn for every sample
    left_out: tuple[int, ...] = ()  # clients without samples, which are never selected
    drawn: DrawnRows = AS_GIVEN  # how the test samples came about

    def to(self, device: torch.device) -> Self:
        """The same federation with its samples on another device, so that a round copies nothing to it."""
        by_client = ("train_index", "validation_index", "test_index", "client_classes")
        moved: dict[str, Any] = {key: [rows.to(device) for rows in getattr(self, key)] for key in by_client}
        return replace(self, dataset=self.dataset.to(device), **moved)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.train_index)

    @property
    def population(self) -> int:
        """The number of clients that are part of the run: those that are left out are not."""
        return self.clients - len(self.left_out)

    @property
    def first_client(self) -> int:
        """The first client with training samples."""
        for number, rows in enumerate(self.train_index):
            if len(rows):
                return number
        raise InputError(f"no client has training samples of {self.dataset.name!r} here; check the data and leave_out")

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.dataset.classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names."""
        return self.dataset.class_names

    @property
    def target(self) -> Target | None:
        """What the targets are; None: classes."""
        return self.dataset.target

    def fixed_shares(self, split: str = "test") -> bool:
        """Whether the shares of classes in each client's samples of a split are fixed: chance is within classes.

        They are where rows were drawn with the classes in proportion, and where a partition gives them to the clients.
        """
        return self.drawn.fixed_shares if split == "test" else self.dataset.split == "proportional"

    @property
    def outputs(self) -> int:
        """The number of a model's outputs: one per class, token or label, or one number."""
        return self.dataset.outputs

    @property
    def input_shape(self) -> Shape:
        """The shape of one sample; of a dictionary, the shape of each of its tensors."""
        return self.dataset.input_shape

    @property
    def image(self) -> bool:
        """Whether the samples are images."""
        return self.dataset.image

    @cached_property
    def groups(self) -> dict[str, GroupColumn]:
        """The columns of groups that the data names, such as sex; of several also their combination, the last.

        The groups that follow from targets that are no classes, such as ranges of numbers, are the first.
        """
        return self.dataset.groups

    @property
    def group(self) -> str:
        """What `tau` tilts over: the groups that the data names, else the classes, or the ranges of the target."""
        return next(reversed(self.groups), CLASS)

    @property
    def label_group(self) -> str:
        """The name of the groups that follow from the targets: classes, ranges, or all."""
        return CLASS if self.target is None else self.target.group

    def row_names(self, client: int | str, split: str = "train") -> list[str]:
        """Where each of a client's samples comes from, such as `row 17` of a table."""
        rows = self._split(split)[0][self._number(client)].tolist()
        positions = self.dataset.rows_test if split == "test" else self.dataset.rows_train
        if positions is None or self.dataset.row_names is None:
            return [f"{'test' if split == 'test' else 'training'} sample {row}" for row in rows]
        return [self.dataset.row_names[position] for position in positions[rows].tolist()]

    def _number(self, client: int | str) -> int:
        """The number of a client, from its number or its name."""
        if type(client) is int and 0 <= client < self.clients:
            return client
        return client_number(client, self.client_names)

    def _numbers(self, client: Clients) -> list[int]:
        """The numbers of one or several clients."""
        return client if isinstance(client, list) else [self._number(client)]

    def model_input(self, x: Inputs) -> Inputs:
        """Raw samples as a model's input: images as float32, anything else unchanged."""
        return self._scale(_to_unit(x))

    def model_target(self, y: Tensor) -> Tensor:
        """Targets as a model learns them: numbers as (y − mean) / deviation, all else unchanged."""
        return y if self.target is None else self.target.model_target(y)

    def train(
        self, client: Clients, *, seed: int, round: int, device: Device = "cpu", rows: Tensor | None = None
    ) -> tuple[Inputs, Tensor]:
        """A client's training samples and labels in one round, with that round's outliers if the client has any.

        Those of several clients lie one after the other. Outliers that are drawn once depend on the seed of the
        federation, in place of the seed and the round. With `rows`, only these of the samples are returned.
        """
        numbers = self._numbers(client)
        once = self.outliers.redraw == "once"
        index = self._train_rows(numbers)
        if rows is not None and not self._have_outliers(numbers):  # outliers are drawn for all samples together
            index, rows = index[rows.to(index.device)], None
        x, y = self._with_outliers(index, numbers, self.seed if once else seed, None if once else round, device)
        if rows is not None:
            x, y = take(x, rows), y[rows]
        return self._scale(x), self.model_target(y)

    def _train_rows(self, clients: list[int]) -> Tensor:
        """The rows of the training samples of these clients."""
        index = [self.train_index[client] for client in clients]
        return index[0] if len(index) == 1 else torch.cat(index)

    def _have_outliers(self, clients: list[int]) -> bool:
        return self.outliers.kind != "none" and any(self._outlier_flags[client] for client in clients)

    @cached_property
    def _outlier_flags(self) -> list[bool]:
        flags: list[bool] = self.has_outliers.tolist()
        return flags

    def clean_train(self, client: int | str, *, device: Device = "cpu") -> tuple[Inputs, Tensor]:
        """A client's training samples without outliers, with their true labels."""
        return self._samples("train", client, device)

    def stored_train(self, client: int | str) -> tuple[Inputs, Tensor]:
        """A client's training samples with the wrong labels and outliers that stay, without those of a round."""
        redrawn = self.outliers.kind != "none" and self.outliers.redraw == "round"
        stored = replace(self, outliers=Outliers()) if redrawn else self
        return stored.train(client, seed=0, round=1)

    def sample(self, client: int | str | None = None) -> tuple[Inputs, Tensor]:
        """The first training sample of a client and its target, (1, …) each, without outliers; default: client 0."""
        x, y = self.clean_train(self.first_client if client is None else client)
        return take(x, slice(0, 1)), y[:1]

    def outlier_mask(self, client: int | str) -> Tensor:
        """Which of a client's training samples are outliers that stay, or have a wrong label, (samples,) bool.

        Their labels as trained on are those of `train`, the true ones those of `clean_train`.
        """
        if self.outliers.kind != "none" and self.outliers.redraw != "once":
            raise InputError("the outliers are drawn anew in every round; build the federation with redraw = 'once'")
        (x, y), (clean_x, clean_y) = self.stored_train(client), self.clean_train(client)
        changed = (y != clean_y).reshape(len(y), -1).any(1)
        if isinstance(x, Tensor) and isinstance(clean_x, Tensor):
            changed |= (x != clean_x).flatten(1).any(1)
        return changed

    def validation(self, client: int | str, *, device: Device = "cpu") -> tuple[Inputs, Tensor]:
        """A client's validation samples; they have outliers only if the federation was built so."""
        if not self.validation_outliers:
            return self._samples("validation", client, device)
        number = self._number(client)
        x, y = self._with_outliers(self.validation_index[number], [number], self.seed, 0, device)
        return self._scale(x), self.model_target(y)

    def test(self, client: int | str, *, device: Device = "cpu") -> tuple[Inputs, Tensor]:
        """A client's test samples, which have no outliers."""
        return self._samples("test", client, device)

    def evaluation(self, split: str = "test") -> tuple[Inputs, Tensor, Tensor]:
        """All samples of a split, ordered by client: x and y as in the data set, and the number of the client."""
        index, x, y = self._split(split)
        if split == "validation" and self.validation_outliers:  # round 0, in which nobody trains
            pairs = [self._with_outliers(rows, [n], self.seed, 0, y.device) for n, rows in enumerate(index)]
            return concatenate([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), owners(index)
        rows = torch.cat(list(index))
        return take(x, rows), y[rows], owners(index)

    def train_groups(self, client: Clients, *, device: Device = "cpu") -> dict[str, Tensor]:
        """The group of each of a client's training samples, by column of groups."""
        if not self.groups:
            return {}
        rows = self._train_rows(self._numbers(client))
        return {name: column.train[rows].to(device) for name, column in self.groups.items()}

    def train_weights(self, client: Clients, *, device: Device = "cpu") -> Tensor | None:
        """The weight of each of a client's training samples; None: they count the same."""
        weights = self.dataset.weight_train
        return None if weights is None else weights[self._train_rows(self._numbers(client))].to(device)

    def train_size(self, client: int | str) -> int | float:
        """How much a client's training samples count: the sum of their weights, or their number without weights."""
        number = self._number(client)
        if self.dataset.weight_train is None:
            return len(self.train_index[number])
        return float(self.dataset.weight_train[self.train_index[number]].double().sum())

    def evaluation_groups(self, split: str = "test") -> dict[str, Tensor]:
        """The group of each sample of a split, in the order of `evaluation`, by column of groups."""
        rows = torch.cat(list(self._split(split)[0]))
        return {name: (c.test if split == "test" else c.train)[rows] for name, c in self.groups.items()}

    def train_sizes(self) -> Tensor:
        """The number of training samples of each client, int64."""
        return client_sizes(self.train_index)

    def class_counts(self, split: str = "train") -> Tensor:
        """The number of samples per client and class, or group of the target, int64, shape (clients, classes)."""
        index, _, y = self._split(split)
        noisy = split == "validation" and self.validation_outliers
        y = self.evaluation(split)[1] if noisy else y[torch.cat(list(index))]
        cell = owners(index) * self.classes + (y if self.target is None else self.target.groups(y))
        return torch.bincount(cell, minlength=self.clients * self.classes).reshape(self.clients, self.classes)

    def class_sizes(self) -> list[float]:
        """How much the training samples of each class count at all clients together, by their labels and weights."""
        rows = torch.cat(list(self.train_index))
        y = (self.dataset.y_train if self.dataset.noisy_train is None else self.dataset.noisy_train)[rows]
        weights = None if self.dataset.weight_train is None else self.dataset.weight_train[rows].double()
        sizes: list[float] = torch.bincount(y, weights, minlength=self.classes).tolist()
        return sizes

    def _split(self, split: str) -> tuple[Sequence[Tensor], Inputs, Tensor]:
        data = self.dataset
        if split == "test":
            return self.test_index, data.x_test, data.y_test
        if split in ("train", "validation"):
            return (self.train_index if split == "train" else self.validation_index), data.x_train, data.y_train
        raise InputError(f"split = {split!r} is unknown; choose train, validation or test")

    def _samples(self, split: str, client: int | str, device: Device) -> tuple[Inputs, Tensor]:
        index, x, y = self._split(split)
        rows = index[self._number(client)]
        return self.model_input(to_device(take(x, rows), device)), self.model_target(y[rows].to(device))

    def _with_outliers(
        self, rows: Tensor, clients: list[int], seed: int, round: int | None, device: Device
    ) -> tuple[Inputs, Tensor]:
        """Samples in [0, 1] units and labels of a client's rows, with the outliers of a round if the client has any.

        Of several clients, the rows are all of their training samples, one client after the other.
        """
        x = _to_unit(to_device(take(self.dataset.x_train, rows), device))
        y = (self.dataset.y_train if self.dataset.noisy_train is None else self.dataset.noisy_train)[rows].to(device)
        if not self._have_outliers(clients):
            return x, y
        sizes = [len(self.train_index[client]) for client in clients] if len(clients) > 1 else [len(y)]
        every = torch.arange(self.classes, device=device)
        classes = [every if self.outliers.flip_to == "any" else self.client_classes[c].to(device) for c in clients]
        flip_map = None if self.flip_map is None else self.flip_map.to(device)
        changed_x, changed_y = apply(
            self.outliers, x, y, classes, seed=seed, round=round, clients=clients, sizes=sizes, flip_map=flip_map
        )
        if all(self._outlier_flags[client] for client in clients):
            return changed_x, changed_y
        affected = self.has_outliers[clients].repeat_interleave(torch.tensor(sizes)).to(device)
        if isinstance(x, Tensor) and isinstance(changed_x, Tensor) and changed_x is not x:
            changed_x = torch.where(affected.reshape(-1, *[1] * (x.dim() - 1)), changed_x, x)
        return changed_x, changed_y if changed_y is y else torch.where(affected, changed_y, y)

    def _scale(self, x: Inputs) -> Inputs:
        return x * 2 - 1 if self.image and isinstance(x, Tensor) else x


def _to_unit(x: Inputs) -> Inputs:
    """Pixels 0..255 scaled to [0, 1]; all else unchanged."""
    return x.float() / 255 if isinstance(x, Tensor) and x.dtype == torch.uint8 else x


def client_sizes(index: Sequence[Tensor]) -> Tensor:
    """The number of samples of each client, int64."""
    return torch.tensor([len(rows) for rows in index], dtype=torch.int64)


def owners(index: Sequence[Tensor]) -> Tensor:
    """The client of each sample, where samples are ordered by client."""
    return torch.repeat_interleave(torch.arange(len(index)), client_sizes(index))


def classes_by_client(y: Tensor, index: Sequence[Tensor], classes: int) -> list[Tensor]:
    """The classes of each client's samples, ascending."""
    present = torch.zeros(len(index), classes, dtype=torch.bool)
    present[owners(index), y[torch.cat(list(index))]] = True
    return list(present.nonzero()[:, 1].split(present.sum(1).tolist()))
