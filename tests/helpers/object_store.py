"""An object store in this process, and an executor that leaves trained models in it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from fedtilt.cluster.remote_tensor import LostTensorError, RemoteTensor
from fedtilt.executors.in_process import InProcessExecutor
from fedtilt.training import LocalJob, Trained


class Store:
    """Blocks of vectors by number, until the node that has them dies."""

    def __init__(self) -> None:
        self.blocks: dict[int, Tensor] = {}
        self._count = 0

    def put(self, vector: Tensor, columns: Sequence[slice] = (slice(None),)) -> RemoteTensor:
        references = []
        for part in columns:
            self.blocks[self._count] = vector[part].clone()
            references.append(self._count)
            self._count += 1
        finite = bool(vector.isfinite().all())
        return RemoteTensor(self, references, len(vector), vector.device, "node", finite)

    def get(self, references: Sequence[int]) -> list[Tensor]:
        if any(reference not in self.blocks for reference in references):
            raise LostTensorError
        return [self.blocks[reference] for reference in references]

    def map_blocks(
        self, function: Callable[..., Tensor], blocks: Sequence[Sequence[Any]], arguments: Sequence[Sequence[Any]]
    ) -> Iterator[Tensor]:
        for rows, given in zip(blocks, arguments, strict=True):
            yield function(torch.stack(self.get(rows)), *given)


class StoringExecutor:
    """Trains in this process, and leaves trained models in a store."""

    on_nodes = True

    def __init__(self, executor: InProcessExecutor, store: Store, columns: Sequence[slice]) -> None:
        self._executor, self._store, self._columns = executor, store, columns

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Trained]]]:
        fetched = {client: [_fetched(job) for job in of_client] for client, of_client in jobs.items()}
        for client, results in self._executor.train(round, fetched):
            yield client, [r._replace(parameters=self._store.put(r.parameters, self._columns)) for r in results]

    def close(self) -> None:
        self._store.blocks.clear()  # nodes leave


def _fetched(job: LocalJob) -> LocalJob:
    values = {f.name: getattr(job, f.name) for f in fields(job)}
    changes: dict[str, Any] = {name: v.fetch() for name, v in values.items() if isinstance(v, RemoteTensor)}
    return replace(job, **changes)
