"""Partitions: every sample once, the right classes, train and test alike."""

import numpy as np
import pytest
import torch

from fedtilt.data.partition import by_classes, by_column, class_sets, dirichlet, iid
from fedtilt.errors import InputError


def labels(classes=10, each=100, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.permutation(np.repeat(np.arange(classes), each)))


def rng(seed=0):
    return np.random.default_rng(seed)


def uses_each_once(parts, total):
    return torch.cat(parts).sort().values.tolist() == list(range(total))


def classes_of(y, parts):
    return [tuple(y[rows].unique().tolist()) for rows in parts]


PARTITIONS = {
    "iid": lambda a, b, g: iid(a, b, 20, g),
    "classes": lambda a, b, g: by_classes(a, b, 20, 3, g),
    "dirichlet": lambda a, b, g: dirichlet(a, b, 20, 0.5, g),
    "column": lambda a, b, g: by_column(a, b, 10),
}


@pytest.mark.parametrize("make", PARTITIONS.values(), ids=PARTITIONS)
def test_every_sample_is_used_once_and_draws_are_reproducible(make):
    y_train, y_test = labels(each=100), labels(each=30, seed=1)
    part = make(y_train, y_test, rng())
    assert uses_each_once(part.train, 1000)
    assert uses_each_once(part.test, 300)
    assert all((rows.diff() > 0).all() for rows in part.train + part.test)
    again = make(y_train, y_test, rng())
    assert all(torch.equal(a, b) for a, b in zip(part.train + part.test, again.train + again.test, strict=True))


@pytest.mark.parametrize("clients", [100, 37, 10])
@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_each_client_has_k_classes_and_each_class_equally_many_clients(clients, k):
    y_train, y_test = labels(), labels(each=100, seed=1)
    part = by_classes(y_train, y_test, clients, k, rng())
    sets = classes_of(y_train, part.train)
    assert all(len(classes) == k for classes in sets)
    assert sets == classes_of(y_test, part.test)
    owners = np.bincount([c for classes in sets for c in classes], minlength=10)
    assert owners.max() - owners.min() <= 1
    for y, parts in ((y_train, part.train), (y_test, part.test)):
        for label in range(10):
            sizes = [
                int((y[rows] == label).sum()) for rows, classes in zip(parts, sets, strict=True) if label in classes
            ]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("seed", range(5))
def test_many_distinct_pairs(seed):
    part = by_classes(labels(), labels(seed=1), 100, 2, rng(seed))
    assert len(set(classes_of(labels(), part.train))) >= 30


@pytest.mark.parametrize(("clients", "classes", "k"), [(7, 5, 5), (50, 3, 2), (1, 10, 4), (13, 10, 9), (1000, 10, 2)])
def test_class_sets_are_complete_and_balanced(clients, classes, k):
    for seed in range(10):
        sets = class_sets(clients, classes, k, rng(seed))
        assert sets.shape == (clients, k)
        assert (np.diff(np.sort(sets, axis=1), axis=1) > 0).all()
        owners = np.bincount(sets.ravel(), minlength=classes)
        assert owners.max() - owners.min() <= 1


def test_pairs_are_nearly_uniform():
    counts = np.zeros((10, 10))
    for seed in range(40):
        for a, b in class_sets(100, 10, 2, rng(seed)):
            counts[a, b] += 1
    pairs = counts[np.triu_indices(10, 1)]  # 4000 sets over 45 pairs: 89 each
    assert pairs.min() > 89 - 5 * 89**0.5
    assert pairs.max() < 89 + 5 * 89**0.5


def test_too_few_clients_leave_classes_unused():
    part = by_classes(labels(), labels(seed=1), 2, 2, rng())
    assert all(len(classes) == 2 for classes in classes_of(labels(), part.train))
    assert len(set(torch.cat(part.train).tolist())) == 400


def test_dirichlet_gives_train_and_test_the_same_shares():
    y_train, y_test = labels(each=3000), labels(each=1000, seed=1)
    part = dirichlet(y_train, y_test, 10, 0.5, rng())
    for train, test in zip(part.train, part.test, strict=True):
        a, b = y_train[train].bincount(minlength=10) / 3000, y_test[test].bincount(minlength=10) / 1000
        assert float((a - b).abs().max()) < 0.0025  # rounded to whole samples


def test_a_small_alpha_gives_unequal_clients():
    spread = [
        torch.tensor([len(rows) for rows in dirichlet(labels(), labels(), 20, alpha, rng()).train]).float().std()
        for alpha in (0.3, 3.0, 300.0)
    ]
    assert spread[0] > spread[1] > spread[2]


def test_a_class_without_training_data_has_no_client():
    part = dirichlet(torch.tensor([0, 0, 1, 1]), torch.tensor([2, 0, 1]), 1, 1.0, rng())
    assert part.test[0].tolist() == [1, 2]


def test_column_keeps_clients_without_test_data():
    part = by_column(torch.tensor([2, 0, 1]), torch.tensor([0]), 3)
    assert [rows.tolist() for rows in part.train] == [[1], [2], [0]]
    assert [rows.tolist() for rows in part.test] == [[0], [], []]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda y: iid(y, y, 0, rng()), "clients = 0 .* 1 to 1000"),
        (lambda y: iid(y, y, 1001, rng()), "clients = 1001 .* 1 to 1000"),
        (lambda y: by_classes(y, y, 2000, 2, rng()), "clients = 2000"),
        (lambda y: by_classes(y, y, 900, 2, rng()), "on 180 clients, but it has 100 training samples"),
        (lambda y: by_classes(y, y, 10, 11, rng()), "classes_per_client = 11 .* 1 to 10"),
        (lambda y: by_classes(y, y, 10, 0, rng()), "classes_per_client = 0"),
        (lambda y: dirichlet(y, y, 10, 0.0, rng()), "alpha = 0.0"),
        (lambda y: dirichlet(y, y, 10, float("nan"), rng()), "alpha = nan"),
        (lambda y: dirichlet(y, y, 500, 0.01, rng()), "alpha = 0.01 .* larger alpha or fewer clients"),
    ],
)
def test_impossible_partitions_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make(labels())
