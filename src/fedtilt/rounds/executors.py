"""Where lanes are trained: in this process, or one worker process per core, a client at a time.

On a CPU a small model is fastest one client per core with one thread each: two threads on a product of ten rows are
slower than one. Workers are forked, so they see the federation without a copy; models pass through a shared block of
memory, tasks and answers as JSON. Whatever the placement, a lane's result has the same bits.
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
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedtilt.data import Federation
from fedtilt.training import BACKENDS, Backend, Batches, LocalJob, make_batches, stacked


@dataclass(frozen=True, kw_only=True)
class BatchSchedule:
    """What every client is fed in every round."""

    seed: int
    epochs: int
    batch_size: int

    def batches(self, federation: Federation, round: int, client: int, device: torch.device) -> Batches:
        """A client's batches of one round, outliers included."""
        x, y = federation.train(client, seed=self.seed, round=round, device=device)
        return make_batches(
            x, y, seed=self.seed, round=round, client=client, epochs=self.epochs, batch_size=self.batch_size
        )


class Executor(Protocol):
    """Trains the lanes of several clients; yields each client with its trained lanes, in any order."""

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Tensor]]]:
        """Train the lanes of these clients."""
        ...

    def close(self) -> None:
        """Give back what is held."""
        ...


@contextlib.contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """One thread for small CPU products: faster, and the same bits as in a worker."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class InProcessExecutor:
    """In this process; with the stacked way, all clients in one step."""

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        backend: str,
        batch_schedule: BatchSchedule,
        device: torch.device,
        precision: str,
    ) -> None:
        self._federation, self._model, self._diet, self._device = federation.to(device), model, batch_schedule, device
        self._together = backend == "stacked"
        self._train: Backend = partial(stacked.train, precision=precision) if self._together else BACKENDS[backend]

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Tensor]]]:
        """Train all lanes; a stack yields at its end, otherwise each client when it is done."""
        waves = [list(jobs)] if self._together else [[client] for client in jobs]
        for wave in waves:
            flat, feeds = [], []
            for client in wave:
                batches = self._diet.batches(self._federation, round, client, self._device)
                flat += jobs[client]
                feeds += [batches] * len(jobs[client])
            with one_thread(self._device):
                trained = iter(self._train(self._model, flat, feeds))
            for client in wave:
                yield client, [next(trained) for _ in jobs[client]]

    def close(self) -> None:
        """Let go of the memory that stacks hold."""
        stacked.forget()


def can_fork(backend: str) -> bool:
    """Whether workers that train this way can be forked.

    They cannot on macOS, whose frameworks do not stand it, nor by a daemon, nor for autograd where it has threads.
    """
    possible = sys.platform.startswith("linux") and not multiprocessing.current_process().daemon
    return possible and (backend != "autograd" or not torch.cuda.is_available() or _autograd_stands_a_fork())


def _autograd_stands_a_fork() -> bool:
    """Try it: beside a CUDA device autograd starts threads when it is first used, and then refuses in a child."""
    with _forking_is_meant():
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
def _forking_is_meant() -> Iterator[None]:
    """Python warns of forking beside threads; our children use one thread and none of the parent's locks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ForkedExecutor:
    """One forked worker per core."""

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        backend: str,
        batch_schedule: BatchSchedule,
        workers: int,
        jobs_per_client: int,
    ) -> None:
        self._parameters = sum(p.numel() for p in model.parameters())
        self._desks = 2 * workers  # one client in work and one waiting, for each worker
        self._lanes_per_client = jobs_per_client
        # rows: the anchors of a round (at most one per lane of a client), then the lanes of every desk
        rows = jobs_per_client * (1 + self._desks)
        self._block = mmap.mmap(-1, max(1, rows * self._parameters * 4))
        self._models = torch.frombuffer(self._block, dtype=torch.float32).reshape(rows, self._parameters)
        context = multiprocessing.get_context("fork")
        pipes = [context.Pipe() for _ in range(workers)]
        self._ends = [ours for ours, _ in pipes]
        self._workers = []
        for i in range(workers):
            task = _Worker(federation, model, BACKENDS[backend], batch_schedule, self._models, pipes, i)
            process = context.Process(target=task.serve, daemon=True, name=f"fedtilt-worker-{i}")
            with _forking_is_meant():
                process.start()
            self._workers.append(process)
        for _, theirs in pipes:
            theirs.close()

    def train(self, round: int, jobs: dict[int, list[LocalJob]]) -> Iterator[tuple[int, list[Tensor]]]:
        """Hand clients to workers as they become free."""
        anchors = {id(job.anchor): job.anchor for members in jobs.values() for job in members}
        row_of = {key: row for row, key in enumerate(anchors)}
        for key, row in row_of.items():
            self._models[row] = anchors[key]
        waiting = list(jobs)[::-1]
        slots = list(range(self._desks))
        load = dict.fromkeys(range(len(self._ends)), 0)
        client_of_slot: dict[int, int] = {}  # desk → client
        while waiting or client_of_slot:
            while waiting and slots:
                worker = min(load, key=lambda i: (load[i], i))
                if load[worker] == 2:
                    break
                client, slot = waiting.pop(), slots.pop()
                self._ends[worker].send_bytes(self._task(round, client, slot, jobs[client], row_of))
                load[worker] += 1
                client_of_slot[slot] = client
            for end in multiprocessing.connection.wait(self._ends):
                worker = self._ends.index(end)  # type: ignore[arg-type]
                answer = self._answer(worker)
                load[worker] -= 1
                slot = answer["slot"]
                client = client_of_slot.pop(slot)
                first = self._first_row(slot)
                trained = [self._models[first + i].clone() for i in range(len(jobs[client]))]
                slots.append(slot)
                yield client, trained

    def close(self) -> None:
        """Send the workers home; they also leave by themselves when this process dies."""
        for end in self._ends:
            end.close()
        for process in self._workers:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()

    def _first_row(self, slot: int) -> int:
        return self._lanes_per_client * (1 + slot)

    def _task(self, round: int, client: int, slot: int, jobs: Sequence[LocalJob], row_of: dict[int, int]) -> bytes:
        first = self._first_row(slot)
        settings = []
        for i, job in enumerate(jobs):
            self._models[first + i] = job.start
            settings.append(
                {"row": first + i, "anchor": row_of[id(job.anchor)], "prox": job.prox, "tau": job.tau,
                 "lam": job.lam, "lr": job.lr}
            )  # fmt: skip
        return json.dumps({"round": round, "client": client, "slot": slot, "jobs": settings}).encode()

    def _answer(self, worker: int) -> dict[str, Any]:
        try:
            answer = json.loads(self._ends[worker].recv_bytes())
        except (EOFError, ConnectionResetError):
            self._workers[worker].join(timeout=1)
            code = self._workers[worker].exitcode
            raise RuntimeError(f"worker {worker} died with exit code {code} (out of memory?)") from None
        if "error" in answer:
            raise RuntimeError(f"worker {worker} failed:\n{answer['error']}")
        return answer


