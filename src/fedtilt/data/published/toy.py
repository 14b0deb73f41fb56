"""The paper's three toy experiments: two clients, each with two Gaussian classes in the plane."""

from dataclasses import dataclass

import numpy as np
import torch

from fedtilt import checks, seeds
from fedtilt.data.dataset import Dataset
from fedtilt.data.published.entry import Entry


@dataclass(frozen=True)
class Group:
    """One class of one client: an isotropic Gaussian."""

    centre: tuple[float, float]
    deviation: float


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One experiment: `groups[client][class]`, samples per class, and the share and deviation of added noise."""

    groups: tuple[tuple[Group, Group], tuple[Group, Group]]
    train: tuple[int, int]
    test: tuple[int, int]
    noisy_share: float = 0.0
    noise: float = 0.15


SETUPS = {
    "toy-1": Setup(
        groups=(
            (Group((0.5, 2.0), 0.5), Group((2.5, 1.0), 0.5)),
            (Group((1.0, 2.2), 0.5), Group((2.2, 0.8), 0.5)),
        ),
        train=(100, 100),
        test=(20, 20),
    ),
    "toy-2": Setup(
        groups=(
            (Group((0.5, 2.0), 0.35), Group((2.0, 1.0), 0.25)),
            (Group((0.5, 2.0), 0.35), Group((2.5, 1.8), 0.25)),
        ),
        train=(150, 50),
        test=(30, 10),
    ),
    "toy-3": Setup(
        groups=(
            (Group((1.0, 2.0), 1.0), Group((2.5, 1.0), 0.3)),
            (Group((1.0, 2.0), 1.0), Group((2.5, 1.0), 0.3)),
        ),
        train=(150, 50),
        test=(30, 10),
        noisy_share=0.1,
    ),
}


def toy(name: str, seed: int = 0) -> Dataset:
    """The data of one toy experiment, generated from the seed.

    >>> toy("toy-2").y_train.bincount().tolist()
    [300, 100]
    """
    setup = SETUPS[name]
    x_train, y_train, client_train = _samples(setup, setup.train, seeds.generator(seeds.key(seed, f"{name}/train")))
    x_test, y_test, client_test = _samples(setup, setup.test, seeds.generator(seeds.key(seed, f"{name}/test")))
    if setup.noisy_share:
        _add_noise(setup, x_train, y_train, client_train, seeds.generator(seeds.key(seed, f"{name}/noise")))
    return Dataset(
        name=name,
        x_train=torch.from_numpy(x_train.astype(np.float32)),
        y_train=torch.from_numpy(y_train),
        x_test=torch.from_numpy(x_test.astype(np.float32)),
        y_test=torch.from_numpy(y_test),
        classes=2,
        class_names=("1", "2"),
        client_train=torch.from_numpy(client_train),
        client_test=torch.from_numpy(client_test),
        client_names=("1", "2"),
        fixed_shares=True,
        generated=True,
    )


def _samples(
    setup: Setup, counts: tuple[int, int], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, classes and clients, ordered by client and class."""
    gaussians = [(client, k, group) for client, groups in enumerate(setup.groups) for k, group in enumerate(groups)]
    x = [rng.normal(group.centre, group.deviation, (counts[k], 2)) for _, k, group in gaussians]
    y = np.repeat([k for _, k, _ in gaussians], [counts[k] for _, k, _ in gaussians])
    client = np.repeat([client for client, _, _ in gaussians], [counts[k] for _, k, _ in gaussians])
    return np.concatenate(x), y.astype(np.int64), client.astype(np.int64)


def _add_noise(setup: Setup, x: np.ndarray, y: np.ndarray, client: np.ndarray, rng: np.random.Generator) -> None:
    """Add Gaussian noise, in place, to a share of every client's first class."""
    for number in range(len(setup.groups)):
        first = np.flatnonzero((client == number) & (y == 0))
        noisy = rng.choice(first, round(setup.noisy_share * len(first)), replace=False)
        x[noisy] += rng.normal(0.0, setup.noise, (len(noisy), x.shape[1]))


TOYS = tuple(
    Entry(
        name=name, description=f"toy: {description}", train=400, test=80, classes=2,
        reader=lambda entry, folder, seed: toy(entry.name, checks.whole(seed, "seed")),
    )
    for name, description in (
        ("toy-1", "two Gaussian classes"), ("toy-2", "classes 3 to 1"), ("toy-3", "3 to 1 with outliers"),
    )
)  # fmt: skip
