"""The batches of clients in a round: which samples, in which order, with which outliers; on any executor the same."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.data.inputs import split
from fedtilt.devices import upload
from fedtilt.training import Batches, LocalJob
from fedtilt.training.augmentation import Augmentation, Transform
from fedtilt.training.local_job import batch_bounds

if TYPE_CHECKING:
    from fedtilt.engine.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """What the batches of every client in every round depend on."""

    seed: int
    epochs: int
    batch_size: int
    last_batch: str
    batch_transform: Transform | None = None

    @classmethod
    def of(cls, settings: TrainSettings) -> Self:
        """Those among the training settings."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    def of_clients(
        self, federation: Federation, round: int, jobs: Mapping[int, Sequence[LocalJob]], device: torch.device
    ) -> dict[int, Batches]:
        """By client: its batches in one round, with outliers, for the longest of its jobs."""
        # epochs, whether a part of the samples suffices → client → how many it needs
        clients_of: dict[tuple[int, bool], dict[int, int]] = {}
        for client, of_client in jobs.items():
            samples = len(federation.train_index[client])
            used = self._used(samples, of_client)
            epochs = max(self._epochs(job, samples) for job in of_client)
            clients_of.setdefault((epochs, used < samples), {})[client] = used
        found: dict[int, Batches] = {}
        for (epochs, _), clients in clients_of.items():
            found |= self._gathered(federation, round, clients, epochs, device)
        return found

    def _gathered(
        self, federation: Federation, round: int, used: Mapping[int, int], epochs: int, device: torch.device
    ) -> dict[int, Batches]:
        """`of_clients` for clients with this number of epochs, from the samples of the first epoch that each needs.

        The samples of all of them are gathered at once; those of a client are views.
        """
        clients, counts = list(used), list(used.values())
        sizes = [len(federation.train_index[client]) for client in clients]
        keys = [seeds.key(self.seed, "order", round=round, client=client) for client in clients]
        order, rows = seeds.permutations_of_each(keys, epochs, sizes, device), None
        if counts != sizes:
            starts = torch.tensor(sizes).cumsum(0) - torch.tensor(sizes)
            owner, position = seeds.owners_and_positions(counts)
            start, position = upload(starts[owner], device), upload(position, device)
            rows, order = start + order[0, start + position], position[None]
        x, y = federation.train(clients, seed=self.seed, round=round, device=device, rows=rows)
        groups = federation.train_groups(clients, device=device)
        weights = federation.train_weights(clients, device=device)
        if rows is not None:
            groups = {name: codes[rows] for name, codes in groups.items()}
            weights = None if weights is None else weights[rows]
        of_clients = {name: codes.split(counts) for name, codes in groups.items()}
        largest = _largest_batch(federation, self.batch_size, self.last_batch)
        parts = zip(
            clients, sizes, split(x, counts), y.split(counts), order.split(counts, dim=1),
            [None] * len(clients) if weights is None else weights.split(counts), strict=True,
        )  # fmt: skip
        return {
            client: Batches(
                x=x, y=y, order=order, weights=weights, largest=largest,
                bounds=_bounds(samples, self.batch_size, self.last_batch, len(y)),
                key=seeds.key(self.seed, "dropout", round=round, client=client),
                groups={name: codes[i] for name, codes in of_clients.items()},
                augmentation=Augmentation.of(self.batch_transform, seed=self.seed, round=round, client=client),
            )
            for i, (client, samples, x, y, order, weights) in enumerate(parts)
        }  # fmt: skip

    def _used(self, samples: int, jobs: Sequence[LocalJob]) -> int:
        """How many samples of a client's first epoch these jobs train on if they make a few steps; otherwise all.

        The user's `train` is given all samples of the client, beside its steps.
        """
        if any(job.steps is None or job.measures_loss or job.training is not None for job in jobs):
            return samples
        steps = max(job.steps or 0 for job in jobs)
        bounds = batch_bounds(samples, self.batch_size, self.last_batch)
        return samples if steps >= len(bounds) - 1 else bounds[steps]

    def _epochs(self, job: LocalJob, samples: int) -> int:
        """Passes over the data that a job needs."""
        if job.steps is None:
            return self.epochs if job.epochs is None else job.epochs
        per_epoch = len(batch_bounds(samples, self.batch_size, self.last_batch)) - 1
        return -(-job.steps // per_epoch)


@functools.lru_cache(maxsize=4096)
def _bounds(samples: int, batch_size: int, last_batch: str, used: int) -> Tensor:
    """Where the batches of an epoch begin and end, of those among the first `used` samples."""
    return torch.tensor([bound for bound in batch_bounds(samples, batch_size, last_batch) if bound <= used])


_largest_batches: weakref.WeakKeyDictionary[Federation, dict[tuple[int, str], int]] = weakref.WeakKeyDictionary()


def _largest_batch(federation: Federation, batch_size: int, last_batch: str) -> int:
    """Samples of the largest batch of all clients, selected or not."""
    known, settings = _largest_batches.setdefault(federation, {}), (batch_size, last_batch)
    if settings not in known:
        bounds = [batch_bounds(n, *settings) for n in {len(index) for index in federation.train_index} if n]
        known[settings] = max((end - start for b in bounds for start, end in itertools.pairwise(b)), default=0)
    return known[settings]
