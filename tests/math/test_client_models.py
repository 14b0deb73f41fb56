"""Aggregation over blocks of columns: bit-identical wherever the blocks are."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtilt.math import aggregate, client_models
from fedtilt.math.client_models import BlockedModels, column_blocks

CLIENTS, PARAMETERS = 7, 3000

RULES: dict[str, Callable[[Any], Tensor]] = {
    "mean": aggregate.mean,
    "weighted mean": lambda m: aggregate.mean(m, torch.arange(1.0, CLIENTS + 1)),
    "median": aggregate.median,
    "weighted median": lambda m: aggregate.median(m, torch.arange(1.0, CLIENTS + 1)),
    "trimmed mean": lambda m: aggregate.trimmed_mean(m, 0.2),
    "krum": lambda m: aggregate.krum(m, 0.2),
    "geometric median": aggregate.geometric_median,
    "q > 0": lambda m: aggregate.tilted(m, 1e-3),
    "q = inf": lambda m: aggregate.tilted(m, math.inf),
    "q < 0": lambda m: aggregate.tilted(m, -1e-3, start=torch.zeros(PARAMETERS)),
    "q = -inf": lambda m: aggregate.tilted(m, -math.inf, start=torch.zeros(PARAMETERS)),
}


class CopiedBlocks(BlockedModels):
    """Blocks with memory of their own, as other processes have them."""

    def __init__(self, models: Tensor) -> None:
        self.shape, self.device = tuple(models.shape), models.device
        self._columns = column_blocks(*self.shape)
        self._blocks = [models[:, columns].clone() for columns in self._columns]

    def __getitem__(self, client: int) -> Tensor:
        return torch.cat([block[client] for block in self._blocks])

    def map_blocks(
        self, function: Callable[..., Tensor], arguments: Sequence[Any], by_column: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        for block, columns in zip(self._blocks, self._columns, strict=True):
            yield function(block, *(vector[columns].clone() for vector in by_column), *arguments)


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Models of four blocks, of three chunks each but the last."""
    monkeypatch.setattr(client_models, "_CHUNK_BYTES", 8 * CLIENTS * 300)
    monkeypatch.setattr(client_models, "BLOCK_BYTES", 4 * CLIENTS * 900 + 1)
    models = torch.randn(CLIENTS, PARAMETERS, generator=torch.Generator().manual_seed(0))
    models[0] += 1000  # so far that another client becomes the centre
    return models


def test_blocks_are_whole_chunks(models: Tensor) -> None:
    assert [(part.start, part.stop) for part in column_blocks(CLIENTS, PARAMETERS)] == [
        (0, 900), (900, 1800), (1800, 2700), (2700, 3000),
    ]  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_the_same_bits_from_blocks_elsewhere(models: Tensor, rule: str) -> None:
    assert torch.equal(RULES[rule](CopiedBlocks(models)), RULES[rule](models))


def test_the_driver_of_a_thousand_models_of_ten_million_parameters_needs_less_than_4_gib() -> None:
    """It has a Gram matrix and those of blocks on their way, the references to all blocks, a model and its parts."""
    clients, parameters = 1000, 10_000_000
    blocks = len(column_blocks(clients, parameters))
    gram, reference = 8 * clients**2, 2 * 2**10  # Ray keeps about two KiB for a reference
    assert 20 * gram + clients * blocks * reference + 3 * 4 * parameters < 2**30
