"""An executor that trains in forked worker processes, one client per core.

On a CPU, small models train fastest with one client per core and one thread each: two threads are slower than one on
a product of ten rows. Workers are forked, so they read the federation without a copy. Tensors are exchanged through
shared memory, tasks and replies as JSON.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedtilt.cluster.connection import is_ray_worker
from fedtilt.errors import InputError
from fedtilt.executors.in_process import ClientTraining
from fedtilt.training import BACKENDS, LocalJob, Trained

_STOP = b"stop"  # to a worker, in place of a task
_TENSORS_PER_JOB = len([field for field in fields(LocalJob) if "Tensor" in str(field.type)])


def can_fork(backend: str) -> bool:
    """Whether workers with this backend can be forked.

    They cannot on macOS, whose frameworks are unsafe after a fork, in a daemon process, in one of Ray, which has one
    CPU, or with autograd if it has started threads.
    """
    is_daemon = multiprocessing.current_process().daemon or is_ray_worker()
    possible = sys.platform.startswith("linux") and not is_daemon
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


class ForkedExecutor:
    """Trains in forked worker processes, one client at a time in each.

    Args:
        training: what clients train
        workers: the number of processes
        jobs: examples of all jobs of one client in a round; their tensors have the sizes of those to come
    """

    on_nodes = False

    def __init__(self, training: ClientTraining, workers: int, jobs: Sequence[LocalJob]) -> None:
        self._slots = 2 * workers  # a slot has the block of one client; per worker, one in training and one queued
        largest = max(_largest_tensor(job, training.model) for job in jobs)
        size = 4 * largest * _TENSORS_PER_JOB * len(jobs)  # of a block; the system gives pages when they are written
        memory = memoryview(mmap.mmap(-1, max(1, self._slots * size)))
        sent = Tensor | int | float | str | None  # through the block or as JSON
        constants = list(dict.fromkeys(v for job in jobs for v in vars(job).values() if not isinstance(v, sent)))
        self._blocks = [SharedBlock(memory[i * size : (i + 1) * size], constants) for i in range(self._slots)]
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe() for _ in range(workers)]
        self._connections = [parent_end for parent_end, _ in pipes]
        self._processes = []
        for i in range(workers):
            arguments = training, self._blocks, pipes, i
            process = context.Process(target=_serve, args=arguments, daemon=True, name=f"fedtilt-worker-{i}")
            with _no_fork_warning():
                process.start()
            self._processes.append(process)
        for _, worker_end in pipes:
            worker_end.close()

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Trained]]]:
        """Send clients to workers as they become free."""
        waiting = list(jobs)[::-1]
        free_slots = list(range(self._slots))
        load = dict.fromkeys(range(len(self._connections)), 0)  # worker → clients sent and not finished
        client_of_slot: dict[int, int] = {}
        results = ResultRows(jobs)
        while waiting or client_of_slot:
            while waiting and free_slots:
                worker = min(load, key=lambda i: (load[i], i))
                if load[worker] == 2:
                    break
                client, slot = waiting.pop(), free_slots.pop()
                described = self._blocks[slot].write_jobs(jobs[client])
                task = {"round": round, "client": client, "slot": slot, "jobs": described}
                self._connections[worker].send_bytes(json.dumps(task).encode())
                load[worker] += 1
                client_of_slot[slot] = client
            for connection in multiprocessing.connection.wait(self._connections):
                worker = self._connections.index(connection)  # type: ignore[arg-type]
                reply = self._receive(worker)
                load[worker] -= 1
                slot = reply["slot"]
                client = client_of_slot.pop(slot)
                trained = self._blocks[slot].read_results(reply["results"], partial(results.copy, client))
                free_slots.append(slot)
                yield client, trained

    def close(self) -> None:
        """Stop the workers; they also exit when this process dies."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the worker has died
                connection.send_bytes(_STOP)  # workers forked later have this end of the pipe too, so it stays open
            connection.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()

    def _receive(self, worker: int) -> dict[str, Any]:
        try:
            reply = json.loads(self._connections[worker].recv_bytes())
        except (EOFError, ConnectionResetError):
            self._processes[worker].join(timeout=1)
            code = self._processes[worker].exitcode
            raise RuntimeError(f"worker {worker} died with exit code {code} (out of memory?)") from None
        if "bad_input" in reply:
            raise InputError(reply["bad_input"])
        if "error" in reply:
            raise RuntimeError(f"worker {worker} failed:\n{reply['error']}")
        return reply


def _largest_tensor(job: LocalJob, model: nn.Module) -> int:
    """Numbers of the largest tensor of a job or its result."""
    sent = 0 if job.training is None else sum(tensor.numel() for tensor in job.training.sends(model).values())
    return max(sent, *(tensor.numel() for tensor in vars(job).values() if isinstance(tensor, Tensor)))