@dataclass
class _Worker:
    """The other side of the crew: reads tasks until its pipe closes."""

    federation: Federation
    model: nn.Module
    train: Backend
    batch_schedule: BatchSchedule
    models: Tensor
    pipes: list[tuple[Any, Any]]
    number: int

    def serve(self) -> None:
        """Train client after client."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; the pipe tells when to go
        torch.set_num_threads(1)
        for i, (theirs, ours) in enumerate(self.pipes):
            theirs.close()  # else the pipe would not close when the parent dies
            if i != self.number:
                ours.close()
        end = self.pipes[self.number][1]
        while True:
            try:
                task = json.loads(end.recv_bytes())
            except (EOFError, ConnectionResetError):
                return
            try:
                self._train(task)
                answer = {"slot": task["slot"]}
            except Exception:
                answer = {"error": traceback.format_exc()}
            try:
                end.send_bytes(json.dumps(answer).encode())
            except (BrokenPipeError, ConnectionResetError):
                return

    def _train(self, task: dict[str, Any]) -> None:
        batches = self.batch_schedule.batches(self.federation, task["round"], task["client"], torch.device("cpu"))
        jobs = [
            LocalJob(
                start=self.models[job["row"]], anchor=self.models[job["anchor"]], prox=job["prox"],
                tau=job["tau"], lam=job["lam"], lr=job["lr"],
            )
            for job in task["jobs"]
        ]  # fmt: skip
        trained = self.train(self.model, jobs, [batches] * len(jobs))
        for job, result in zip(task["jobs"], trained, strict=True):
            self.models[job["row"]] = result
