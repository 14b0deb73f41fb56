"""A data set divided among clients, by index: samples are copied only when a client's data is read."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from fedtilt import checks
from fedtilt.data.data_warnings import client_warnings, dataset_warnings, group_warnings, warn
from fedtilt.data.dataset import Dataset
from fedtilt.data.division import choose_clients_with_outliers, divide, resolve_clients, split_validation
from fedtilt.data.groups import CLASS, GroupColumn, check_two_values
from fedtilt.data.index import classes_by_client, client_sizes, owners
from fedtilt.data.inputs import Inputs, Shape, concatenate, take, to_device
from fedtilt.data.naming import client_number
from fedtilt.data.outliers import Outliers, apply, check_outliers, resolve_flip_map, resolve_outliers
from fedtilt.data.sources.from_clients import read_clients
from fedtilt.data.targets import RANGE, NumericTarget
from fedtilt.errors import InputError
from fedtilt.html_table import html_table

Device = torch.device | str
_SHOWN_CLIENTS = 20  # in a notebook


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation:
    """Clients and their samples; `Federation.build` creates one.

    `train`, `validation` and `test` return what a model takes and learns: images scaled from [0, 1] to [-1, 1], other
    data unchanged; labels, or numbers as (y − mean) / deviation.
    """

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

    @classmethod
    def build(
        cls,
        dataset: Dataset,
        *,
        clients: int | None = None,
        partition: str | None = None,
        classes_per_client: int = 2,
        alpha: float = 0.5,
        outliers: str | Outliers = "none",
        outlier_rate: float = 0.3,
        outlier_strength: float | None = None,
        outlier_clients: float = 1.0,
        outlier_redraw: str = "round",
        outlier_flip_to: str | None = None,
        outlier_pairs: Mapping[str, str] | None = None,
        validation: float = 0.0,
        validation_outliers: bool = False,
        max_train: int | None = None,
        seed: int = 0,
    ) -> Self:
        """Divide a data set among clients.

        Args:
            dataset: the data, from `ft.data.load`, `ft.data.table` or `ft.data.Dataset`
            clients: the number of clients; left out: the data's own with partition 'column', else 100
            partition: 'classes' (a few classes each), 'dirichlet' (unequal shares of every class), 'iid' (shuffled and
                split evenly) or 'column' (the data's own clients); left out: 'column' if the data has clients of its
                own, else 'classes'
            classes_per_client: the number of classes of each client, with partition 'classes'
            alpha: how equal the shares are, with partition 'dirichlet'; small is unequal
            outliers: the kind of outliers in the training data, 'none', 'corruptions', 'gaussian' or 'flips', or an
                `ft.data.Outliers`
            outlier_rate: the probability that a sample is an outlier
            outlier_strength: the share of pixels (corruptions) or the standard deviation (gaussian)
            outlier_clients: the share of clients that have outliers
            outlier_redraw: 'round' (drawn anew in every round) or 'once' (the same in every round)
            outlier_flip_to: where labels flip to: 'client' (another class of the client), 'any' (another class),
                'nearest' (the class with the nearest mean) or 'pairs'; left out: 'pairs' if given, else 'client'
            outlier_pairs: class → the class that it flips to, by name; classes without a pair do not flip
            validation: the share of each client's training samples used for validation, with the classes in proportion
            validation_outliers: whether validation data has outliers too, drawn once; otherwise it is clean
            max_train: the largest number of training samples per client; left out: all
            seed: the seed of the partition and of the choice of clients with outliers

        >>> from fedtilt.data import load
        >>> Federation.build(load("toy-2"))
        Federation('toy-2': 2 clients, 400 training samples, 2 classes, outliers none)
        """
        _check_dataset(dataset)
        check_two_values(dataset.groups, dataset.name)
        outliers = resolve_outliers(
            outliers, rate=outlier_rate, strength=outlier_strength, clients=outlier_clients, redraw=outlier_redraw,
            flip_to=outlier_flip_to, pairs=outlier_pairs,
        )  # fmt: skip
        partition, clients = resolve_clients(dataset, partition, clients)
        seed = checks.whole(seed, "seed")
        classes_per_client = checks.whole(classes_per_client, "classes_per_client")
        alpha, validation = checks.number(alpha, "alpha"), checks.number(validation, "validation")
        max_train = None if max_train is None else checks.whole(max_train, "max_train")
        check_outliers(outliers, dataset)
        if not 0 <= validation < 1:
            raise InputError(f"validation = {validation} is not a share; choose a number ≥ 0 and < 1")
        if max_train is not None and max_train < 1:
            raise InputError(f"max_train = {max_train} leaves no training data; choose 1 or more, or leave it out")
        indices, names = divide(dataset, partition, clients, classes_per_client, alpha, seed)
        labels = dataset.labels("train")
        train_index, validation_index = split_validation(labels, indices.train, max_train, validation, seed)
        federation = cls(
            dataset=dataset,
            outliers=outliers,
            client_names=names,
            train_index=train_index,
            validation_index=validation_index,
            test_index=indices.test,
            client_classes=classes_by_client(labels, train_index, dataset.classes),
            has_outliers=choose_clients_with_outliers(outliers, len(names), seed),
            seed=seed,
            validation_outliers=bool(validation_outliers),
            flip_map=resolve_flip_map(outliers, dataset),
        )
        warn(federation.warnings)
        return federation

    @classmethod
    def from_clients(
        cls,
        data: Mapping[str, Any] | Iterable[Any],
        names: Iterable[object] | None = None,
        *,
        name: str = "clients",
        class_names: Sequence[str] | None = None,
        task: str | None = None,
        test_share: float | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Self:
        """A federation of data that comes client by client.

        A client's data is a `Dataset`, arrays or tensors (x, y), a pandas DataFrame, a map-style PyTorch dataset, a
        Hugging Face dataset (such as a partition of flwr-datasets), or a pair (train, test) of these. x may be a
        dictionary of tensors. uint8 arrays of three or four dimensions are images, other integers tokens, and the rest
        is float32. Classes are matched by name, so their order may differ from client to client.

        Args:
            data: the data of each client, as a list or by the client's name
            names: the clients' names, if `data` is a list; left out: their numbers
            name: the name of the data set
            class_names: all classes in order; left out: those the data declares, else the labels that occur
            task: "classification" or "regression" (numbers as targets); left out: that of a `Dataset`, else
                classification
            test_share: the share of its samples that is test data at a client without any; left out: 0.25
            seed: the seed of the test data, the validation data and the choice of clients with outliers
            settings: the settings of `build` about outliers and validation, and `max_train`; also those of the reader
                of the clients' data, such as `target` of `ft.data.table` for DataFrames: see `ft.data.table`,
                `ft.data.from_huggingface` and `ft.data.from_torch`

        >>> north, south = (torch.zeros(8, 3), [0, 1] * 4), (torch.ones(4, 3), [1, 1, 0, 0])
        >>> Federation.from_clients([north, south], names=["north", "south"])
        Federation('clients': 2 clients, 9 training samples, 2 classes, outliers none)
        """
        given = {key: settings.pop(key) for key in _NOT_ABOUT_DIVISION if key in settings}
        dataset = read_clients(
            data, names, name=name, class_names=class_names, task=task, test_share=test_share, seed=seed, **settings
        )
        return cls.build(dataset, partition="column", seed=seed, **given)

    def to(self, device: torch.device) -> Self:
        """The same federation with its samples on another device, so that a round copies nothing to it."""

        def move(index: Sequence[Tensor]) -> list[Tensor]:
            return [rows.to(device) for rows in index]

        return replace(
            self,
            dataset=self.dataset.to(device),
            train_index=move(self.train_index),
            validation_index=move(self.validation_index),
            test_index=move(self.test_index),
            client_classes=move(self.client_classes),
        )

    def __repr__(self) -> str:
        targets = f"{self.classes} classes" if self.target is None else "numbers as targets"
        return (
            f"Federation({self.dataset.name!r}: {self.clients} clients, {int(self.train_sizes().sum())} training "
            f"samples, {targets}, outliers {self.outliers.kind})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the samples of the first clients."""
        splits = ["train", *(["validation"] if any(map(len, self.validation_index)) else []), "test"]
        sizes = {split: client_sizes(self._split(split)[0]).tolist() for split in splits}
        classes = (self.class_counts() > 0).sum(1).tolist()
        columns = ["client", *splits, "classes" if self.target is None else "ranges of the target"]
        rows = [
            [name, *(sizes[split][i] for split in splits), classes[i]]
            for i, name in enumerate(self.client_names[:_SHOWN_CLIENTS])
        ]
        more = self.clients - _SHOWN_CLIENTS
        return html_table(repr(self), columns, rows, f"and {more:,} more clients" if more > 0 else "")

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
    def target(self) -> NumericTarget | None:
        """The scale and the ranges of the targets if they are numbers; None: they are classes."""
        return self.dataset.target

    @property
    def outputs(self) -> int:
        """The number of a model's outputs: one per class, or one number."""
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

        With numbers as targets, the ranges of the target are the first.
        """
        return self.dataset.groups

    @property
    def group(self) -> str:
        """What `tau` tilts over: the groups that the data names, else the classes, or the ranges of the target."""
        return next(reversed(self.groups), CLASS)

    @property
    def label_group(self) -> str:
        """The name of the groups that follow from the targets: classes, or ranges."""
        return CLASS if self.target is None else RANGE

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a careful colleague would say about the data, one sentence each; `build` emits them as warnings."""
        data = self.dataset
        named = {column: self.groups[column] for column in data.group_names or ()}
        return (
            *data.warnings,
            *dataset_warnings(data),
            *client_warnings(self.client_names, self.train_index, data.weight_train),
            *group_warnings(named, self.client_names, self.train_index),
        )

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

    def model_input(self, x: Inputs) -> Inputs:
        """Raw samples as a model's input: images as float32, anything else unchanged."""
        return self._scale(_to_unit(x))

    def model_target(self, y: Tensor) -> Tensor:
        """Targets as a model learns them: labels unchanged, numbers as (y − mean) / deviation."""
        return y if self.target is None else self.target.standardise(y)

    def train(self, client: int | str, *, seed: int, round: int, device: Device = "cpu") -> tuple[Inputs, Tensor]:
        """A client's training samples and labels in one round, with that round's outliers if the client has any.

        Outliers that are drawn once depend on the seed of the federation, in place of the seed and the round.
        """
        number = self._number(client)
        once = self.outliers.redraw == "once"
        x, y = self._with_outliers(
            self.train_index[number], number, self.seed if once else seed, None if once else round, device
        )
        return self._scale(x), self.model_target(y)

    def clean_train(self, client: int | str, *, device: Device = "cpu") -> tuple[Inputs, Tensor]:
        """A client's training samples without outliers."""
        return self._samples("train", client, device)

    def outlier_mask(self, client: int | str) -> Tensor:
        """Which of a client's training samples are outliers that stay, (samples,) bool.

        Their labels as trained on are those of `train`, the true ones those of `clean_train`.
        """
        if self.outliers.kind != "none" and self.outliers.redraw != "once":
            raise InputError("the outliers are drawn anew in every round; build the federation with redraw = 'once'")
        (x, y), (clean_x, clean_y) = self.train(client, seed=0, round=1), self.clean_train(client)
        changed = y != clean_y
        if isinstance(x, Tensor) and isinstance(clean_x, Tensor):
            changed |= (x != clean_x).flatten(1).any(1)
        return changed

    def validation(self, client: int | str, *, device: Device = "cpu") -> tuple[Inputs, Tensor]:
        """A client's validation samples; they have outliers only if the federation was built so."""
        if not self.validation_outliers:
            return self._samples("validation", client, device)
        number = self._number(client)
        x, y = self._with_outliers(self.validation_index[number], number, self.seed, 0, device)
        return self._scale(x), self.model_target(y)

    def test(self, client: int | str, *, device: Device = "cpu") -> tuple[Inputs, Tensor]:
        """A client's test samples, which have no outliers."""
        return self._samples("test", client, device)

    def evaluation(self, split: str = "test") -> tuple[Inputs, Tensor, Tensor]:
        """All samples of a split, ordered by client: x and y as in the data set, and the number of the client."""
        index, x, y = self._split(split)
        if split == "validation" and self.validation_outliers:  # round 0, in which nobody trains
            pairs = [self._with_outliers(rows, n, self.seed, 0, y.device) for n, rows in enumerate(index)]
            return concatenate([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), owners(index)
        rows = torch.cat(list(index))
        return take(x, rows), y[rows], owners(index)

    def train_groups(self, client: int | str, *, device: Device = "cpu") -> dict[str, Tensor]:
        """The group of each of a client's training samples, by column of groups."""
        rows = self.train_index[self._number(client)]
        return {name: column.train[rows].to(device) for name, column in self.groups.items()}

    def train_weights(self, client: int | str, *, device: Device = "cpu") -> Tensor | None:
        """The weight of each of a client's training samples; None: they count the same."""
        weights = self.dataset.weight_train
        return None if weights is None else weights[self.train_index[self._number(client)]].to(device)

    def evaluation_groups(self, split: str = "test") -> dict[str, Tensor]:
        """The group of each sample of a split, in the order of `evaluation`, by column of groups."""
        rows = torch.cat(list(self._split(split)[0]))
        return {name: (c.test if split == "test" else c.train)[rows] for name, c in self.groups.items()}

    def train_sizes(self) -> Tensor:
        """The number of training samples of each client, int64."""
        return client_sizes(self.train_index)

    def class_counts(self, split: str = "train") -> Tensor:
        """The number of samples per client and class, or range of the target, int64, shape (clients, classes)."""
        index, _, y = self._split(split)
        noisy = split == "validation" and self.validation_outliers
        y = self.evaluation(split)[1] if noisy else y[torch.cat(list(index))]
        cell = owners(index) * self.classes + (y if self.target is None else self.target.ranges(y))
        return torch.bincount(cell, minlength=self.clients * self.classes).reshape(self.clients, self.classes)

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
        self, rows: Tensor, client: int, seed: int, round: int | None, device: Device
    ) -> tuple[Inputs, Tensor]:
        """Samples in [0, 1] units and labels of a client's rows, with the outliers of a round if the client has any."""
        x = _to_unit(to_device(take(self.dataset.x_train, rows), device))
        y = self.dataset.y_train[rows].to(device)
        if not self.has_outliers[client]:
            return x, y
        classes = torch.arange(self.classes) if self.outliers.flip_to == "any" else self.client_classes[client]
        flip_map = None if self.flip_map is None else self.flip_map.to(device)
        return apply(self.outliers, x, y, classes.to(device), seed=seed, round=round, client=client, flip_map=flip_map)

    def _scale(self, x: Inputs) -> Inputs:
        return x * 2 - 1 if self.image and isinstance(x, Tensor) else x


def _to_unit(x: Inputs) -> Inputs:
    """Pixels 0..255 scaled to [0, 1]; all else unchanged."""
    return x.float() / 255 if isinstance(x, Tensor) and x.dtype == torch.uint8 else x


def _check_dataset(dataset: object) -> None:
    if isinstance(dataset, str):
        raise InputError(
            f"dataset = {dataset!r} is a name; pass ft.data.load({dataset!r}), or ft.data.table for your own file"
        )
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"dataset is a {type(dataset).__name__}; pass a ft.data.Dataset, such as ft.data.load('digits') returns, "
            "or the data of each client to Federation.from_clients"
        )


_NOT_ABOUT_DIVISION = set(inspect.signature(Federation.build).parameters) - {
    "dataset", "clients", "partition", "classes_per_client", "alpha", "seed"
}  # fmt: skip
