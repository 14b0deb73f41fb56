"""A pool of Ray actors that grows with the cluster and replaces actors that die."""

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from fedtilt.cluster.connection import check_nodes
from fedtilt.errors import InputError

_MAX_FAILURES = 3  # of one piece of work, or of starting a worker, before the run stops
_QUEUED = 2  # pieces of work per worker: one in progress, and one whose data is on its way
_LOOK_AHEAD = 1000  # pieces of work among which one is chosen for a node
_MESSAGE_SECONDS = 30.0  # without a worker, before the user gets a message
_POLL_SECONDS = 1.0

Work = TypeVar("Work")


class WorkerPool:
    """Workers of one class, each with its share of a CPU or a GPU, spread over the nodes.

    `start` starts a worker with the given options of an actor and returns its handle; its method `ready` returns the id
    of its node. `workers` is None for one per CPU or GPU; `timeout` is in seconds, without any worker.
    """

    def __init__(
        self, ray: Any, start: Callable[[dict[str, Any]], Any], *, resource: str, workers: int | None, timeout: float,
        notice: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._ray, self._start, self._resource, self._limit = ray, start, resource, workers
        self._timeout, self._notice = timeout, notice
        self._checked_nodes: set[str] = set()
        self._failed_starts = 0  # one after the other
        self._empty_since: float | None = None  # when it was first seen that there is no worker
        self._noticed = False  # whether the user has a message, since then
        self._ready: dict[Any, str] = {}  # workers that take work → their nodes
        self._starting: dict[Any, Any] = {}  # reply of `ready` → worker

    def __len__(self) -> int:
        return len(self._ready)

    def size(self, useful: int) -> int:
        """How many workers there should be, at least one, if this number is useful."""
        limit = self._total() if self._limit is None else self._limit
        return max(1, min(useful, limit))

    def run(
        self, work: deque[Work], submit: Callable[[Any, Work], Any],
        node_of: Mapping[Work, str] | None = None,
    ) -> Iterator[tuple[Work, Any]]:  # fmt: skip
        """Do all work, and yield each piece with its result, in any order; the caller may add work meanwhile.

        Work of a worker that dies is done again by another. New nodes of the cluster are used from the next call on.
        `submit` starts a piece on a worker, and returns Ray's reference to its result. The nodes in `node_of` should do
        certain pieces; others do them rather than wait.
        """
        exceptions = self._ray.exceptions
        lost_errors = (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.WorkerCrashedError)
        running: dict[Any, tuple[Any, Work]] = {}  # reference → worker, piece
        failures: Counter[Work] = Counter()
        self._grow(len(work))
        while work or running:
            load = Counter(worker for worker, _ in running.values())
            for _ in range(_QUEUED):  # in turns, so that no worker has two pieces while another has none
                for worker, node in self._ready.items():
                    if work and load[worker] < _QUEUED:
                        piece = take_work(work, node, node_of or {})
                        running[submit(worker, piece)] = worker, piece
                        load[worker] += 1
            done, _ = self._ray.wait([*running, *self._starting], num_returns=1, timeout=_POLL_SECONDS)
            self._check_empty()
            for reference in done:
                if reference in self._starting:
                    self._take(reference)
                    continue
                worker, piece = running.pop(reference)
                try:
                    result = self._ray.get(reference)
                except lost_errors as error:
                    failures[piece] += 1
                    if failures[piece] == _MAX_FAILURES:
                        raise InputError(
                            f"{piece}: the worker died {_MAX_FAILURES} times (out of memory?); use nodes with more "
                            "memory, a smaller model, or fewer workers"
                        ) from error
                    self._remove(worker)
                    others = [r for r, (other, _) in running.items() if other == worker]
                    work.extendleft([piece, *(running.pop(r)[1] for r in others)])
                    self._grow(len(work) + len(running))
                else:
                    yield piece, result

    def close(self) -> None:
        """Stop all workers."""
        for worker in [*self._ready, *self._starting.values()]:
            self._ray.kill(worker)
        self._ready, self._starting = {}, {}

    def _grow(self, useful: int) -> None:
        """Start as many workers as are useful on what the cluster has now; new nodes are checked first."""
        check_nodes(self._ray, self._checked_nodes)
        for _ in range(self.size(useful) - len(self._ready) - len(self._starting)):
            worker = self._start(self._options())
            self._starting[worker.ready.remote()] = worker

    def _total(self) -> int:
        return int(self._ray.cluster_resources().get(self._resource, 0))

    def _options(self) -> dict[str, Any]:
        """What a worker reserves, as options of an actor."""
        if self._resource == "CPU":
            return {"scheduling_strategy": "SPREAD", "num_cpus": 1}
        gpus = max(1, self._total())
        workers_per_gpu = -(-(self._limit or gpus) // gpus)
        return {"scheduling_strategy": "SPREAD", "num_cpus": 0, "num_gpus": 1 / workers_per_gpu}

    def _take(self, reference: Any) -> None:
        """Use a worker that is ready; one that died while it started is replaced."""
        worker = self._starting.pop(reference)
        try:
            node = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            self._failed_starts += 1
            if self._failed_starts == _MAX_FAILURES:
                raise RuntimeError(f"{_MAX_FAILURES} workers of the cluster failed to start") from error
            self._grow(len(self._ready) + len(self._starting) + 1)
        else:
            self._failed_starts = 0
            self._ready[worker] = node

    def _remove(self, worker: Any) -> None:
        if worker in self._ready:
            del self._ready[worker]
            self._ray.kill(worker)  # it may live on where its node is cut off

    def _check_empty(self) -> None:
        """While there is no worker, give the user a message; raise after the limit."""
        now = time.monotonic()
        if self._ready:
            self._empty_since, self._noticed = None, False
            return
        self._empty_since = now if self._empty_since is None else self._empty_since
        waited = now - self._empty_since
        if waited > self._timeout:
            raise InputError(
                f"no worker of the cluster started within {self._timeout:g} s; add a node with a free "
                f"{self._resource}, or set a larger cluster_timeout"
            )
        if waited > _MESSAGE_SECONDS and not self._noticed:
            self._noticed = True
            self._notice(
                f"no worker of the cluster is ready yet; waits up to {self._timeout:g} s for a node with a free "
                f"{self._resource}"
            )


def take_work(work: deque[Work], node: str, node_of: Mapping[Work, str]) -> Work:
    """Take a piece for a worker on this node: the first one of this node, else of no node, else of any.

    >>> take_work(deque(["a1", "b1", "b2"]), "b", {"a1": "a", "b1": "b", "b2": "b"})
    'b1'
    """
    index = 0
    if node_of:
        wanted = [node_of.get(piece) for piece in itertools.islice(work, _LOOK_AHEAD)]
        index = next((wanted.index(choice) for choice in (node, None) if choice in wanted), 0)
    piece = work[index]
    del work[index]
    return piece
