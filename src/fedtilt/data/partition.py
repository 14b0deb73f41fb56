"""Which client has which samples: pure functions of labels and a generator.

Every partition divides training and test data alike, so a client is tested on the distribution it trains on. With
"classes" and "dirichlet", a client's test samples of a class are a fixed share of the published ones: the shares of its
classes are those of its distribution by construction, and chance in its accuracy is chance within classes (see
`evaluation.true_spread`). With "iid" they are drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.data.dataset import Dataset
from fedtilt.data.outliers import Outliers
from fedtilt.data.sampling import Split, holdout_size
from fedtilt.errors import InputError

PARTITIONS = ("classes", "dirichlet", "iid", "column")
FIXED_SHARES = ("classes", "dirichlet")  # a client's test samples of a class are its share of the published ones
_ATTEMPTS = 100  # to draw shares that leave no client empty


class TooManyClients(InputError):
    """There are not enough samples for this number of clients."""


class Partition(NamedTuple):
    """Each client's sample indices, ascending."""

    train: list[Tensor]
    test: list[Tensor]


def iid(y_train: Tensor, y_test: Tensor, clients: int, rng: np.random.Generator) -> Partition:
    """Shuffle the samples and split them evenly.

    >>> part = iid(torch.zeros(7), torch.zeros(4), 2, np.random.default_rng(0))
    >>> [len(rows) for rows in part.train], [len(rows) for rows in part.test]
    ([4, 3], [2, 2])
    """
    _check_clients(clients, len(y_train))
    train, test = (np.array_split(rng.permutation(len(y)), clients) for y in (y_train, y_test))
    return Partition(_sorted_tensors(train), _sorted_tensors(test))


def by_column(client_train: Tensor, client_test: Tensor, clients: int) -> Partition:
    """One client for each number in a column; numbers start at 0.

    >>> by_column(torch.tensor([1, 0, 1]), torch.tensor([0]), 2).train
    [tensor([1]), tensor([0, 2])]
    """
    return Partition(_indices_by_owner(client_train, clients), _indices_by_owner(client_test, clients))


def by_classes(
    y_train: Tensor, y_test: Tensor, clients: int, classes_per_client: int, rng: np.random.Generator
) -> Partition:
    """Give each client `classes_per_client` classes, and split every class evenly over the clients that have it.

    Every class goes to the same number of clients, to within one. If clients · classes_per_client is less than the
    number of classes, some classes are unused.
    """
    _check_clients(clients, len(y_train))
    labels = y_train.unique()
    if not 1 <= classes_per_client <= len(labels):
        raise InputError(
            f"classes_per_client = {classes_per_client} is not possible; choose 1 to {len(labels)}, "
            "the classes of the training data"
        )
    client_classes = class_sets(clients, len(labels), classes_per_client, rng)  # (clients, k) positions in labels
    pieces: list[list[list[np.ndarray]]] = [[[] for _ in range(clients)] for _ in range(2)]  # of train and test
    for position, label in enumerate(labels.tolist()):
        owners = np.flatnonzero((client_classes == position).any(axis=1))
        owners = rng.permutation(owners)  # the first may get one sample more
        for split, y in zip(pieces, (y_train, y_test), strict=True):
            rows = rng.permutation(np.flatnonzero(y.numpy() == label))
            if split is pieces[0] and len(rows) < len(owners):
                raise TooManyClients(
                    f"clients = {clients} with classes_per_client = {classes_per_client} puts class {label} on "
                    f"{len(owners)} clients, but it has {len(rows)} training samples; use fewer clients or classes"
                )
            if len(owners):
                for owner, piece in zip(owners, np.array_split(rows, len(owners)), strict=True):
                    split[owner].append(piece)
    train, test = ([np.concatenate(client_pieces) for client_pieces in split] for split in pieces)
    return Partition(_sorted_tensors(train), _sorted_tensors(test))


