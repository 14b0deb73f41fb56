"""Prediction sets cover as promised: rows drawn by the library, a model that is a known function of the inputs."""

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor

import fedtilt as ft
from fedtilt.data import Federation
from fedtilt.evaluation.predictions import conformity_scores, predictions_of
from tests.promises.promise import Row, Simulation, measured, shares_row

COVERAGE = 0.9
PROMISE = f"prediction sets, {100 * COVERAGE:g} %"
KINDS = ("shared", "personal", "unlike", "hard if small")  # models, and clients


def probabilities(federation: Federation, split: str, rare: float, kind: str) -> Tensor:
    """Of a model that knows the effect of x and the share of the rare class: of all or, if personal, of the client."""
    x, _, client = federation.evaluation(split)
    assert isinstance(x, Tensor)
    share = torch.full((federation.clients,), rare)
    if kind == "personal":
        counts = federation.class_counts()
        share = (counts[:, 1] + 0.5) / (counts.sum(1) + 1)
    p = torch.sigmoid(share.logit()[client] + 1.5 * x[:, 0])
    return torch.stack([1 - p, p], 1)


def draw_clients(sizes: Sequence[int], rare: float, kind: str, rng: np.random.Generator) -> list[tuple[Tensor, Tensor]]:
    """Clients whose shares of the rare class differ; if they are unlike or hard, so does what x tells about it."""
    effect = np.ones(len(sizes))
    if kind == "unlike":
        effect = rng.choice([0.3, 3.0], len(sizes))
    elif kind == "hard if small":
        effect = np.where(np.array(sizes) < max(sizes), 0.2, 4.0)
    found = []
    for size, slope in zip(sizes, effect, strict=True):
        x = rng.normal(size=size)
        logit = np.log(rare / (1 - rare)) + rng.normal() + 1.5 * slope * x
        y = (rng.random(size) < 1 / (1 + np.exp(-logit))).astype(int)
        found.append((torch.tensor(x[:, None]).float(), torch.tensor(y)))
    return found


def covered(federation: Federation, rare: float, kind: str) -> dict[tuple[int, bool], float]:
    """The mean share of test samples with the truth in their set, by validation samples and by who calibrates."""
    scores = conformity_scores(federation, probabilities(federation, "validation", rare, kind))
    outputs = {"model": probabilities(federation, "test", rare, kind)}
    sets = predictions_of(federation, outputs, {"model": scores})["model"].prediction_sets(COVERAGE)
    found: dict[tuple[int, bool], list[float]] = {}
    for n, share in sets.shares.items():
        found.setdefault((len(scores.validation[n]), sets.rules[n].clients == 1), []).append(share)
    return {key: float(np.mean(shares)) for key, shares in found.items()}


