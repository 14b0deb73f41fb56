"""How a data set is divided: the clients' samples and names, validation data, and the clients with outliers."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedtilt import checks, seeds
from fedtilt.data import partition as partitions
from fedtilt.data.dataset import Dataset
from fedtilt.data.outliers import KINDS, Outliers
from fedtilt.data.partition import Partition, TooManyClients
from fedtilt.data.sampling import holdout_size, stratified_mask
from fedtilt.errors import InputError

PARTITIONS = ("classes", "dirichlet", "iid", "column")
# of `Federation.build`; an `Outliers` counts by its kind
ONLY_WITH: checks.OnlyWith = {
    "classes_per_client": {"partition": ("classes",)},
    "alpha": {"partition": ("dirichlet",)},
    "validation_outliers": {"validation": (), "outliers": KINDS[1:]},
}


def resolve_clients(data: Dataset, partition: str | None, clients: int | None) -> tuple[str, int]:
    """How the data is divided and the number of clients, where the user leaves them out."""
    own = data.client_names
    count = checks.whole(100 if clients is None else clients, "clients")
    if partition not in (None, "column") or own is None:
        return partition or ("classes" if data.target is None else "iid"), count
    if clients is not None and count != len(own):
        raise InputError(
            f"clients = {clients} differs from the {len(own)} clients that {data.name!r} has of its own; leave it out, "
            "or set partition to classes, dirichlet or iid"
        )
    return "column", len(own)


def divide(
    data: Dataset, partition: str, clients: int, classes_per_client: int, alpha: float, seed: int
) -> tuple[Partition, tuple[str, ...]]:
    """Each client's samples, and the clients' names; the arguments are those of `Federation.build`."""
    indices = _partition(data, partition, clients, classes_per_client, alpha, seed)
    names = tuple(str(number) for number in range(len(indices.train)))
    if partition == "column" and data.client_names is not None:
        names = data.client_names
    for client, rows in zip(names, indices.train, strict=True):
        if not len(rows):
            raise InputError(
                f"client {client!r} has no training data in {data.name!r}; add some or leave the client out"
            )
    if not any(len(rows) for rows in indices.test):
        raise InputError(f"no client has test data in {data.name!r}; add test samples")
    return indices, names


def _partition(data: Dataset, partition: str, clients: int, per_client: int, alpha: float, seed: int) -> Partition:
    rng = seeds.generator(seeds.key(seed, "partition"))
    labels = data.labels("train"), data.labels("test")
    try:
        if partition == "classes":
            return partitions.by_classes(*labels, clients, per_client, rng)
        if partition == "dirichlet":
            return partitions.dirichlet(*labels, clients, alpha, rng)
        if partition == "iid":
            return partitions.iid(*labels, clients, rng)
    except TooManyClients as error:
        if data.client_names is None:
            raise
        count = len(data.client_names)
        raise InputError(f"{error}, or partition = 'column' for the data's own {count} clients") from None
    if partition != "column":
        raise InputError(f"partition = {partition!r} is unknown; choose one of {', '.join(PARTITIONS)}")
    if data.client_train is None or data.client_test is None or data.client_names is None:
        raise InputError(
            f"partition = 'column' needs a client column, and {data.name!r} has none; use classes, dirichlet or iid"
        )
    return partitions.by_column(data.client_train, data.client_test, len(data.client_names))


def split_validation(
    labels: Tensor, index: Sequence[Tensor], max_train: int | None, validation: float, seed: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's training rows, at most `max_train`, and validation rows."""
    if max_train is None and not validation:
        return list(index), [rows[:0] for rows in index]
    numbers = labels.numpy()
    train_index, validation_index = [], []
    for client, rows in enumerate(index):
        if not len(rows):  # another site's client
            train_index.append(rows)
            validation_index.append(rows)
            continue
        if max_train is not None and len(rows) > max_train:
            rows = rows[_draw(numbers[rows.numpy()], max_train, seeds.key(seed, "max_train", client=client))]
        count = holdout_size(len(rows), validation)
        mask = _draw(numbers[rows.numpy()], count, seeds.key(seed, "validation", client=client))
        train_index.append(rows[~mask])
        validation_index.append(rows[mask])
    return train_index, validation_index


def _draw(labels: np.ndarray, count: int, key: int) -> Tensor:
    """A stratified mask of `count` samples."""
    return torch.from_numpy(stratified_mask(labels, count, seeds.generator(key)))


def choose_clients_with_outliers(outliers: Outliers, clients: int, seed: int) -> Tensor:
    """A mask of the clients with outliers: their share, and at least one if the share is above 0."""
    has_outliers = torch.zeros(clients, dtype=torch.bool)
    if outliers.kind != "none" and outliers.clients > 0:
        count = max(1, round(outliers.clients * clients))
        has_outliers[seeds.choose(seeds.key(seed, "carriers"), clients, count)] = True
    return has_outliers
