"""An executor that trains in processes started anew, one client at a time in each: for the loop on a GPU.

A GPU mostly waits for the Python of a loop, and the threads of a process take turns. Processes help, but cannot be
forked from one that uses CUDA: they import everything again, for which a short run is over too soon.
"""

import copy
import math
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from fedtilt.cluster.connection import is_ray_worker
from fedtilt.errors import InputError
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.training import LocalJob, Trained
from fedtilt.training.precision import fp32_deterministic

if TYPE_CHECKING:
    from loky import ProcessPoolExecutor

_WORKERS = 4  # more gain next to nothing, and each takes half a GiB of the GPU's memory besides its models and data
_LONG_SECONDS = 60.0  # a run that would last longer without processes is worth their start


def can_start_processes() -> bool:
    """Whether this process may start others: it is none of Ray's, and no daemon."""
    return not multiprocessing.current_process().daemon and not is_ray_worker()


def default_workers(cores: int, clients: int, data_bytes: int, free_bytes: int | None) -> int:
    """How many processes help and may copy the data into half of the free memory; 0: none."""
    copies = _WORKERS if free_bytes is None else free_bytes // (2 * max(1, data_bytes))
    workers = min(_WORKERS, cores, clients, copies)
    return workers if workers > 1 and can_start_processes() else 0


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
        self._seconds: list[float] = []  # of the rounds that trained here alone
        self._pool: ProcessPoolExecutor | None = None

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Trained]]]:
        """Train all jobs, one client after the other or, in processes, as they become free."""
        left = dict(jobs)
        if self._workers and (self._pool is not None or self._is_long(round)):
            for client, trained in self._train_in_pool(round, jobs):
                del left[client]
                yield client, trained
        here, seconds, results = len(left) == len(jobs), 0.0, self._in_process.train(round, dict(left))
        while left:
            started = time.perf_counter()
            client, trained = next(results)
            seconds += time.perf_counter() - started
            del left[client]
            yield client, trained
        if here:
            self._seconds.append(seconds)

    def _is_long(self, round: int) -> bool:
        """Whether the rounds from this one on are worth the start; the first round loads libraries, too."""
        if self._at_once:
            return True
        shortest = min(self._seconds, default=0.0)
        is_known = len(self._seconds) > 1 or shortest > _LONG_SECONDS
        return is_known and shortest * (self._rounds - round + 1) > _LONG_SECONDS

    def _train_in_pool(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Trained]]]:
        """The results of all clients; if processes cannot go on, of those that were trained before."""
        try:
            if self._pool is None:
                self._start(next(iter(jobs.values())))
            assert self._pool is not None
            client_of = {self._pool.submit(_train, round, client, jobs[client]): client for client in jobs}
            for future in as_completed(client_of):
                yield client_of.pop(future), [_copied(result) for result in future.result()]
        except InputError:
            raise
        except Exception as error:  # an error of the model comes again where the other clients train
            self._notice(
                f"workers = {self._workers} cannot train here ({_reason(error)}): clients train one after the other "
                f"from round {round} on"
            )
            self._workers = 0
            self._end_pool()

    def _start(self, jobs: Sequence[LocalJob]) -> None:
        """Start the processes; one of them receives jobs such as these, and shares a tensor."""
        from loky import ProcessPoolExecutor

        sent = self._training._replace(model=copy.deepcopy(self._training.model).cpu())
        shared: dict[type, Any] = {Tensor: _shared}
        self._pool = ProcessPoolExecutor(
            self._workers, job_reducers=shared, result_reducers=shared, initializer=_start_worker,
            initargs=(sent, str(self._device), self._precision),
        )  # fmt: skip
        with _interrupts_ignored():  # the parent handles Ctrl-C, and then ends its workers
            answer = self._pool.submit(_answer, Trained(torch.zeros(1, device=self._device)), jobs)
        answer.result()

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(kill_workers=True)
            self._pool = None

    def close(self) -> None:
        """End the processes."""
        self._end_pool()
        self._in_process.close()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes that start in this block do not see Ctrl-C, not even while they import."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():  # who may set no handler
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _reason(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "the GPU has too little memory; fewer may fit"
    if "SIGKILL" in str(error):
        return "one was killed, mostly since this machine has too little memory; fewer may fit"
    return f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]


class _Worker:
    """What a worker process has, from its start on."""

    device: torch.device
    executor: InProcessExecutor | Exception  # or why there is none

    @classmethod
    def started(cls) -> InProcessExecutor:
        """The executor; raises what its start has raised."""
        if isinstance(cls.executor, Exception):
            raise cls.executor
        return cls.executor


def _start_worker(training: ClientTraining, device: str, precision: str) -> None:
    from loky import process_executor

    process_executor._MAX_MEMORY_LEAK_SIZE = math.inf  # it would start a process again that has loaded CUDA's libraries
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it was not ignored from the start on
    torch.set_num_threads(1)
    _Worker.device = torch.device(device)
    try:
        with fp32_deterministic(_Worker.device):
            on_device = training._replace(model=training.model.to(_Worker.device))
            _Worker.executor = InProcessExecutor(on_device, _Worker.device, precision)
    except Exception as error:
        _Worker.executor = error


def _train(round: int, client: int, jobs: list[LocalJob]) -> list[Trained]:
    with fp32_deterministic(_Worker.device):
        ((_, trained),) = _Worker.started().train(round, {client: jobs})
    return trained


def _answer(result: Trained, _: Sequence[LocalJob]) -> Trained:
    _Worker.started()
    return _copied(result)


def _shared(tensor: Tensor) -> Any:
    """How a tensor reaches another process: on a GPU, which both use, where its memory is."""
    return reduce_tensor(tensor) if tensor.is_cuda else tensor.__reduce_ex__(4)


def _copied(result: Trained) -> Trained:
    """The same in memory of this process; that of another goes back to it."""
    return Trained._make(None if tensor is None else tensor.clone() for tensor in result)
