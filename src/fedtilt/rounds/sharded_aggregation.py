"""Aggregation on the workers of a cluster, for models that do not fit into one process together.

The models (C, P) are blocks of columns in the object store, each aggregated by the worker that reads it. Rules per
coordinate need nothing else. Rules of distances add up the Gram matrices (C, C) of the blocks, choose weights in this
process, and combine every block with them. The grid of the blocks depends on C and P alone, and sums follow it, so the
number of workers does not change a bit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fedtilt.cluster.connection import send_tensors_as_arrays, tensors_as_arrays
from fedtilt.errors import InputError
from fedtilt.math import gram_solvers
from fedtilt.math.client_models import better_centre, combine, distances_to, gram_around
from fedtilt.math.distances import get_distance
from fedtilt.math.robust import krum_ranking, median, trimmed_mean

BLOCK_BYTES = 512 * 2**20  # of a block, all clients together
RULES = ("tilted", "median", "trimmed_mean", "krum")


def column_blocks(clients: int, parameters: int, block_bytes: int = BLOCK_BYTES) -> list[slice]:
    """The fixed grid of blocks."""
    width = max(1, block_bytes // (4 * clients))
    return [slice(left, min(left + width, parameters)) for left in range(0, parameters, width)]


class ShardedModels:
    """The models of the clients of a round, in the object store of a cluster.

    Args:
        ray: the connected module
        blocks: for every block, Ray's references to its columns of every client's model, in the order of client numbers
        columns: the grid, from `column_blocks`
    """

    def __init__(self, ray: Any, blocks: Sequence[Sequence[Any]], columns: Sequence[slice]) -> None:
        self._ray, self._blocks, self._columns = ray, blocks, columns
        self._remote = ray.remote(num_cpus=1, max_retries=3)(_on_block)

    def __len__(self) -> int:
        return len(self._blocks[0])

    def aggregate(
        self, rule: str, *, q: float = 0.0, weights: Tensor | None = None, start: Tensor | None = None,
        bad_share: float = 0.1,
    ) -> Tensor:  # fmt: skip
        """The aggregated model (P,), as the function of that name in `ft.aggregate` gives it, up to rounding.

        Args:
            rule: one of `RULES`; the mean is "tilted" with q = 0
            q: the tilt over clients, with squared L2
            weights: the clients' weights, (C,); None: equal
            start: the model that the clients received, (P,), where q < 0 starts
            bad_share: the share of clients that may be bad, for trimmed_mean and krum
        """
        if rule == "median":
            return self._concatenate(median, weights)
        if rule == "trimmed_mean":
            return self._concatenate(trimmed_mean, bad_share)
        if rule == "krum":
            return self._model(krum_ranking(self._gram(), bad_share)[0])
        if rule != "tilted":
            raise InputError(f"rule {rule!r} does not work on blocks of columns; choose from {', '.join(RULES)}")
        u = torch.full((len(self),), 1 / len(self), dtype=torch.float64)
        if weights is not None:
            u = weights.double() / weights.double().sum()
        if q == 0:
            return self._concatenate(combine, u)
        if q > 0:
            return self._concatenate(combine, gram_solvers.positive_tilt_weights(self._gram(), u, q))
        if start is None:
            raise InputError(f"q = {q:g} needs start, the model that the clients received")
        sq_dist = self._sum(_sq_distances, [start[columns] for columns in self._columns])
        if q == -math.inf:
            return self._model(int(sq_dist.where(u > 0, math.inf).argmin()))
        return self._concatenate(combine, gram_solvers.mean_shift_weights(self._gram(), u, q, sq_dist))

    def _gram(self) -> Tensor:
        matrix = self._sum(gram_around, [0] * len(self._blocks))
        if (centre := better_centre(matrix)) is not None:
            matrix = self._sum(gram_around, [centre] * len(self._blocks))
        return matrix

    def _sum(self, function: Callable[[Tensor, Any], Tensor], arguments: Sequence[Any]) -> Tensor:
        """Σ of a function of every block, in the order of the blocks."""
        results = self._map(function, arguments)
        total = next(results)
        for part in results:
            total += part
        return total

    def _concatenate(self, function: Callable[[Tensor, Any], Tensor], argument: Any) -> Tensor:
        return torch.cat(list(self._map(function, [argument] * len(self._blocks))))

    def _map(self, function: Callable[[Tensor, Any], Tensor], arguments: Sequence[Any]) -> Iterator[Tensor]:
        """A function of every block, in order; results wait in the object store until they are asked for."""
        with tensors_as_arrays():
            references = [
                self._remote.remote(function, argument, *block)
                for argument, block in zip(arguments, self._blocks, strict=True)
            ]
        while references:
            yield self._ray.get(references.pop(0)).clone()

    def _model(self, client: int) -> Tensor:
        return torch.cat([self._ray.get(block[client]) for block in self._blocks])


def _on_block(function: Callable[[Tensor, Any], Tensor], argument: Any, *models: Tensor) -> Tensor:
    """A function of one block, on a worker."""
    torch.set_num_threads(1)
    send_tensors_as_arrays()
    return function(torch.stack(models), argument)


def _sq_distances(block: Tensor, start: Tensor) -> Tensor:
    return distances_to(block, get_distance("squared_l2"), start)
