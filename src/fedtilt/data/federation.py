"""A data set divided among clients, by index: nothing is copied until a client's samples are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedtilt import checks, seeds
from fedtilt.data import partition as parts
from fedtilt.data.dataset import Dataset
from fedtilt.data.outliers import Outliers, apply, outliers_of
from fedtilt.data.partition import Partition, TooManyClients
from fedtilt.data.strata import held_out, stratified
from fedtilt.errors import InputError

PARTITIONS = ("classes", "dirichlet", "iid", "column")
Device = torch.device | str


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """Clients and their samples; `build` makes one.

    Samples come out ready for the model: images scaled from [0, 1] to [-1, 1], everything else as it is.
    """

    dataset: Dataset
    outliers: Outliers
    client_names: tuple[str, ...]
    train_index: Sequence[Tensor]
    validation_index: Sequence[Tensor]
    test_index: Sequence[Tensor]
    held_classes: Sequence[Tensor]  # the classes each client trains on, ascending
    has_outliers: Tensor  # (clients,) bool: who carries outliers

    @classmethod
    def build(
        cls,
        dataset: Dataset,
        *,
        clients: int = 100,
        partition: str = "classes",
        classes_per_client: int = 2,
        alpha: float = 0.5,
        outliers: str | Outliers = "none",
        outlier_rate: float = 0.3,
        outlier_strength: float | None = None,
        outlier_clients: float = 1.0,
        validation: float = 0.0,
        max_train: int | None = None,
        seed: int = 0,
    ) -> Self:
        """Divide a data set among clients.

        `partition` is 'classes' (`classes_per_client` each), 'dirichlet' (`alpha`), 'iid', or 'column' (the data's own
        clients; `clients` is then ignored). `max_train` caps a client's training samples; `validation` is the share of
        them set aside, with the classes in proportion.

        >>> from fedtilt.data import load
        >>> Federation.build(load("toy-2"), partition="column")
        Federation('toy-2': 2 clients, 400 training samples, 2 classes, outliers none)
        """
        _check_dataset(dataset)
        outliers = outliers_of(outliers, outlier_rate, outlier_strength, outlier_clients)
        clients, seed = checks.whole(clients, "clients"), checks.whole(seed, "seed")
        classes_per_client = checks.whole(classes_per_client, "classes_per_client")
        alpha, validation = checks.number(alpha, "alpha"), checks.number(validation, "validation")
        max_train = None if max_train is None else checks.whole(max_train, "max_train")
        if outliers.kind == "corruptions" and not dataset.image:
            raise InputError(
                f"outliers = 'corruptions' needs images, and {dataset.name!r} has none; use gaussian or flips"
            )
        if not 0 <= validation < 1:
            raise InputError(
                f"validation = {validation} is not a share; choose a number from 0 up to, not including, 1"
            )
        if max_train is not None and max_train < 1:
            raise InputError(f"max_train = {max_train} leaves no training data; choose 1 or more, or leave it out")
        divided = _divided(dataset, partition, clients, classes_per_client, alpha, seed)
        names = _names(dataset, partition, len(divided.train))
        _check_filled(divided, names, dataset.name)
        train, held = _set_aside(dataset.y_train, divided.train, max_train, validation, seed)
        return cls(
            dataset=dataset,
            outliers=outliers,
            client_names=names,
            train_index=train,
            validation_index=held,
            test_index=divided.test,
            held_classes=_held(dataset.y_train, train, dataset.classes),
            has_outliers=_carriers(outliers, len(names), seed),
        )

    def to(self, device: torch.device) -> Self:
        """The same federation with its samples on another device, so that a round copies nothing to it."""

        def moved(rows: Sequence[Tensor]) -> list[Tensor]:
            return [part.to(device) for part in rows]

        return replace(
            self,
            dataset=self.dataset.to(device),
            train_index=moved(self.train_index),
            validation_index=moved(self.validation_index),
            test_index=moved(self.test_index),
            held_classes=moved(self.held_classes),
        )

    def __repr__(self) -> str:
        return (
            f"Federation({self.dataset.name!r}: {self.clients} clients, {int(self.train_sizes().sum())} training "
            f"samples, {self.classes} classes, outliers {self.outliers.kind})"
        )

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.train_index)

    @property
    def classes(self) -> int:
        """The number of classes."""
        return self.dataset.classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes' names."""
        return self.dataset.class_names

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.dataset.input_shape

    @property
    def image(self) -> bool:
        """Whether the samples are images."""
        return self.dataset.image

    def model_ready(self, x: Tensor) -> Tensor:
        """Raw samples as float32 for the model."""
        return self._scaled(_unit(x))

    def train(self, client: int, *, seed: int, round: int, device: Device = "cpu") -> tuple[Tensor, Tensor]:
        """A client's training samples and labels in one round, with that round's outliers if it carries any."""
        rows = self.train_index[client]
        x, y = _unit(self.dataset.x_train[rows].to(device)), self.dataset.y_train[rows].to(device)
        if self.has_outliers[client]:
            held = self.held_classes[client].to(device)
            x, y = apply(self.outliers, x, y, held, seed=seed, round=round, client=client)
        return self._scaled(x), y

    def clean_train(self, client: int, *, device: Device = "cpu") -> tuple[Tensor, Tensor]:
        """A client's training samples without outliers."""
        return self._ready("train", client, device)

    def validation(self, client: int, *, device: Device = "cpu") -> tuple[Tensor, Tensor]:
        """A client's validation samples, which never carry outliers."""
        return self._ready("validation", client, device)

    def test(self, client: int, *, device: Device = "cpu") -> tuple[Tensor, Tensor]:
        """A client's test samples, which never carry outliers."""
        return self._ready("test", client, device)

    def evaluation(self, split: str = "test") -> tuple[Tensor, Tensor, Tensor]:
        """All clients' samples of a split, one client after the other: raw x (see `model_ready`), y and client."""
        rows, x, y = self._split(split)
        every = torch.cat(list(rows))
        owner = torch.repeat_interleave(torch.arange(self.clients), _sizes(rows))
        return x[every], y[every], owner

    def train_sizes(self) -> Tensor:
        """The number of training samples of each client, int64."""
        return _sizes(self.train_index)

    def class_counts(self, split: str = "train") -> Tensor:
        """The number of samples per client and class, int64, shape (clients, classes)."""
        rows, _, y = self._split(split)
        owner = torch.repeat_interleave(torch.arange(self.clients), _sizes(rows))
        cells = torch.bincount(owner * self.classes + y[torch.cat(list(rows))], minlength=self.clients * self.classes)
        return cells.reshape(self.clients, self.classes)

    def _split(self, split: str) -> tuple[Sequence[Tensor], Tensor, Tensor]:
        data = self.dataset
        if split == "test":
            return self.test_index, data.x_test, data.y_test
        if split in ("train", "validation"):
            return (self.train_index if split == "train" else self.validation_index), data.x_train, data.y_train
        raise InputError(f"split = {split!r} is not known; choose train, validation or test")

    def _ready(self, split: str, client: int, device: Device) -> tuple[Tensor, Tensor]:
        rows, x, y = self._split(split)
        return self.model_ready(x[rows[client]].to(device)), y[rows[client]].to(device)

    def _scaled(self, x: Tensor) -> Tensor:
        return x * 2 - 1 if self.image else x


