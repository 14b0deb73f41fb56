"""The division of the data in each of the tables."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedtilt import data, seeds


def federation_of(settings: Mapping[str, Any], dataset: data.Dataset) -> data.Federation:
    """The federation of a case."""
    return {"byzfl": _byzfl, "pfllib": _pfllib, "niid-bench": _divided}[settings["table"]](settings, dataset)


def _divided(settings: Mapping[str, Any], dataset: data.Dataset) -> data.Federation:
    """Training and test data divided alike: the clients' test data together is the whole test data."""
    partition = settings["partition"]
    classes = {"classes_per_client": settings["classes_per_client"]} if partition == "classes" else {}
    alpha = {"alpha": settings["alpha"]} if partition == "dirichlet" else {}
    return data.Federation.build(
        dataset, clients=settings["clients"], partition=partition, max_train=settings.get("max_train"),
        seed=settings["seed"], **classes, **alpha,
    )  # fmt: skip


def _pfllib(settings: Mapping[str, Any], dataset: data.Dataset) -> data.Federation:
    """Training and test data are pooled and divided; a quarter of every client's samples is its test data."""
    x, y = torch.cat([_images(dataset.x_train), _images(dataset.x_test)]), torch.cat([dataset.y_train, dataset.y_test])
    pooled = replace(dataset, x_train=x, y_train=y, rows_train=None, rows_test=None, row_names=None)
    divided = _divided(settings, pooled)
    parts = [(x[rows], y[rows]) for rows in divided.train_index]
    return _from_clients([_split(part, 0.25, settings["seed"], n) for n, part in enumerate(parts)], dataset)


def _byzfl(settings: Mapping[str, Any], dataset: data.Dataset) -> data.Federation:
    """A share gamma of the data is IID, the rest is sorted by class and cut; attackers, the last clients, have a copy.

    Every honest client has an equal part of the test data, so that their mean accuracy is that of the test data.
    """
    honest, bad, seed = settings["honest"], settings["bad"], settings["seed"]
    rows = seeds.permutations(seeds.key(seed, "byzfl/rows"), 1, len(dataset.y_train))[0]
    rows = rows[: settings.get("max_train", len(rows))]
    iid, rest = rows[: int(settings["gamma"] * len(rows))], rows[int(settings["gamma"] * len(rows)) :]
    rest = rest[dataset.y_train[rest].argsort(stable=True)]
    index = [torch.cat(pair) for pair in zip(iid.tensor_split(honest), rest.tensor_split(honest), strict=True)]
    test = seeds.permutations(seeds.key(seed, "byzfl/test"), 1, len(dataset.y_test))[0].tensor_split(honest)
    x, x_test = _images(dataset.x_train), _images(dataset.x_test)
    clients = [((x[i], dataset.y_train[i]), (x_test[j], dataset.y_test[j])) for i, j in zip(index, test, strict=True)]
    return _from_clients([*clients, *[clients[0]] * bad], dataset)


def _images(x: object) -> Tensor:
    assert isinstance(x, Tensor)
    return x


Samples = tuple[Tensor, Tensor]


def _split(samples: Samples, test_share: float, seed: int, client: int) -> tuple[Samples, Samples]:
    x, y = samples
    order = seeds.permutations(seeds.key(seed, "pfllib/test", client=client), 1, len(y))[0]
    test, train = order[: round(test_share * len(y))], order[round(test_share * len(y)) :]
    return (x[train], y[train]), (x[test], y[test])


def _from_clients(clients: list[tuple[Samples, Samples]], dataset: data.Dataset) -> data.Federation:
    parts = [[pair[side][k] for pair in clients] for side in (0, 1) for k in (0, 1)]
    owner = [torch.repeat_interleave(torch.arange(len(clients)), torch.tensor([len(y) for y in ys])) for ys in
             (parts[1], parts[3])]  # fmt: skip
    divided = data.Dataset(
        name=dataset.name, x_train=torch.cat(parts[0]), y_train=torch.cat(parts[1]), x_test=torch.cat(parts[2]),
        y_test=torch.cat(parts[3]), classes=dataset.classes, class_names=dataset.class_names, image=dataset.image,
        client_train=owner[0], client_test=owner[1], client_names=tuple(map(str, range(len(clients)))),
    )  # fmt: skip
    return data.Federation.build(divided, partition="column")
