"""Who holds which samples: pure functions of labels and a generator.

Every partition gives train and test data from the same draw, so a client is tested on what it is trained on.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtilt.errors import InputError

_DRAWS = 100


class TooManyClients(InputError):
    """More clients than the samples can fill."""


class Partition(NamedTuple):
    """Each client's sample numbers, ascending."""

    train: list[Tensor]
    test: list[Tensor]


def iid(y_train: Tensor, y_test: Tensor, clients: int, rng: np.random.Generator) -> Partition:
    """Shuffle the samples and deal them out evenly.

    >>> part = iid(torch.zeros(7), torch.zeros(4), 2, np.random.default_rng(0))
    >>> [len(rows) for rows in part.train], [len(rows) for rows in part.test]
    ([4, 3], [2, 2])
    """
    _check_clients(clients, len(y_train))
    train, test = (np.array_split(rng.permutation(len(y)), clients) for y in (y_train, y_test))
    return Partition(_tensors(train), _tensors(test))


def by_column(client_train: Tensor, client_test: Tensor, clients: int | None = None) -> Partition:
    """Take the clients as the data names them: numbers from 0.

    >>> by_column(torch.tensor([1, 0, 1]), torch.tensor([0])).train
    [tensor([1]), tensor([0, 2])]
    """
    if clients is None:
        clients = 1 + max(int(column.max()) if len(column) else -1 for column in (client_train, client_test))
    return Partition(_grouped(client_train, clients), _grouped(client_test, clients))


def by_classes(
    y_train: Tensor, y_test: Tensor, clients: int, classes_per_client: int, rng: np.random.Generator
) -> Partition:
    """Give each client `classes_per_client` classes, and split every class evenly over the clients that hold it.

    Every class gets the same number of holders to within one. With fewer places than classes some classes go unused.
    """
    _check_clients(clients, len(y_train))
    labels = y_train.unique()
    if not 1 <= classes_per_client <= len(labels):
        raise InputError(
            f"classes_per_client = {classes_per_client} is not possible; choose 1 to {len(labels)}, "
            "the classes of the training data"
        )
    held = class_sets(clients, len(labels), classes_per_client, rng)  # (clients, k) positions in labels
    pieces: tuple[list[list[np.ndarray]], list[list[np.ndarray]]] = (
        [[] for _ in range(clients)],
        [[] for _ in range(clients)],
    )
    for position, label in enumerate(labels.tolist()):
        holders = rng.permutation(np.flatnonzero((held == position).any(axis=1)))  # who gets the odd sample
        for split, y in zip(pieces, (y_train, y_test), strict=True):
            rows = rng.permutation(np.flatnonzero(y.numpy() == label))
            if split is pieces[0] and len(rows) < len(holders):
                raise TooManyClients(
                    f"clients = {clients} with classes_per_client = {classes_per_client} puts class {label} on "
                    f"{len(holders)} clients, but it has {len(rows)} training samples; use fewer clients or classes"
                )
            if len(holders):
                for holder, share in zip(holders, np.array_split(rows, len(holders)), strict=True):
                    split[holder].append(share)
    train, test = ([np.concatenate(shares) for shares in split] for split in pieces)
    return Partition(_tensors(train), _tensors(test))


def class_sets(clients: int, classes: int, per_client: int, rng: np.random.Generator) -> np.ndarray:
    """Random sets of `per_client` different classes, every class in nearly the same number of sets.

    A shuffled deck dealt client by client, with places left as the weights; a class that has as many places left as
    there are clients left must be taken, so the deal always comes out.

    >>> sets = class_sets(100, 10, 2, np.random.default_rng(0))
    >>> np.bincount(sets.ravel()).tolist()
    [20, 20, 20, 20, 20, 20, 20, 20, 20, 20]
    """
    left = np.full(classes, clients * per_client // classes)
    left[rng.permutation(classes)[: clients * per_client % classes]] += 1
    waiting = rng.exponential(size=(clients, classes))
    sets = np.empty((clients, per_client), np.int64)
    for turn in range(clients):
        # exponential times over their rates draw without replacement in proportion to the rates
        time = waiting[turn] / np.where(left > 0, left, 1e-300)
        time[left == clients - turn] = -1.0
        sets[turn] = np.sort(np.argpartition(time, per_client - 1)[:per_client])
        left[sets[turn]] -= 1
    # the last clients dealt take the leftovers; shuffling keeps that from showing in the numbering
    return rng.permutation(sets, axis=0)


def dirichlet(y_train: Tensor, y_test: Tensor, clients: int, alpha: float, rng: np.random.Generator) -> Partition:
    """Split every class over the clients in proportions drawn from Dirichlet(alpha), the same for train and test."""
    _check_clients(clients, len(y_train))
    if not (alpha > 0 and math.isfinite(alpha)):
        raise InputError(f"alpha = {alpha} must be a finite number above 0; 0.5 is usual, smaller is more unequal")
    labels = y_train.unique().numpy()
    counts = np.array([(y_train.numpy() == label).sum() for label in labels])
    for _ in range(_DRAWS):
        ends = rng.dirichlet(np.full(clients, alpha), len(labels)).cumsum(axis=1)
        ends[:, -1] = 1.0  # against rounding: every sample has an owner
        cuts = np.floor(ends * counts[:, None] + 1e-9).astype(np.int64)
        if (np.diff(cuts, axis=1, prepend=0).sum(axis=0) > 0).all():
            return Partition(*(_cut(y, labels, ends, rng) for y in (y_train, y_test)))
    raise TooManyClients(
        f"alpha = {alpha} left some of clients = {clients} without training data in each of {_DRAWS} draws; "
        "use a larger alpha or fewer clients"
    )


def _cut(y: Tensor, labels: np.ndarray, ends: np.ndarray, rng: np.random.Generator) -> list[Tensor]:
    """Cut every class's shuffled samples at the given shares and collect each client's pieces."""
    owner = np.empty(len(y), np.int64)
    for label, end in zip(labels, ends, strict=True):
        rows = rng.permutation(np.flatnonzero(y.numpy() == label))
        cuts = np.floor(end * len(rows) + 1e-9).astype(np.int64)
        owner[rows] = np.repeat(np.arange(len(end)), np.diff(cuts, prepend=0))
    known = np.isin(y.numpy(), labels)  # a class without training data belongs to nobody
    return _grouped(torch.from_numpy(np.where(known, owner, len(ends[0]))), len(ends[0]))


def _grouped(owner: Tensor, clients: int) -> list[Tensor]:
    """Each client's sample numbers; samples of an owner beyond the last client are left out."""
    order = torch.argsort(owner, stable=True)
    counts = torch.bincount(owner, minlength=clients)[:clients]
    return list(order[: int(counts.sum())].split(counts.tolist()))


def _tensors(rows: list[np.ndarray]) -> list[Tensor]:
    return [torch.from_numpy(np.sort(part)) for part in rows]


def _check_clients(clients: int, samples: int) -> None:
    if not 1 <= clients <= samples:
        kind = TooManyClients if clients > samples else InputError
        raise kind(f"clients = {clients} is not possible; choose 1 to {samples}, the number of training samples")