def _unit(x: Tensor) -> Tensor:
    """Published pixels 0..255 in [0, 1] units; float samples as they are."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def _sizes(rows: Sequence[Tensor]) -> Tensor:
    return torch.tensor([len(part) for part in rows], dtype=torch.int64)


def _held(y: Tensor, rows: Sequence[Tensor], classes: int) -> list[Tensor]:
    """The classes among each client's samples, ascending."""
    owner = torch.repeat_interleave(torch.arange(len(rows)), _sizes(rows))
    present = torch.zeros(len(rows), classes, dtype=torch.bool)
    present[owner, y[torch.cat(list(rows))]] = True
    return list(present.nonzero()[:, 1].split(present.sum(1).tolist()))


def _check_dataset(dataset: object) -> None:
    if isinstance(dataset, str):
        raise InputError(
            f"dataset = {dataset!r} is a name; pass ft.data.load({dataset!r}), or ft.data.table for a file of your own"
        )
    if not isinstance(dataset, Dataset):
        raise InputError(f"dataset is a {type(dataset).__name__}; pass a ft.data.Dataset, or ft.data.load('digits')")


def _divided(data: Dataset, partition: str, clients: int, per_client: int, alpha: float, seed: int) -> Partition:
    rng = seeds.generator(seeds.key(seed, "partition"))
    try:
        if partition == "classes":
            return parts.by_classes(data.y_train, data.y_test, clients, per_client, rng)
        if partition == "dirichlet":
            return parts.dirichlet(data.y_train, data.y_test, clients, alpha, rng)
        if partition == "iid":
            return parts.iid(data.y_train, data.y_test, clients, rng)
    except TooManyClients as error:
        if data.client_names is None:
            raise
        own = len(data.client_names)
        raise InputError(f"{error}, or partition = 'column' for the data's own {own} clients") from None
    if partition != "column":
        raise InputError(f"partition = {partition!r} is not known; choose one of {', '.join(PARTITIONS)}")
    if data.client_train is None or data.client_test is None or data.client_names is None:
        raise InputError(
            f"partition = 'column' needs a client column, and {data.name!r} has none; use classes, dirichlet or iid"
        )
    return parts.by_column(data.client_train, data.client_test, len(data.client_names))


def _names(data: Dataset, partition: str, clients: int) -> tuple[str, ...]:
    if partition == "column" and data.client_names is not None:
        return data.client_names
    return tuple(str(number) for number in range(clients))


def _check_filled(divided: Partition, names: tuple[str, ...], name: str) -> None:
    for client, rows in zip(names, divided.train, strict=True):
        if not len(rows):
            raise InputError(f"client {client!r} has no training data in {name!r}; give it some or leave it out")
    if not any(len(rows) for rows in divided.test):
        raise InputError(f"no client has test data in {name!r}, the first being {names[0]!r}; add test samples")


def _set_aside(
    y: Tensor, train: Sequence[Tensor], max_train: int | None, validation: float, seed: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's training rows, capped, and the validation rows taken out of them."""
    if max_train is None and not validation:
        return list(train), [rows[:0] for rows in train]
    labels = y.numpy()
    kept, held = [], []
    for client, rows in enumerate(train):
        if max_train is not None and len(rows) > max_train:
            rows = rows[_drawn(labels[rows.numpy()], max_train, seeds.key(seed, "max_train", client=client))]
        count = held_out(len(rows), validation)
        mask = _drawn(labels[rows.numpy()], count, seeds.key(seed, "validation", client=client))
        kept.append(rows[~mask])
        held.append(rows[mask])
    return kept, held


def _drawn(labels: np.ndarray, count: int, key: int) -> Tensor:
    return torch.from_numpy(stratified(labels, count, seeds.generator(key)))


def _carriers(outliers: Outliers, clients: int, seed: int) -> Tensor:
    """A mask of the clients that carry outliers: the asked share, and at least one if it is above 0."""
    has_outliers = torch.zeros(clients, dtype=torch.bool)
    if outliers.kind != "none" and outliers.clients > 0:
        count = max(1, round(outliers.clients * clients))
        has_outliers[seeds.choose(seeds.key(seed, "carriers"), clients, count)] = True
    return has_outliers