def _serve(training: ClientTraining, blocks: Sequence["SharedBlock"], pipes: Sequence[Any], number: int) -> None:
    """The worker of this number: trains one client after another, until its pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C, and then closes the pipe
    torch.set_num_threads(1)
    for i, (parent_end, worker_end) in enumerate(pipes):
        parent_end.close()  # otherwise the pipe would stay open when the parent dies
        if i != number:
            worker_end.close()
    connection = pipes[number][1]
    federation, model, backend, settings = training
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while (message := connection.recv_bytes()) != _STOP:
            task = json.loads(message)
            block = blocks[task["slot"]]
            try:
                jobs = block.read_jobs(task["jobs"])
                of_client = {task["client"]: jobs}
                (batches,) = settings.of_clients(federation, task["round"], of_client, torch.device("cpu")).values()
                results = block.write_results(BACKENDS[backend](model, jobs, [batches] * len(jobs)))
                reply = {"slot": task["slot"], "results": results}
            except InputError as error:
                reply = {"bad_input": str(error)}
            except Exception:
                reply = {"error": traceback.format_exc()}
            connection.send_bytes(json.dumps(reply).encode())


class ResultRows:
    """The trained models of a round: those of all clients are rows of one tensor, which need not be stacked later."""

    def __init__(self, clients: Iterable[int]) -> None:
        self._row = {client: i for i, client in enumerate(sorted(clients))}
        self._rows: dict[object, Tensor] = {}  # (C, P); the system gives pages when they are written

    def copy(self, client: int, kind: object, vector: Tensor) -> Tensor:
        """A copy of a client's vector (P,), in a row beside those of the same kind and size."""
        key = kind, len(vector)
        if key not in self._rows:
            self._rows[key] = vector.new_empty(len(self._row), len(vector))
        return self._rows[key][self._row[client]].copy_(vector)


class SharedBlock:
    """Shared memory for the tensors of one client: those of its jobs, then those of its results.

    Args:
        memory: its bytes
        constants: values of jobs that are neither tensors nor JSON (optimisers, losses); known before the fork
    """

    def __init__(self, memory: memoryview, constants: Sequence[object]) -> None:
        self._memory, self._constants = memory, constants

    def write_jobs(self, jobs: Sequence[LocalJob]) -> list[dict[str, Any]]:
        """Write the tensors of the jobs, each once; returns every field of every job as JSON."""
        offsets: dict[int, list[int]] = {}
        described = []
        for job in jobs:
            entry: dict[str, Any] = {}
            for field in fields(job):
                value = getattr(job, field.name)
                if isinstance(value, Tensor):
                    if id(value) not in offsets:
                        offsets[id(value)] = self._write(value, sum(size for _, size in offsets.values()))
                    entry[field.name] = {"tensor": offsets[id(value)]}
                elif value is None or isinstance(value, int | float | str):
                    entry[field.name] = value
                elif value in self._constants:
                    entry[field.name] = {"constant": self._constants.index(value)}
                else:
                    raise RuntimeError(f"{field.name} of a job is {value!r}, which the workers were not started with")
            described.append(entry)
        return described

    def read_jobs(self, described: Sequence[Mapping[str, Any]]) -> list[LocalJob]:
        """The jobs that `write_jobs` wrote; equal tensors are the same views into the memory."""
        views: dict[int, Tensor] = {}

        def value(entry: Any) -> Any:
            if not isinstance(entry, dict):
                return entry
            if "constant" in entry:
                return self._constants[entry["constant"]]
            offset, size = entry["tensor"]
            return views.setdefault(offset, self._view(offset, size))

        return [LocalJob(**{key: value(entry) for key, entry in job.items()}) for job in described]

    def write_results(self, results: Sequence[Trained]) -> list[list[Any]]:
        """Write trained models over the jobs; returns where each of their tensors is, or None."""
        described, used = [], 0
        for result in results:
            entry = []
            for tensor in result:
                entry.append(None if tensor is None else self._write(tensor, used))
                used += 0 if tensor is None else 4 * tensor.numel()
            described.append(entry)
        return described

    def read_results(
        self, described: Sequence[Sequence[Any]], copy: Callable[[tuple[int, int], Tensor], Tensor]
    ) -> list[Trained]:
        """The trained models that `write_results` wrote, by `copy` of (number of the job, of the tensor) and a view."""

        def read(place: tuple[int, int], entry: Any) -> Any:
            return None if entry is None else copy(place, self._view(*entry))

        return [Trained(*(read((i, k), e) for k, e in enumerate(entries))) for i, entries in enumerate(described)]

    def _write(self, tensor: Tensor, offset: int) -> list[int]:
        size = 4 * tensor.numel()
        if tensor.dtype != torch.float32 or tensor.dim() != 1 or offset + size > len(self._memory):
            raise RuntimeError(f"no room for {tensor.dtype} of shape {tuple(tensor.shape)} in a block of the workers")
        self._view(offset, size).copy_(tensor)
        return [offset, size]

    def _view(self, offset: int, size: int) -> Tensor:
        return torch.frombuffer(self._memory[offset : offset + size], dtype=torch.float32)
