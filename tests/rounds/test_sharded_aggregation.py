"""Aggregation over blocks of columns on a cluster agrees with that in one process."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fedtilt as ft
from fedtilt.cluster.connection import connected, tensors_as_arrays
from fedtilt.math.client_models import combine, gram_around
from fedtilt.math.gram_solvers import positive_tilt_weights
from fedtilt.rounds.sharded_aggregation import ShardedModels, column_blocks
from tests.helpers.ray_cluster import loopback_cluster

pytest.importorskip("ray")

CLIENTS, PARAMETERS = 7, 1000
BLOCK_BYTES = 4 * CLIENTS * 300  # four blocks, the last one narrower


def test_the_grid_depends_on_clients_and_parameters_alone() -> None:
    assert column_blocks(CLIENTS, PARAMETERS, BLOCK_BYTES) == [
        slice(0, 300), slice(300, 600), slice(600, 900), slice(900, 1000),
    ]  # fmt: skip


def test_the_driver_of_a_thousand_models_of_ten_million_parameters_needs_less_than_4_gib() -> None:
    """It holds a Gram matrix and its parts, the references to the columns, and one model and its parts."""
    clients, parameters = 1000, 10_000_000
    blocks = len(column_blocks(clients, parameters))
    gram, reference = 8 * clients**2, 2 * 2**10  # Ray keeps about two KiB for a reference
    needed = 2 * gram + clients * blocks * reference + 3 * 4 * parameters
    assert needed < 2**29


@pytest.fixture(scope="module")
def models() -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    models = torch.randn(CLIENTS, PARAMETERS, generator=rng)
    models[2] += 5  # an outlier
    return models


@pytest.fixture(scope="module")
def sharded(models: torch.Tensor) -> Iterator[ShardedModels]:
    with loopback_cluster(head_cpus=2) as cluster, connected(cluster.address) as ray:
        yield put(ray, models)


def put(ray: Any, models: torch.Tensor) -> ShardedModels:
    columns = column_blocks(len(models), models.shape[1], BLOCK_BYTES)
    with tensors_as_arrays():
        blocks = [[ray.put(model[part].clone()) for model in models] for part in columns]
    return ShardedModels(ray, blocks, columns)


@pytest.mark.slow
def test_every_rule_agrees_with_the_one_in_one_process(sharded: ShardedModels, models: torch.Tensor) -> None:
    start, weights = models.mean(0), torch.arange(1.0, CLIENTS + 1)
    a = ft.aggregate
    cases = [
        ({"rule": "tilted"}, a.mean(models)),
        ({"rule": "tilted", "weights": weights}, a.mean(models, weights)),
        ({"rule": "tilted", "q": 1e-3}, a.tilted(models, 1e-3)),
        ({"rule": "tilted", "q": math.inf}, a.tilted(models, math.inf)),
        ({"rule": "tilted", "q": -1e-3, "start": start}, a.tilted(models, -1e-3, start=start)),
        ({"rule": "tilted", "q": -math.inf, "start": start}, a.tilted(models, -math.inf, start=start)),
        ({"rule": "median"}, a.median(models)),
        ({"rule": "median", "weights": weights}, a.median(models, weights)),
        ({"rule": "trimmed_mean", "bad_share": 0.2}, a.trimmed_mean(models, 0.2)),
        ({"rule": "krum", "bad_share": 0.2}, a.krum(models, 0.2)),
    ]
    for settings, expected in cases:
        torch.testing.assert_close(sharded.aggregate(**settings), expected, rtol=1e-5, atol=1e-6, msg=str(settings))
    with pytest.raises(ft.InputError, match="rule 'bulyan' does not work on blocks of columns; choose from tilted"):
        sharded.aggregate("bulyan")
    with pytest.raises(ft.InputError, match="q = -1 needs start"):
        sharded.aggregate("tilted", q=-1.0)
    # the same bits as blocks that are added in order in one process
    parts = [models[:, columns] for columns in column_blocks(CLIENTS, PARAMETERS, BLOCK_BYTES)]
    matrix = gram_around(parts[0], 0)
    for part in parts[1:]:
        matrix += gram_around(part, 0)
    p = positive_tilt_weights(matrix, torch.full((CLIENTS,), 1 / CLIENTS, dtype=torch.float64), 1e-3)
    assert torch.equal(sharded.aggregate("tilted", q=1e-3), torch.cat([combine(part, p) for part in parts]))