def class_sets(clients: int, classes: int, per_client: int, rng: np.random.Generator) -> np.ndarray:
    """Random sets of `per_client` different classes, with every class in the same number of sets to within one.

    Clients choose one after the other, a class with a probability proportional to the number of times it is still to
    be chosen. A class to be chosen as often as there are clients left is always chosen, so no client runs out.

    >>> sets = class_sets(100, 10, 2, np.random.default_rng(0))
    >>> np.bincount(sets.ravel()).tolist()
    [20, 20, 20, 20, 20, 20, 20, 20, 20, 20]
    """
    remaining = np.full(classes, clients * per_client // classes)
    remaining[rng.permutation(classes)[: clients * per_client % classes]] += 1
    exponential = rng.exponential(size=(clients, classes))
    sets = np.empty((clients, per_client), np.int64)
    for client in range(clients):
        # the smallest exponential variables, divided by weights, are a weighted draw without replacement
        order = exponential[client] / np.where(remaining > 0, remaining, 1e-300)
        order[remaining == clients - client] = -1.0
        sets[client] = np.sort(np.argpartition(order, per_client - 1)[:per_client])
        remaining[sets[client]] -= 1
    # the last clients have less choice; shuffling makes that independent of a client's number
    return rng.permutation(sets, axis=0)


def dirichlet(y_train: Tensor, y_test: Tensor, clients: int, alpha: float, rng: np.random.Generator) -> Partition:
    """Split every class over the clients in proportions drawn from Dirichlet(alpha), the same for train and test.

    Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, arXiv:1905.12022.
    """
    _check_clients(clients, len(y_train))
    if not (alpha > 0 and math.isfinite(alpha)):
        raise InputError(f"alpha = {alpha} must be a finite number above 0; 0.5 is usual, smaller is more unequal")
    labels = y_train.unique().numpy()
    counts = np.array([(y_train.numpy() == label).sum() for label in labels])
    for _ in range(_ATTEMPTS):
        ends = rng.dirichlet(np.full(clients, alpha), len(labels)).cumsum(axis=1)
        ends[:, -1] = 1.0  # despite rounding, every sample has an owner
        cuts = np.floor(ends * counts[:, None] + 1e-9).astype(np.int64)
        if (np.diff(cuts, axis=1, prepend=0).sum(axis=0) > 0).all():
            return Partition(*(_split_classes(y, labels, ends, rng) for y in (y_train, y_test)))
    raise TooManyClients(
        f"alpha = {alpha} left some of clients = {clients} without training data in each of {_ATTEMPTS} draws; "
        "use a larger alpha or fewer clients"
    )


def _split_classes(y: Tensor, labels: np.ndarray, ends: np.ndarray, rng: np.random.Generator) -> list[Tensor]:
    """Each client's sample indices; `ends` are the cumulative shares of the clients, by class."""
    owner = np.empty(len(y), np.int64)
    for label, end in zip(labels, ends, strict=True):
        rows = rng.permutation(np.flatnonzero(y.numpy() == label))
        cuts = np.floor(end * len(rows) + 1e-9).astype(np.int64)
        owner[rows] = np.repeat(np.arange(len(end)), np.diff(cuts, prepend=0))
    known = np.isin(y.numpy(), labels)  # a class without training data has no owner
    return _indices_by_owner(torch.from_numpy(np.where(known, owner, len(ends[0]))), len(ends[0]))


def _indices_by_owner(owner: Tensor, clients: int) -> list[Tensor]:
    """Each client's sample indices; samples of an owner beyond the last client are in none."""
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner, minlength=clients)[:clients]
    return list(order[: int(counts.sum())].split(counts.tolist()))


def _sorted_tensors(rows: list[np.ndarray]) -> list[Tensor]:
    return [torch.from_numpy(np.sort(part)) for part in rows]


def _check_clients(clients: int, samples: int) -> None:
    if not 1 <= clients <= samples:
        error = TooManyClients if clients > samples else InputError
        raise error(f"clients = {clients} is not possible; choose 1 to {samples}, the number of training samples")


def split_validation(
    data: Dataset, index: Sequence[Tensor], max_train: int | None, validation: float, seed: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's training rows, at most `max_train`, and validation rows, drawn as the data set says.

    The rows that `max_train` keeps are drawn too, but not by groups or time.
    """
    if max_train is None and not validation:
        return list(index), [rows[:0] for rows in index]
    split, kept = _split_of(data), Split(how="proportional" if data.split == "proportional" else "random")
    kept = replace(kept, strata=split.strata)
    train_index, validation_index = [], []
    for client, rows in enumerate(index):
        if not len(rows):  # another site's client
            train_index.append(rows)
            validation_index.append(rows)
            continue
        if max_train is not None and len(rows) > max_train:
            rows = rows[_draw(kept, rows, max_train, seeds.key(seed, "max_train", client=client))]
        mask = _draw(split, rows, holdout_size(len(rows), validation), seeds.key(seed, "validation", client=client))
        train_index.append(rows[~mask])
        validation_index.append(rows[mask])
    return train_index, validation_index


def _split_of(data: Dataset) -> Split:
    """How the training rows of a data set are drawn from."""
    group, time = (None if v is None else v.numpy() for v in (data.split_group_train, data.split_time_train))
    return Split(how=data.split, strata=data.labels("train").numpy(), group=group, time=time)


def _draw(split: Split, rows: Tensor, count: int, key: int) -> Tensor:
    """A mask of `count` of these rows."""
    return torch.from_numpy(split.of(rows.numpy()).draw(len(rows), count, seeds.generator(key)))


def choose_clients_with_outliers(outliers: Outliers, clients: int, seed: int) -> Tensor:
    """A mask of the clients with outliers: their share, and at least one if the share is above 0."""
    has_outliers = torch.zeros(clients, dtype=torch.bool)
    if outliers.kind != "none" and outliers.clients > 0:
        count = max(1, round(outliers.clients * clients))
        has_outliers[seeds.choose(seeds.key(seed, "carriers"), clients, count)] = True
    return has_outliers
