"""Executors train the local jobs of many clients: in this process, or in one forked worker process per core.

On a CPU, small models train fastest with one client per core and one thread each: two threads are slower than one on
a product of ten rows. Workers are forked, so they read the federation without a copy. Models are exchanged through
shared memory, tasks and replies as JSON. Every executor gives the same bits.
"""

import contextlib
import json
import mmap
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from fedtilt.data import Federation
from fedtilt.rounds.settings import TrainSettings
from fedtilt.training import BACKENDS, Backend, Batches, LocalJob, make_batches, stacked


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

    def batches(
        self, federation: Federation, round: int, client: int, jobs: Sequence[LocalJob], device: torch.device
    ) -> Batches:
        """The batches of one client in one round, with outliers, for the longest of its jobs."""
        x, y = federation.train(client, seed=self.seed, round=round, device=device)
        epochs = max(self.epochs if job.epochs is None else job.epochs for job in jobs)
        return make_batches(
            x, y, seed=self.seed, round=round, client=client, epochs=epochs, batch_size=self.batch_size,
            last_batch=self.last_batch,
        )  # fmt: skip


class Executor(Protocol):
    """Trains the local jobs of several clients; yields each client with its trained models, in any order."""

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Tensor]]]:
        """Train the jobs of these clients in this round."""
        ...

    def close(self) -> None:
        """Release memory and processes."""
        ...


@contextlib.contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread for small CPU products: faster, and the same bits as in a worker."""
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
        federation: the clients' data
        model: the architecture
        backend: the name of a backend
        batch_settings: the batches of every client
        device: where to train
        precision: of matrix products on CUDA
    """

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        backend: str,
        batch_settings: BatchSettings,
        device: torch.device,
        precision: str,
    ) -> None:
        self._federation, self._model, self._device = federation.to(device), model, device
        self._batch_settings = batch_settings
        self._stacked = backend == "stacked"
        self._train: Backend = partial(stacked.train, precision=precision) if self._stacked else BACKENDS[backend]

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Tensor]]]:
        """Train all jobs; with the stacked backend, all clients are yielded at the end."""
        groups = [list(jobs)] if self._stacked else [[client] for client in jobs]  # clients trained together
        for clients in groups:
            group_jobs, group_batches = [], []
            for client in clients:
                batches = self._batch_settings.batches(self._federation, round, client, jobs[client], self._device)
                group_jobs += jobs[client]
                group_batches += [batches] * len(jobs[client])
            with one_thread(self._device):
                trained = iter(self._train(self._model, group_jobs, group_batches))
            for client in clients:
                yield client, [next(trained) for _ in jobs[client]]

    def close(self) -> None:
        """Release the buffers of the stacked backend."""
        stacked.clear_cache()


def can_fork(backend: str) -> bool:
    """Whether workers with this backend can be forked.

    They cannot on macOS, whose frameworks are unsafe after a fork, in a daemon process, or with autograd if it has
    started threads.
    """
    possible = sys.platform.startswith("linux") and not multiprocessing.current_process().daemon
    return possible and (backend != "autograd" or not torch.cuda.is_available() or _autograd_works_after_fork())


def _autograd_works_after_fork() -> bool:
    """Test it: with a CUDA device, autograd starts threads on first use, and then fails in a forked child."""
    with _no_fork_warning():
        child = os.fork()
    if not child:
        code = 1
        try:
            torch.ones((), requires_grad=True).backward()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def _no_fork_warning() -> Iterator[None]:
    """Silence Python's warning about forks with threads: our children use one thread and no lock of the parent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def cores() -> int:
    """The number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_JOB_SETTINGS = [field.name for field in fields(LocalJob) if field.name not in ("start", "anchor")]


