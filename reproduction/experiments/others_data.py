"""The data of each of the tables: its scale, and its division over the clients by the library's own law."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedtilt import data, seeds
from fedtilt.errors import InputError

Samples = tuple[Tensor, Tensor]
_ATTEMPTS = 1000


def federation_of(settings: Mapping[str, Any], dataset: data.Dataset) -> data.Federation:
    """The federation of a case."""
    build = {"byzfl": _byzfl, "pfllib": _pfllib, "niid-bench": _niid_bench}[settings["table"]]
    scaled = _scaled(dataset, **settings.get("scale", {}))
    return _from_clients(build(settings, scaled), scaled)


def _scaled(dataset: data.Dataset, mean: float = 0.5, deviation: float = 0.5) -> data.Dataset:
    """Images in [0, 1] minus `mean`, divided by `deviation`; the default is the scale of a run."""
    if mean == deviation == 0.5:
        return dataset
    x_train, x_test = ((_images(x) / 255 - mean) / deviation for x in (dataset.x_train, dataset.x_test))
    return replace(dataset, x_train=x_train, x_test=x_test, image=False)  # images would be scaled again


def _images(x: object) -> Tensor:
    assert isinstance(x, Tensor)
    return x


def _niid_bench(settings: Mapping[str, Any], dataset: data.Dataset) -> list[tuple[Samples, Samples]]:
    """The training data is divided by its labels; of the test data, which all are tested on, each has an equal part."""
    clients, seed = settings["clients"], settings["seed"]
    rng = seeds.generator(seeds.key(seed, "niid-bench/division"))
    rows = _some(dataset.y_train, settings, "niid-bench/rows")
    labels = dataset.y_train[rows].numpy()
    if settings["division"] == "dirichlet":
        parts = capped_dirichlet(labels, clients, settings["alpha"], 10, rng)
    else:
        parts = random_classes(labels, clients, settings["classes_per_client"], rng)
    x, x_test, test = _images(dataset.x_train), _images(dataset.x_test), _test_parts(dataset, seed, clients)
    train = [(x[rows[part]], dataset.y_train[rows[part]]) for part in parts]
    return [(mine, (x_test[j], dataset.y_test[j])) for mine, j in zip(train, test, strict=True)]


def _pfllib(settings: Mapping[str, Any], dataset: data.Dataset) -> list[tuple[Samples, Samples]]:
    """Training and test data are pooled and divided; a quarter of every client's samples is its test data."""
    x, y = torch.cat([_images(dataset.x_train), _images(dataset.x_test)]), torch.cat([dataset.y_train, dataset.y_test])
    clients, seed = settings["clients"], settings["seed"]
    rng = seeds.generator(seeds.key(seed, "pfllib/division"))
    rows = _some(y, settings, "pfllib/rows")
    labels = y[rows].numpy()
    if settings["division"] == "dirichlet":
        parts = capped_dirichlet(labels, clients, settings["alpha"], 1, rng)
    else:
        parts = uneven_classes(labels, clients, settings["classes_per_client"], rng)
    return [_split((x[rows[part]], y[rows[part]]), 0.25, seed, client) for client, part in enumerate(parts)]


def _byzfl(settings: Mapping[str, Any], dataset: data.Dataset) -> list[tuple[Samples, Samples]]:
    """A share gamma of the data is IID, the rest is sorted by class and cut; attackers, the last clients, have a copy.

    Every honest client has an equal part of the test data, so that their mean accuracy is that of the test data.
    """
    honest, bad, seed = settings["honest"], settings["bad"], settings["seed"]
    rows = _some(dataset.y_train, settings, "byzfl/rows")
    iid, rest = rows[: int(settings["gamma"] * len(rows))], rows[int(settings["gamma"] * len(rows)) :]
    rest = rest[dataset.y_train[rest].argsort(stable=True)]
    index = [torch.cat(pair) for pair in zip(iid.tensor_split(honest), rest.tensor_split(honest), strict=True)]
    x, x_test, test = _images(dataset.x_train), _images(dataset.x_test), _test_parts(dataset, seed, honest)
    clients = [((x[i], dataset.y_train[i]), (x_test[j], dataset.y_test[j])) for i, j in zip(index, test, strict=True)]
    return [*clients, *[clients[0]] * bad]


