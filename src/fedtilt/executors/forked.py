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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedtilt.cluster.connection import is_ray_worker
from fedtilt.errors import InputError
from fedtilt.executors.in_process import ClientTraining
from fedtilt.executors.shared_block import TENSORS_PER_JOB, SharedBlock, is_constant
from fedtilt.training import BACKENDS, LocalJob, Trained

_STOP = b"stop"  # to a worker, in place of a task


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
        largest = max(tensor.numel() for job in jobs for tensor in vars(job).values() if isinstance(tensor, Tensor))
        size = 4 * largest * TENSORS_PER_JOB * len(jobs)  # of a block; the system gives pages when they are written
        memory = memoryview(mmap.mmap(-1, max(1, self._slots * size)))
        constants = list(dict.fromkeys(value for job in jobs for value in vars(job).values() if is_constant(value)))
        self._blocks = [SharedBlock(memory[i * size : (i + 1) * size], constants) for i in range(self._slots)]
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe() for _ in range(workers)]
        self._connections = [parent_end for parent_end, _ in pipes]
        self._processes = []
        for i in range(workers):
            worker = _Worker(training, self._blocks, pipes, i)
            process = context.Process(target=worker.serve, daemon=True, name=f"fedtilt-worker-{i}")
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
                trained = self._blocks[slot].read_results(reply["results"])
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


@dataclass
class _Worker:
    """The worker's side of `ForkedExecutor`: runs tasks until its pipe closes."""

    training: ClientTraining
    blocks: list[SharedBlock]  # shared with the parent
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
                message = connection.recv_bytes()
            except (EOFError, ConnectionResetError):
                return
            if message == _STOP:
                return
            task = json.loads(message)
            try:
                reply = {"slot": task["slot"], "results": self._train(task)}
            except InputError as error:
                reply = {"bad_input": str(error)}
            except Exception:
                reply = {"error": traceback.format_exc()}
            try:
                connection.send_bytes(json.dumps(reply).encode())
            except (BrokenPipeError, ConnectionResetError):
                return

    def _train(self, task: dict[str, Any]) -> list[list[Any]]:
        block = self.blocks[task["slot"]]
        jobs = block.read_jobs(task["jobs"])
        federation, model, backend, settings = self.training
        batches = settings.batches(federation, task["round"], task["client"], jobs, torch.device("cpu"))
        return block.write_results(BACKENDS[backend](model, jobs, [batches] * len(jobs)))
