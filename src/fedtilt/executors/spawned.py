"""An executor that trains in processes started anew, one client at a time in each: for the loop on a GPU.

A GPU mostly waits for the Python of a loop, and the threads of a process take turns. Processes help, but cannot be
forked from one that uses CUDA: they import everything again, for which a short run is over too soon.
"""

import copy
import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, as_completed
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from fedtilt.cluster.connection import is_ray_worker
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.training import LocalJob, Trained
from fedtilt.training.precision import fp32_deterministic

if TYPE_CHECKING:
    from loky import ProcessPoolExecutor

_WORKERS = 4  # more gain next to nothing, and each takes half a GiB of the GPU's memory besides its models
_LONG_SECONDS = 60.0  # a run that would last longer without processes is worth their start


def default_workers(cores: int, clients: int) -> int:
    """How many processes help; 0 in a process that may not start any."""
    workers = min(_WORKERS, cores, clients)
    is_worker = multiprocessing.current_process().daemon or is_ray_worker()
    return 0 if is_worker or workers == 1 else workers


class SpawnedExecutor:
    """Trains in this process until it is clear that the run is long; then in processes, bit-identical.

    Args:
        training: what clients train
        device: where to train
        precision: of matrix products on CUDA
        workers: the number of processes
        rounds: the last round of the run
        at_once: whether the processes start in the first round, however short the run is
        notice: called with messages for the user
    """

    on_nodes = False

    def __init__(
        self, training: ClientTraining, device: torch.device, precision: str, *, workers: int, rounds: int,
        at_once: bool, notice: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._training, self._device, self._precision = training, device, precision
        self._workers, self._rounds, self._at_once, self._notice = workers, rounds, at_once, notice
        self._in_process = InProcessExecutor(training, device, precision)
        self._seconds = 0.0  # of the last round, in this process
        self._pool: ProcessPoolExecutor | None = None

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Trained]]]:
        """Train all jobs, one client after the other or, in processes, as they become free."""
        is_long = self._at_once or self._seconds * (self._rounds - round + 1) > _LONG_SECONDS
        left = dict(jobs)
        if self._workers and is_long:
            for client, trained in self._train_in_pool(round, jobs):
                del left[client]
                yield client, trained
        started = time.perf_counter()
        yield from self._in_process.train(round, left)
        self._seconds = time.perf_counter() - started

    def _train_in_pool(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Trained]]]:
        """The results of all clients; if processes cannot go on, of those that were trained before."""
        from loky.process_executor import TerminatedWorkerError

        try:
            self._pool = self._pool or self._start(next(iter(jobs.values())))
            client_of = {self._pool.submit(_train, round, client, jobs[client]): client for client in jobs}
            for future in as_completed(client_of):
                yield client_of.pop(future), [_copied(result) for result in future.result()]
        except (torch.OutOfMemoryError, TerminatedWorkerError, _CannotStartError) as error:
            self.close()
            why = str(error)
            if isinstance(error, torch.OutOfMemoryError):
                why = "the GPU has too little memory; fewer may fit"
            elif isinstance(error, TerminatedWorkerError):
                why = "one of them was killed, mostly since this machine has too little memory; fewer may fit"
            self._notice(
                f"workers = {self._workers} cannot train here ({why}): clients train one after the other from round "
                f"{round} on"
            )
            self._workers = 0

    def _start(self, jobs: Sequence[LocalJob]) -> "ProcessPoolExecutor":
        """The processes, one of which has received jobs such as these and shared a tensor."""
        from loky import ProcessPoolExecutor

        sent = self._training._replace(model=copy.deepcopy(self._training.model).cpu())
        shared: dict[type, Any] = {Tensor: _shared}
        pool = ProcessPoolExecutor(
            self._workers, job_reducers=shared, result_reducers=shared, initializer=_start_worker,
            initargs=(sent, str(self._device), self._precision),
        )  # fmt: skip
        try:
            pool.submit(_answer, Trained(torch.zeros(1, device=self._device)), jobs).result()
        except Exception as error:  # a loss may not travel, and not every system lets processes share a GPU's memory
            pool.shutdown(kill_workers=True)
            if isinstance(error, BrokenExecutor):
                raise
            raise _CannotStartError(f"{type(error).__name__}: {error}".partition("\n")[0]) from error
        return pool

    def close(self) -> None:
        """End the processes."""
        if self._pool is not None:
            self._pool.shutdown(kill_workers=True)
            self._pool = None
        self._in_process.close()


class _CannotStartError(Exception):
    """Why processes cannot be sent jobs, or share the memory of the GPU."""


class _Worker:
    """What a worker process has, from its start on."""

    device: torch.device
    executor: InProcessExecutor


def _start_worker(training: ClientTraining, device: str, precision: str) -> None:
    from loky import process_executor

    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf  # it would start a process again that has loaded CUDA's libraries
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then ends its workers
    torch.set_num_threads(1)
    _Worker.device = torch.device(device)
    with fp32_deterministic(_Worker.device):
        on_device = training._replace(model=training.model.to(_Worker.device))
        _Worker.executor = InProcessExecutor(on_device, _Worker.device, precision)


def _train(round: int, client: int, jobs: list[LocalJob]) -> list[Trained]:
    with fp32_deterministic(_Worker.device):
        ((_, trained),) = _Worker.executor.train(round, {client: jobs})
    return trained


def _answer(result: Trained, _: Sequence[LocalJob]) -> Trained:
    return _copied(result)


def _shared(tensor: Tensor) -> Any:
    """How a tensor reaches another process: on a GPU, which both use, where its memory is."""
    return reduce_tensor(tensor) if tensor.is_cuda else tensor.__reduce_ex__(4)


def _copied(result: Trained) -> Trained:
    """The same in memory of this process; that of another goes back to it."""
    return Trained._make(None if tensor is None else tensor.clone() for tensor in result)
