"""Executors train the local jobs of many clients: in this process, in forked workers, or on a Ray cluster.

Every executor gives bit-identical results: whatever is random depends on (seed, round, client, purpose) alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from fedtilt.data import Federation
from fedtilt.data.inputs import Inputs
from fedtilt.training import BACKENDS, Batches, LocalJob, Trained, make_batches, stacked
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

    @classmethod
    def of(cls, settings: TrainSettings) -> Self:
        """Those among the training settings."""
        return cls(**{field.name: getattr(settings, field.name) for field in fields(cls)})

    def of_client(
        self, federation: Federation, round: int, client: int, jobs: Sequence[LocalJob], device: torch.device
    ) -> Batches:
        """The batches of one client in one round, with outliers, for the longest of its jobs."""
        numbers = torch.arange(len(federation.train_index[client]), device=device)
        batches = self.make(numbers, numbers, round, client, jobs)  # of the numbers of samples
        used = self._used(batches, jobs)
        x, y = federation.train(client, seed=self.seed, round=round, device=device, rows=used)
        groups = federation.train_groups(client, device=device)
        weights = federation.train_weights(client, device=device)
        if used is not None:
            order, bounds = torch.arange(len(used), device=device)[None], batches.bounds[batches.bounds <= len(used)]
            batches = replace(batches, order=order, bounds=bounds)
            groups = {name: codes[used] for name, codes in groups.items()}
            weights = None if weights is None else weights[used]
        return replace(batches, x=x, y=y, groups=groups, weights=weights)

    @staticmethod
    def _used(batches: Batches, jobs: Sequence[LocalJob]) -> Tensor | None:
        """The samples that these jobs train on, in order, if they make a few steps; None: all."""
        steps = max(batches.steps(job) for job in jobs)
        if steps >= batches.per_epoch or any(job.measures_loss for job in jobs):
            return None
        return batches.order[0, : int(batches.bounds[steps])]

    def make(
        self, x: Inputs, y: Tensor, round: int, client: int, jobs: Sequence[LocalJob]
    ) -> Batches:  # fmt: skip
        """The batches of these samples."""
        epochs = max(self._epochs(job, len(y)) for job in jobs)
        return make_batches(
            x, y, seed=self.seed, round=round, client=client, epochs=epochs, batch_size=self.batch_size,
            last_batch=self.last_batch, groups={},
        )  # fmt: skip

    def _epochs(self, job: LocalJob, samples: int) -> int:
        """Passes over the data that a job needs."""
        if job.steps is None:
            return self.epochs if job.epochs is None else job.epochs
        per_epoch = len(batch_bounds(samples, self.batch_size, self.last_batch)) - 1
        return -(-job.steps // per_epoch)


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
    """

    on_nodes = False

    def __init__(
        self, training: ClientTraining, device: torch.device, precision: str, stack_size: int | None = None
    ) -> None:
        self._federation, self._model, self._device = training.federation.to(device), training.model, device
        self._batch_settings = training.batch_settings
        self._stack_size = stack_size if training.backend == "stacked" else 1
        self._train = partial(BACKENDS[training.backend], precision=precision)

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Trained]]]:
        """Train all jobs; with the stacked backend, the clients of a stack are yielded at its end."""
        selected, size = list(jobs), self._stack_size or len(jobs)
        for clients in (selected[i : i + size] for i in range(0, len(selected), size)):
            group_jobs, group_batches = [], []
            for client in clients:
                batches = self._batch_settings.of_client(self._federation, round, client, jobs[client], self._device)
                group_jobs += jobs[client]
                group_batches += [batches] * len(jobs[client])
            with one_thread(self._device):
                trained = iter(self._train(self._model, group_jobs, group_batches))
            for client in clients:
                yield client, [next(trained) for _ in jobs[client]]

    def close(self) -> None:
        """Release the buffers of the stacked backend."""
        stacked.clear_cache()