def _some(y: Tensor, settings: Mapping[str, Any], purpose: str) -> Tensor:
    """Samples in random order, at most `max_train`."""
    rows = seeds.permutations(seeds.key(settings["seed"], purpose), 1, len(y))[0]
    return rows[: settings.get("max_train", len(rows))]


def _test_parts(dataset: data.Dataset, seed: int, clients: int) -> Sequence[Tensor]:
    return seeds.permutations(seeds.key(seed, "others/test"), 1, len(dataset.y_test))[0].tensor_split(clients)


def capped_dirichlet(
    labels: np.ndarray, clients: int, alpha: float, least: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Every class in shares of Dirichlet(alpha); a client that has its part of all samples gets no later classes.

    The law of PFLlib and niid-bench, drawn again until every client has `least` samples.
    """
    for _ in range(_ATTEMPTS):
        parts: list[np.ndarray] = [np.empty(0, np.int64)] * clients
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(clients, alpha)) * [len(part) < len(labels) / clients for part in parts]
            cuts = (np.cumsum(shares / shares.sum())[:-1] * len(rows)).astype(np.int64)
            parts = [np.append(part, piece) for part, piece in zip(parts, np.split(rows, cuts), strict=True)]
        if min(map(len, parts)) >= least:
            return parts
    raise InputError(f"max_train = {len(labels)} is too few for {clients} clients with {least} samples; raise it")


def random_classes(labels: np.ndarray, clients: int, per_client: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Client i has class i and others at random; a class is divided evenly over those that have it (niid-bench)."""
    found = np.unique(labels)
    of_client = []
    for client in range(clients):
        own = client % len(found)
        others = rng.permutation(np.delete(np.arange(len(found)), own))[: per_client - 1]
        of_client.append({own, *others.tolist()})
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for position, label in enumerate(found):
        owners = [client for client in range(clients) if position in of_client[client]]
        rows = rng.permutation(np.flatnonzero(labels == label))
        for owner, piece in zip(owners, np.array_split(rows, len(owners)) if owners else [], strict=True):
            parts[owner].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


def uneven_classes(labels: np.ndarray, clients: int, per_client: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Clients in their order share the classes in their order, each class in unequal parts (PFLlib).

    All owners of a class but the last have between a tenth of an equal share and an equal share; the last has the rest.
    """
    found, parts = np.unique(labels), [[] for _ in range(clients)]  # type: tuple[np.ndarray, list[list[np.ndarray]]]
    together = -(-clients * per_client // len(found))
    for label in found:
        owners = [client for client in range(clients) if len(parts[client]) < per_client][:together]
        rows = rng.permutation(np.flatnonzero(labels == label))
        equal = len(rows) / len(owners)
        sizes = rng.integers(max(1, int(equal / 10)), max(2, int(equal)), len(owners) - 1)
        for owner, piece in zip(owners, np.split(rows, np.cumsum(sizes)), strict=True):
            parts[owner].append(piece)
    return [np.concatenate(pieces) for pieces in parts]


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


def _two_convolutions(
    channels: tuple[int, int, int], hidden: tuple[int, ...], flat: int, classes: int
) -> nn.Sequential:
    """Two 5 × 5 convolutions, each with ReLU and 2 × 2 max pooling, then fully connected layers with ReLU between."""
    first, second, third = channels
    layers: list[nn.Module] = [
        nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(second, third, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
    ]  # fmt: skip
    sizes = (flat, *hidden, classes)
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Linear(inputs, outputs), *([nn.ReLU()] if i < len(hidden) else [])]
    return nn.Sequential(*layers)


def byzfl_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """ByzFL's `cnn_mnist`."""
    return _two_convolutions((input_shape[0], 20, 50), (500,), 50 * _side(input_shape) ** 2, classes)


def pfllib_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """PFLlib's `FedAvgCNN`; the last layer is the head of FedRep."""
    return _two_convolutions((input_shape[0], 32, 64), (512,), 64 * _side(input_shape) ** 2, classes)


def niid_bench_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The network of niid-bench: LeNet-5."""
    return _two_convolutions((input_shape[0], 6, 16), (120, 84), 16 * _side(input_shape) ** 2, classes)


def _side(input_shape: tuple[int, ...]) -> int:
    """The height of the image after both convolutions."""
    return ((input_shape[1] - 4) // 2 - 4) // 2


MODELS: dict[str, Callable[..., nn.Module]] = {
    "byzfl": byzfl_cnn, "pfllib": pfllib_cnn, "niid-bench": niid_bench_cnn,
}  # fmt: skip
