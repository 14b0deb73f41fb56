"""An executor that trains on a Ray cluster: one client at a time on each CPU, a stack of clients on each GPU.

The federation is put into the object store once, and every node copies it once; so it is with the models that the
clients of a round have in common. What differs from client to client travels with its task, or stays on the nodes: then
trained models are left in the object store, and a client is trained where its own are.
"""

import copy
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedtilt.cluster.connection import connected, tensors_as_arrays
from fedtilt.cluster.pool import WorkerPool
from fedtilt.cluster.remote_tensor import LostTensorError, RemoteTensor
from fedtilt.errors import InputError
from fedtilt.executors.in_process import ClientTraining
from fedtilt.executors.ray_worker import (
    Clients,
    Failure,
    Reply,
    ReturnedTensor,
    TensorReference,
    Worker,
    count_returned,
)
from fedtilt.training import LocalJob, Trained

Jobs = dict[int, list[LocalJob]]  # by client

_LARGE_BYTES = 2**20  # of a client's results: smaller ones cost a message, wherever they are
_IDLE_SHARE = 0.5  # of the workers' time in a round, above which moving models costs more than training them


class RayExecutor:
    """Trains on the workers of a Ray cluster; those that die are replaced, and their clients are trained again.

    Args:
        training: what clients train
        device: where this process has its models; workers train on the same kind of device
        precision: of matrix products on CUDA
        address: of the cluster; see `connected`
        workers: how many; None: one for each CPU or GPU of the cluster
        stack_size: clients that the stacked backend trains together; None: the share of a worker
        timeout: seconds to wait for a worker when there is none
        notice: called with messages for the user
        on_nodes: whether trained models stay on the nodes, as `RemoteTensor`s; None: once moving them is seen to cost
            more than training them
        columns: the blocks of such models
    """

    def __init__(
        self, training: ClientTraining, *, device: torch.device, precision: str, address: str, workers: int | None,
        stack_size: int | None, timeout: float, notice: Callable[[str], None], on_nodes: bool | None = False,
        columns: Sequence[slice] = (slice(None),),
    ) -> None:  # fmt: skip
        self._device, self._stacked, self._stack_size = device, training.backend == "stacked", stack_size
        self._on_nodes, self._columns = on_nodes, columns
        with ExitStack() as stack:
            self._ray = stack.enter_context(connected(address))
            actor = self._ray.remote(Worker)
            with tensors_as_arrays():
                sent = self._ray.put(training._replace(model=copy.deepcopy(training.model).cpu()))

            def start(options: dict[str, Any]) -> Any:
                return actor.options(**options).remote(sent, device.type, precision)

            resource = "GPU" if device.type == "cuda" else "CPU"
            self._pool = WorkerPool(
                self._ray, start, resource=resource, workers=workers, timeout=timeout, notice=notice
            )
            stack.callback(self._pool.close)
            self._resources = stack.pop_all()

    @property
    def on_nodes(self) -> bool:
        """Whether the next results stay on the nodes."""
        return bool(self._on_nodes)

    def train(self, round: int, jobs: Jobs) -> Iterator[tuple[int, list[Trained]]]:
        """Send clients to workers as they become free, each to the node that has its own models if there is one."""
        shared, own = _split(jobs)
        with tensors_as_arrays():
            shared_reference = self._ray.put(shared)
        columns = self._columns if self._on_nodes else None
        blocks: dict[Clients, list[Any]] = {}  # references to the blocks of their trained models

        def submit(worker: Any, clients: Clients) -> Any:
            count = sum(count_returned(own[client]) for client in clients) * len(columns or ())
            with tensors_as_arrays():
                references = worker.train.options(num_returns=1 + count).remote(
                    round, shared_reference, {client: own[client] for client in clients}, columns
                )
            reply, *blocks[clients] = references if count else [references]
            return reply

        started, workers, busy, moved = time.perf_counter(), len(self._pool), 0.0, 0
        work = deque(self._stacks(list(jobs)))
        node_of = {clients: node for clients in work if (node := _node_of(jobs, clients))}
        for clients, reply in self._pool.run(work, submit, node_of):
            if isinstance(reply, Failure):
                if reply.lost:
                    raise LostTensorError
                if not reply.out_of_memory or len(clients) == 1:
                    raise InputError(reply.message)
                work += clients.halves()
                continue
            busy += reply.seconds
            returned = iter(blocks.pop(clients))
            for client, results in zip(clients, reply.results, strict=True):
                received = [self._received(result, reply, returned) for result in results]
                moved += sum(result.parameters.nbytes for result in received)
                yield client, received
        if self._on_nodes is None and workers:  # a round that starts workers says nothing
            idle = 1 - busy / (workers * (time.perf_counter() - started))
            self._on_nodes = True if moved > _LARGE_BYTES * len(jobs) and idle > _IDLE_SHARE else None

    def get(self, references: Sequence[Any]) -> list[Tensor]:
        """Blocks of models that are on the nodes."""
        try:
            return self._ray.get(list(references))
        except self._ray.exceptions.ObjectLostError as error:
            raise LostTensorError from error

    def map_blocks(
        self, function: Callable[..., Tensor], blocks: Sequence[Sequence[Any]], arguments: Sequence[Sequence[Any]]
    ) -> Iterator[Tensor]:
        """function(block, *its arguments) of every block on a worker, in order; see `ObjectStore`."""

        def submit(worker: Any, block: _Block) -> Any:
            with tensors_as_arrays():
                return worker.on_block.remote(function, blocks[block], arguments[block])

        results: dict[int, Tensor] = {}  # that wait for their turn
        number = 0
        for block, reply in self._pool.run(deque(map(_Block, range(len(blocks)))), submit):
            if isinstance(reply, Failure):
                raise LostTensorError
            results[block] = reply.clone()
            while number in results:
                yield results.pop(number)
                number += 1

    def close(self) -> None:
        """Stop the workers and disconnect."""
        self._resources.close()

    def _received(self, result: Trained, reply: Reply, blocks: Iterator[Any]) -> Trained:
        """A result with tensors of this process, so that the object store can drop it, or with `RemoteTensor`s."""

        def receive(value: Any) -> Any:
            if isinstance(value, ReturnedTensor):
                references = [next(blocks) for _ in self._columns]
                return RemoteTensor(self, references, value.size, self._device, reply.node, value.finite)
            return None if value is None else value.to(self._device, copy=True)

        return Trained(*map(receive, result))

    def _stacks(self, clients: list[int]) -> list[Clients]:
        """Clients that are trained together."""
        size = 1
        if self._stacked:
            size = self._stack_size or -(-len(clients) // self._pool.size(len(clients)))
        return [Clients(clients[i : i + size]) for i in range(0, len(clients), size)]


class _Block(int):
    """The number of a block of columns."""

    def __str__(self) -> str:
        return f"aggregation of block {int(self)}"


def _node_of(jobs: Jobs, clients: Clients) -> str | None:
    """The node that has most of what these clients start from, if any has."""
    nodes = Counter(t.node for client in clients for t in _tensors(jobs[client]) if isinstance(t, RemoteTensor))
    return max(nodes, key=lambda node: nodes[node]) if nodes else None


def _split(jobs: Jobs) -> tuple[list[Tensor], Jobs]:
    """The tensors that several clients have in common, and jobs where others stand for these and for stored vectors."""
    clients_of = Counter(key for of_client in jobs.values() for key in {id(t) for t in _tensors(of_client)})
    numbers: dict[int, int] = {}
    shared: list[Tensor] = []
    for tensor in (t for of_client in jobs.values() for t in _tensors(of_client)):
        if clients_of[id(tensor)] > 1 and id(tensor) not in numbers:
            numbers[id(tensor)] = len(shared)
            shared.append(tensor)

    def instead(tensor: Tensor) -> Any:
        if id(tensor) in numbers:
            return TensorReference(shared=numbers[id(tensor)])
        return TensorReference(blocks=tensor.references) if isinstance(tensor, RemoteTensor) else tensor

    def without(job: LocalJob) -> LocalJob:
        return replace(job, **{name: instead(tensor) for name, tensor in _named_tensors(job)})

    return shared, {client: [without(job) for job in of_client] for client, of_client in jobs.items()}


def _named_tensors(job: LocalJob) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in vars(job).items() if isinstance(value, Tensor)]


def _tensors(jobs: Sequence[LocalJob]) -> list[Tensor]:
    return [tensor for job in jobs for _, tensor in _named_tensors(job)]