class ForkedExecutor:
    """Trains in forked worker processes, one client at a time in each.

    Args:
        federation: the clients' data
        model: the architecture
        backend: the name of a backend
        batch_settings: the batches of every client
        workers: the number of processes
        jobs_per_client: at most so many jobs of one client in a round
    """

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        backend: str,
        batch_settings: BatchSettings,
        workers: int,
        jobs_per_client: int,
    ) -> None:
        parameters = sum(p.numel() for p in model.parameters())
        self._slots = 2 * workers  # a slot has the models of one client; per worker, one in training and one queued
        self._jobs_per_client = jobs_per_client
        rows = 2 * jobs_per_client * self._slots  # a slot has two rows per job: its model and its anchor
        shared_memory = mmap.mmap(-1, max(1, rows * parameters * 4))
        self._models = torch.frombuffer(shared_memory, dtype=torch.float32).reshape(rows, parameters)
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe() for _ in range(workers)]
        self._connections = [parent_end for parent_end, _ in pipes]
        self._processes = []
        for i in range(workers):
            worker = _Worker(federation, model, BACKENDS[backend], batch_settings, self._models, pipes, i)
            process = context.Process(target=worker.serve, daemon=True, name=f"fedtilt-worker-{i}")
            with _no_fork_warning():
                process.start()
            self._processes.append(process)
        for _, worker_end in pipes:
            worker_end.close()

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Tensor]]]:
        """Send clients to workers as they become free."""
        waiting = list(jobs)[::-1]
        free_slots = list(range(self._slots))
        load = dict.fromkeys(range(len(self._connections)), 0)  # worker → clients sent and not finished
        client_of_slot: dict[int, int] = {}
        while waiting or client_of_slot:
            while waiting and free_slots:
                worker = min(load, key=lambda i: (load[i], i))
                if load[worker] == 2:
                    break
                client, slot = waiting.pop(), free_slots.pop()
                self._connections[worker].send_bytes(self._task(round, client, slot, jobs[client]))
                load[worker] += 1
                client_of_slot[slot] = client
            for connection in multiprocessing.connection.wait(self._connections):
                worker = self._connections.index(connection)  # type: ignore[arg-type]
                reply = self._receive(worker)
                load[worker] -= 1
                slot = reply["slot"]
                client = client_of_slot.pop(slot)
                first = self._first_row(slot)
                trained = [self._models[first + 2 * i].clone() for i in range(len(jobs[client]))]
                free_slots.append(slot)
                yield client, trained

    def close(self) -> None:
        """Stop the workers; they also exit when this process dies."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()

    def _first_row(self, slot: int) -> int:
        return 2 * self._jobs_per_client * slot

    def _task(self, round: int, client: int, slot: int, jobs: Sequence[LocalJob]) -> bytes:
        """Write the tensors of the jobs into the slot; their settings as JSON."""
        if len(jobs) > self._jobs_per_client:
            raise RuntimeError(f"client {client} has {len(jobs)} jobs; there is room for {self._jobs_per_client}")
        first = self._first_row(slot)
        for i, job in enumerate(jobs):
            self._models[first + 2 * i] = job.start
            self._models[first + 2 * i + 1] = job.anchor
        settings = [{key: getattr(job, key) for key in _JOB_SETTINGS} for job in jobs]
        return json.dumps({"round": round, "client": client, "slot": slot, "row": first, "jobs": settings}).encode()

    def _receive(self, worker: int) -> dict[str, Any]:
        try:
            reply = json.loads(self._connections[worker].recv_bytes())
        except (EOFError, ConnectionResetError):
            self._processes[worker].join(timeout=1)
            code = self._processes[worker].exitcode
            raise RuntimeError(f"worker {worker} died with exit code {code} (out of memory?)") from None
        if "error" in reply:
            raise RuntimeError(f"worker {worker} failed:\n{reply['error']}")
        return reply


@dataclass
class _Worker:
    """The worker's side of `ForkedExecutor`: runs tasks until its pipe closes."""

    federation: Federation
    model: nn.Module
    backend: Backend
    batch_settings: BatchSettings
    models: Tensor  # (rows, P), shared with the parent
    pipes: list[tuple[Any, Any]]  # (parent's end, worker's end) of every worker
    number: int

    def serve(self) -> None:
        """Train one client after another."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then closes the pipe
        torch.set_num_threads(1)
        for i, (parent_end, worker_end) in enumerate(self.pipes):
            parent_end.close()  # otherwise the pipe would stay open when the parent dies
            if i != self.number:
                worker_end.close()
        connection = self.pipes[self.number][1]
        while True:
            try:
                task = json.loads(connection.recv_bytes())
            except (EOFError, ConnectionResetError):
                return
            try:
                self._train(task)
                reply = {"slot": task["slot"]}
            except Exception:
                reply = {"error": traceback.format_exc()}
            try:
                connection.send_bytes(json.dumps(reply).encode())
            except (BrokenPipeError, ConnectionResetError):
                return

    def _train(self, task: dict[str, Any]) -> None:
        rows = range(task["row"], task["row"] + 2 * len(task["jobs"]), 2)
        jobs = [
            LocalJob(start=self.models[row], anchor=self.models[row + 1], **settings)
            for row, settings in zip(rows, task["jobs"], strict=True)
        ]
        batches = self.batch_settings.batches(self.federation, task["round"], task["client"], jobs, torch.device("cpu"))
        trained = self.backend(self.model, jobs, [batches] * len(jobs))
        for row, model in zip(rows, trained, strict=True):
            self.models[row] = model
