"""The models of a round's clients as blocks of columns on the workers of a cluster, for those that exceed one process.

Every rule of `map_blocks` then reads each block on one worker. The grid of the blocks is the one that the rule uses in
one process, so the result is bit-identical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedtilt.cluster.remote_tensor import RemoteTensor
from fedtilt.devices import as_rows
from fedtilt.math.client_models import BlockedModels, ClientModels, column_blocks
from fedtilt.methods import Method

if TYPE_CHECKING:
    from fedtilt.engine.settings import TrainSettings

SHARDED_BYTES = 2 * 2**30  # of the clients' models of one method in a round, above which they stay on the cluster


class ShardedModels(BlockedModels):
    """The models (C, P) of clients whose blocks, of the grid `columns`, are in an object store."""

    def __init__(self, models: Sequence[RemoteTensor], columns: Sequence[slice]) -> None:
        self._models, self._columns = models, columns
        self.shape = len(models), models[0].numel()
        self.device = models[0].device

    def __getitem__(self, client: int) -> Tensor:
        """The model of one client, (P,)."""
        return self._models[client].fetch()

    def map_blocks(
        self, function: Callable[..., Tensor], arguments: Sequence[Any], by_column: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """The function of every block, on the workers."""
        blocks = list(zip(*(model.references for model in self._models), strict=True))
        given = [[*(vector[columns] for vector in by_column), *arguments] for columns in self._columns]
        for result in self._models[0].store.map_blocks(function, blocks, given):
            yield result.to(self.device)


def stack_models(models: Sequence[Tensor]) -> ClientModels:
    """The models (C, P) of clients in one tensor or, if they are blocks on a cluster, where they are.

    They are not copied if they are rows of one tensor already; do not change them.
    """
    columns = column_blocks(len(models), models[0].numel())
    remote = [model for model in models if isinstance(model, RemoteTensor)]
    in_grid = len(remote) == len(models) and all(len(model.references) == len(columns) for model in remote)
    if in_grid and _exceeds_limit(len(models), models[0].numel()):
        return ShardedModels(remote, columns)
    return torch.stack(list(models)) if remote else as_rows(models)


def _exceeds_limit(clients: int, parameters: int) -> bool:
    return 4 * clients * parameters > SHARDED_BYTES


def uses_shards(methods: Iterable[Method], settings: TrainSettings, clients: int, parameters: int) -> bool:
    """Whether the models of a round stay on the cluster: they exceed the limit, and no step needs all in one process.

    `clients` take part in a round, with models of this number of `parameters`.
    """
    if not settings.on_cluster or not _exceeds_limit(clients, parameters):
        return False
    if settings.local or settings.screen or settings.audit or settings.privacy or settings.attack:
        return False
    return all(
        m.aggregator.by_blocks
        and not m.before
        and m.correction is None
        and m.training is None
        and not m.client_momentum
        and m.local is None
        for m in methods
    )
