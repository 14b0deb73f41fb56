"""Executors train the local jobs of many clients: in this process, in forked workers, or on a Ray cluster.

Every executor gives bit-identical results: whatever is random depends on (seed, round, client, purpose) alone.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data import Federation
from fedtilt.data.inputs import split
from fedtilt.devices import upload
from fedtilt.training import BACKENDS, Batches, LocalJob, Trained, stacked
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
        alike: dict[tuple[int, bool], dict[int, int]] = {}  # epochs, whether it needs a part of its samples → clients
        for client, of_client in jobs.items():
            samples = len(federation.train_index[client])
            used = self._used(samples, of_client)
            epochs = max(self._epochs(job, samples) for job in of_client)
            alike.setdefault((epochs, used < samples), {})[client] = used
        found: dict[int, Batches] = {}
        for (epochs, _), clients in alike.items():
            found |= self._alike(federation, round, clients, epochs, device)
        return found

    def _alike(
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


_BYTES_AHEAD = 2**30  # of samples, at most, that are on the device before their round


class ClientTraining(NamedTuple):
    """What clients train, on which data and how; the same for every executor."""

    federation: Federation
    model: nn.Module  # the architecture
    backend: str  # its name
    batch_settings: BatchSettings


class Executor(Protocol):
    """Trains the local jobs of several clients; yields each client with its trained models, in any order."""

    @property
    def on_nodes(self) -> bool:
        """Whether the next trained models stay on the nodes of a cluster, and are lost with a node."""
        ...

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Trained]]]:
        """Train the jobs of these clients in this round."""
        ...

    def close(self) -> None:
        """Release memory and processes."""
        ...


@contextlib.contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread for small CPU products: faster, and bit-identical to a worker."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class InProcessExecutor:
    """Trains in this process; with the stacked backend, all clients together.

    Args:
        training: what clients train
        device: where to train
        precision: of matrix products on CUDA
        stack_size: clients that the stacked backend trains together; None: all
        selected: the clients of a round, whose batches are made while the device still trains the round before; None:
            they are made when the round begins
    """

    on_nodes = False

    def __init__(
        self,
        training: ClientTraining,
        device: torch.device,
        precision: str,
        stack_size: int | None = None,
        selected: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self._selected = selected
        self._ahead: tuple[object, dict[int, Batches]] = (None, {})  # batches that were made ahead, and for what
        self._federation, self._model, self._device = training.federation.to(device), training.model, device
        self._batch_settings = training.batch_settings
        self._stack_size = stack_size if training.backend == "stacked" else 1
        self._train = partial(BACKENDS[training.backend], precision=precision)

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Trained]]]:
        """Train all jobs; with the stacked backend, the clients of a stack are yielded at its end."""
        selected, size = list(jobs), self._stack_size or len(jobs)
        for clients in (selected[i : i + size] for i in range(0, len(selected), size)):
            of_group = {client: jobs[client] for client in clients}
            batches = self._batches(round, of_group)
            group_jobs = [job for client in clients for job in jobs[client]]
            group_batches = [batches[client] for client in clients for _ in jobs[client]]
            with one_thread(self._device):
                trained = iter(self._train(self._model, group_jobs, group_batches))
            if len(clients) == len(jobs):
                self._make_ahead(round + 1, jobs, batches)
            for client in clients:
                yield client, [next(trained) for _ in jobs[client]]

    def _batches(self, round: int, jobs: Mapping[int, Sequence[LocalJob]]) -> dict[int, Batches]:
        (made_for, batches), self._ahead = self._ahead, (None, {})
        if made_for == _needs(round, jobs):
            return batches
        return self._batch_settings.of_clients(self._federation, round, jobs, self._device)

    def _make_ahead(self, round: int, jobs: Mapping[int, Sequence[LocalJob]], batches: Mapping[int, Batches]) -> None:
        """Make the batches of a round as if its jobs were as long as these; if they are not, they are made again."""
        x = next(iter(batches.values())).x
        bytes_of_one = sum(t[:1].nbytes for t in (x.values() if isinstance(x, dict) else (x,)))
        size = bytes_of_one * sum(data.y.shape[0] for data in batches.values())
        if self._selected is None or size > _BYTES_AHEAD:
            return
        like = next(iter(jobs.values()))
        coming = dict.fromkeys(self._selected(round), like)
        made = self._batch_settings.of_clients(self._federation, round, coming, self._device)
        self._ahead = _needs(round, coming), made

    def close(self) -> None:
        """Release the buffers of the stacked backend."""
        stacked.clear_cache()


def _needs(round: int, jobs: Mapping[int, Sequence[LocalJob]]) -> object:
    """What the batches of these clients depend on."""
    return round, {
        client: [(j.epochs, j.steps, j.measures_loss) for j in of_client] for client, of_client in jobs.items()
    }