def simulate(sizes: Sequence[int], rare: float, kind: str, split: str, draws: int, first: int = 0) -> list[Row]:
    """A row for every number of validation samples; few clients are drawn more often."""
    by_size: dict[tuple[int, bool], list[float]] = {}
    for seed in range(first, first + max(draws // 3, 2 * draws // len(sizes))):
        rng = np.random.default_rng([seed, len(sizes), round(1000 * rare), KINDS.index(kind)])
        clients = draw_clients(sizes, rare, kind, rng)
        federation = ft.Federation.from_clients(
            clients, class_names=["0", "1"], test_share=0.5, validation=0.25, split=split, seed=seed
        )
        for key, share in covered(federation, rare, kind).items():
            by_size.setdefault(key, []).append(share)
    cell = f"{split} rows, {len(sizes)} clients, {100 * rare:g} % rare, {kind}"
    return [
        shares_row(PROMISE, f"{cell}, {n} validation rows{'' if own else ' and those of others'}", COVERAGE, shares)
        for (n, own), shares in by_size.items()
    ]


GRID = [  # clients, and the sizes that they take in turn
    (1, [80]), (2, [80]), (5, [80]), (20, [30, 80, 200]), (60, [8, 32, 80]), (60, [20]), (60, [16, 200]),
]  # fmt: skip


def measure(draws: int, workers: int = 1) -> list[Row]:
    """Every cell."""
    cells: list[Simulation] = [partial(of_partition, "classes"), partial(of_partition, "dirichlet"), of_persons]
    for (clients, sizes), rare, kind, split in itertools.product(
        GRID, (0.01, 0.05, 0.4), KINDS, ("random", "proportional")
    ):
        sizes = np.resize(sizes, clients).tolist()
        if kind != "hard if small" or len(set(sizes)) > 1:
            cells.append(partial(simulate, sizes, rare, kind, split))
    return measured(cells, draws, workers)


def of_partition(partition: str, draws: int, first: int = 0) -> list[Row]:
    """Published test data, whose shares of classes are those of the client, and validation rows drawn at random."""
    shares = []
    for seed in range(first, first + draws // 3):
        rng = np.random.default_rng(seed)
        y = torch.tensor(rng.integers(0, 4, 3000))
        x = torch.tensor(rng.normal(size=(3000, 4))).float() + 1.5 * torch.eye(4)[y]
        parts = {"x_train": x[:2000], "y_train": y[:2000], "x_test": x[2000:], "y_test": y[2000:]}
        data = ft.data.Dataset(name="made", classes=4, **parts)
        settings = {"classes_per_client": 2} if partition == "classes" else {"alpha": 0.5}
        federation = Federation.build(data, clients=20, partition=partition, validation=0.25, seed=seed, **settings)
        found = []
        for split in ("validation", "test"):
            inputs, _, client = federation.evaluation(split)
            share = (federation.class_counts().float() + 0.5)[client]  # a personal model
            assert isinstance(inputs, Tensor)
            found.append(torch.softmax(1.5 * inputs + share.log(), 1))
        scores = conformity_scores(federation, found[0])
        sets = predictions_of(federation, {"model": found[1]}, {"model": scores})["model"].prediction_sets(COVERAGE)
        own = [sets.shares[n] for n, rule in sets.rules.items() if rule.clients == 1]
        shares.append(float(np.mean(own)))
    return [shares_row(PROMISE, f"partition {partition}, 20 clients", COVERAGE, shares)]


def of_persons(draws: int, first: int = 0) -> list[Row]:
    """Eight rows of each person, with one error of the model in all of them, on one side of the split."""
    shares = []
    for seed in range(first, first + draws // 3):
        persons = np.arange(480)
        target = np.random.default_rng(seed).normal(size=len(persons))
        columns = {"y": target + 5.0, "x": persons % 2, "person": persons, "client": persons // 48}
        frame = pandas.DataFrame({name: np.repeat(values, 8) for name, values in columns.items()})
        data = ft.data.table(frame, target="y", task="regression", client="client", split_group="person", seed=seed)
        federation = Federation.build(data, validation=0.3, seed=seed)
        zeros = [torch.full((len(federation.evaluation(split)[1]),), 5.0) for split in ("validation", "test")]
        scores = conformity_scores(federation, zeros[0])
        sets = predictions_of(federation, {"model": zeros[1]}, {"model": scores})["model"].prediction_sets(COVERAGE)
        shares.append(sets.mean)
    return [shares_row(PROMISE, "rows of 480 persons, 10 clients", COVERAGE, shares)]


@pytest.mark.parametrize("split", ["random", "proportional"])
def test_small_and_large_clients_are_covered(split: str) -> None:
    rows = simulate([8, 20, 80] * 4, 0.05, "personal", split, 75)
    assert {row.cell.split(", ")[-1] for row in rows} >= {"10 validation rows", "2 validation rows and those of others"}
    assert all(row.kept for row in rows), rows


def test_shares_of_classes_that_are_fixed_in_test_data_are_covered() -> None:
    assert all(row.kept for row in of_partition("classes", 15))


def test_rows_of_one_person_count_as_one() -> None:
    assert all(row.kept for row in of_persons(36))


@pytest.mark.slow
def test_every_cell() -> None:
    assert not [row for row in measure(200) if row.is_broken]
