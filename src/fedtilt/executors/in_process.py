"""Executors train the local jobs of many clients: in this process, in forked workers, or on a Ray cluster.

Every executor gives bit-identical results: whatever is random depends on (seed, round, client, purpose) alone.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import nn

from fedtilt.data import Federation
from fedtilt.data.inputs import byte_count
from fedtilt.executors.client_batches import BatchSettings
from fedtilt.training import BACKENDS, Batches, LocalJob, Trained, stacked

_MAX_PREFETCHED_BYTES = 2**30  # of samples that are on the device before their round


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
        self._prefetched: tuple[object, dict[int, Batches]] = (None, {})  # batches, and what they were made for
        self._federation, self._model, self._device = training.federation.to(device), training.model, device
        self._batch_settings = training.batch_settings
        self._stack_size = stack_size if training.backend == "stacked" else 1
        self._train, self._precision = partial(BACKENDS[training.backend], precision=precision), precision

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
                self._prefetch(round + 1, jobs, batches)
            for client in clients:
                yield client, [next(trained) for _ in jobs[client]]

    def _batches(self, round: int, jobs: Mapping[int, Sequence[LocalJob]]) -> dict[int, Batches]:
        (made_for, batches), self._prefetched = self._prefetched, (None, {})
        if made_for == _needs(round, jobs):
            return batches
        return self._batch_settings.of_clients(self._federation, round, jobs, self._device)

    def _prefetch(self, round: int, jobs: Mapping[int, Sequence[LocalJob]], batches: Mapping[int, Batches]) -> None:
        """Make and load the batches of a round as if its jobs were as these; if they are not, they are made again."""
        size = sum(byte_count(data.x) for data in batches.values())
        if self._selected is None or size > _MAX_PREFETCHED_BYTES:
            return
        like = next(iter(jobs.values()))
        coming = dict.fromkeys(self._selected(round), like)
        with contextlib.suppress(torch.cuda.OutOfMemoryError):  # the round then makes and loads them in time
            made = self._batch_settings.of_clients(self._federation, round, coming, self._device)
            self._prefetched = _needs(round, coming), made
            of_jobs = [made[client] for client in coming for _ in like]
            stacked.load_ahead(self._model, [*like] * len(coming), of_jobs, self._precision)

    def close(self) -> None:
        """Release the buffers of the stacked backend."""
        stacked.clear_cache()


def _needs(round: int, jobs: Mapping[int, Sequence[LocalJob]]) -> object:
    """What the batches of these clients depend on."""
    return round, {
        client: [(j.epochs, j.steps, j.measures_loss) for j in of_client] for client, of_client in jobs.items()
    }
