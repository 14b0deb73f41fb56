"""A data set divided among clients: how one is made, shown and warned about."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from fedtilt import checks
from fedtilt.config.setting_fields import settings_of, takes_settings
from fedtilt.data.client_data import ClientData, classes_by_client, client_sizes
from fedtilt.data.data_warnings import client_warnings, dataset_warnings, group_warnings, untrained_rows, warn
from fedtilt.data.dataset import Dataset
from fedtilt.data.division import Division, divide, resolve_clients, resolve_division
from fedtilt.data.groups import check_two_values, in_words
from fedtilt.data.naming import client_number
from fedtilt.data.outliers import Outliers, check_outliers, resolve_flip_map, resolve_outliers
from fedtilt.data.partition import FIXED_SHARES, choose_clients_with_outliers, split_validation
from fedtilt.errors import InputError
from fedtilt.text_tables import html_table

_SHOWN_CLIENTS = 20  # in a notebook


@dataclass(frozen=True, kw_only=True, eq=False)
class Federation(ClientData):
    """Clients and their samples; `Federation.build` creates one.

    `train`, `validation` and `test` return what a model takes and learns: images scaled from [0, 1] to [-1, 1], other
    data unchanged; labels, or numbers as (y − mean) / deviation.
    """

    @classmethod
    @takes_settings(Outliers, without=("kind",), prefix="outlier_")
    @takes_settings(Division, without=("count",))
    def build(
        cls,
        dataset: Dataset,
        *,
        clients: int | Division | None = None,
        outliers: str | Outliers = "none",
        seed: int = 0,
        **keywords: Any,
    ) -> Self:
        """Divide a data set among clients.

        >>> from fedtilt.data import load
        >>> Federation.build(load("toy-2"))
        Federation('toy-2': 2 clients, 400 training samples, 2 classes, outliers none)

        Args:
            dataset: the data, from `ft.data.load`, `ft.data.table` or `ft.data.Dataset`
            clients: the number of clients, or an `ft.data.Division`; default: the data's own with partition "column",
                else 100
            outliers: the kind of outliers in the training data, 'none', 'corruptions', 'gaussian' or 'flips', or an
                `ft.data.Outliers`
            seed: the seed of the partition and of the choice of clients with outliers
            **keywords: the settings of the division and of the outliers:
        """
        _check_dataset(dataset)
        check_two_values(dataset.groups, dataset.name)
        settings = {key: keywords.pop(key) for key in settings_of(Division) if key != "count" and key in keywords}
        division = resolve_division(clients, settings)
        prefixed = {key: f"outlier_{key}" for key in settings_of(Outliers) if key != "kind"}
        of_outliers = {key: keywords.pop(name) for key, name in prefixed.items() if name in keywords}
        outliers = resolve_outliers(outliers, **of_outliers)
        for key in keywords:
            raise TypeError(f"Federation.build() got an unexpected keyword argument {key!r}")
        partition, count = resolve_clients(dataset, division)
        seed = checks.whole(seed, "seed")
        check_outliers(outliers, dataset)
        division.check_used(partition, outliers, noisy_labels=dataset.noisy_train is not None)
        _check_leave_out(division.leave_out, dataset, outliers)
        indices, names = divide(dataset, division, partition, count, seed)
        is_drawn = dataset.test_drawn or division.validation or division.max_train is not None
        if dataset.split != "random" and not is_drawn:
            raise InputError(
                f"split = {dataset.split!r} has no effect: {dataset.name!r} has test data of its own; set validation, "
                "or leave split out (data.split in a spec)"
            )
        train_index, validation_index = split_validation(
            dataset, indices.train, division.max_train, division.validation, seed
        )
        federation = cls(
            dataset=dataset,
            outliers=outliers,
            client_names=names,
            train_index=train_index,
            validation_index=validation_index,
            test_index=indices.test,
            client_classes=classes_by_client(dataset.labels("train"), train_index, dataset.classes),
            has_outliers=choose_clients_with_outliers(outliers, len(names), seed),
            seed=seed,
            validation_outliers=division.validation_outliers,
            flip_map=resolve_flip_map(outliers, dataset),
            left_out=tuple(sorted(client_number(name, names) for name in division.leave_out)),
            drawn=dataset.drawn_rows(own_clients=partition == "column", fixed_shares=partition in FIXED_SHARES),
        )
        warn(federation.warnings)
        return federation

    def to_datasets(self) -> dict[str, Any]:
        """The data of every client, by name, as a `datasets.DatasetDict` with train, test and maybe validation.

        Inputs are the column x (of images, image), or the columns of their names; labels are `label`, with the names
        of the classes; weights and groups have columns too. `Federation.from_clients` reads inputs and labels back.
        """
        from fedtilt.data.sources.huggingface import to_huggingface

        return to_huggingface(self)

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
        split: str | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> Self:
        """A federation of data that comes client by client.

        A client's data is a `Dataset`, arrays or tensors (x, y), a pandas DataFrame, a PyTorch dataset or DataLoader, a
        Hugging Face dataset (such as a partition of flwr-datasets), or a pair (train, test) of these. x may be a
        dictionary of tensors. uint8 arrays of three or four dimensions are images, other integers tokens, and the rest
        is float32. Classes are matched by name, so their order may differ from client to client.

        Args:
            data: the data of each client, as a list or by the client's name
            names: the clients' names, if `data` is a list; default: their numbers
            name: the name of the data set
            class_names: all classes in order; default: those the data declares, else the labels that occur; with
                "multilabel", the names of the labels
            task: "classification", "regression" (numbers as targets), "language" (a token for each position) or
                "multilabel" (0 or 1 for each label); default: that of a `Dataset`, else classification
            test_share: the share of its samples that is test data at a client without any; default: 0.25
            split: how these and validation data are drawn, "random", "proportional" or, of tables, "time"
            seed: the seed of the test data, the validation data and the choice of clients with outliers
            settings: the settings of `build` about outliers and validation, and `max_train`; also those of the reader
                of the clients' data, such as `target` of `ft.data.table` for DataFrames: see `ft.data.table`,
                `ft.data.from_huggingface` and `ft.data.from_torch`

        >>> import torch
        >>> north, south = (torch.zeros(8, 3), [0, 1] * 4), (torch.ones(4, 3), [1, 1, 0, 0])
        >>> Federation.from_clients([north, south], names=["north", "south"])
        Federation('clients': 2 clients, 9 training samples, 2 classes, outliers none)
        """
        from fedtilt.data.sources.from_clients import read_clients  # late: it imports Arrow

        given = {key: settings.pop(key) for key in _NOT_ABOUT_DIVISION if key in settings}
        dataset = read_clients(
            data, names, name=name, class_names=class_names, task=task, test_share=test_share, split=split, seed=seed,
            **settings,
        )  # fmt: skip
        return cls.build(dataset, partition="column", seed=seed, **given)

    def __repr__(self) -> str:
        targets = f"{self.classes} classes" if self.target is None else self.target.words
        return (
            f"Federation({self.dataset.name!r}: {self.clients} clients, {int(self.train_sizes().sum())} training "
            f"samples, {targets}, outliers {self.outliers.kind})"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows: the samples of the first clients."""
        splits = ["train", *(["validation"] if any(map(len, self.validation_index)) else []), "test"]
        sizes = {split: client_sizes(self._split(split)[0]).tolist() for split in splits}
        classes = (self.class_counts() > 0).sum(1).tolist()
        with_groups = self.classes > 1  # of tokens and sets of labels, all samples are one group
        columns = ["client", *splits, *([in_words(self.label_group)] * with_groups)]
        rows = [
            [name, *(sizes[split][i] for split in splits), *([classes[i]] * with_groups)]
            for i, name in enumerate(self.client_names[:_SHOWN_CLIENTS])
        ]
        more = self.clients - _SHOWN_CLIENTS
        return html_table(repr(self), columns, rows, f"and {more:,} more clients" if more > 0 else "")

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a careful colleague would say about the data, one sentence each; `build` emits them as warnings."""
        data = self.dataset
        named = {column: self.groups[column] for column in data.group_names or ()}
        return (
            *data.warnings,
            *dataset_warnings(data),
            *client_warnings(self.client_names, self.train_index, data.weight_train),
            *(() if data.target is not None else untrained_rows(self.class_counts("train"), self.class_counts("test"))),
            *group_warnings(named, self.client_names, self.train_index),
        )

    @property
    def about_data(self) -> tuple[str, ...]:
        """What a report says about the data: the warnings, how rows were drawn, and how the source was read."""
        return (*self.warnings, self.drawn.in_words(), *self.dataset.notes)


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


def _check_leave_out(names: Sequence[str], dataset: Dataset, outliers: Outliers) -> None:
    """Raise InputError where a client that is left out has changed what the others have."""
    if names and outliers.flip_to == "nearest":
        raise InputError("outlier_flip_to = 'nearest' depends on the samples of all clients; with leave_out, use pairs")
    if dataset.schema is not None and dataset.client_names is not None and dataset.client_train is not None:
        for name in names:
            if name in dataset.client_names and (dataset.client_train == dataset.client_names.index(name)).any():
                raise InputError(
                    f"the means and categories of {dataset.name!r} are also those of rows of {name!r}; give leave_out "
                    "to ft.data.table too"
                )


_NOT_ABOUT_DIVISION = set(inspect.signature(Federation.build).parameters) - {
    "dataset", "clients", "partition", "classes_per_client", "alpha", "seed"
}  # fmt: skip
