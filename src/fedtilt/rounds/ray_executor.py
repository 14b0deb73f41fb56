"""An executor that trains on a Ray cluster: one client at a time on each CPU, a stack of clients on each GPU.

The federation is put into the object store once, and every node copies it once; so it is with the models that the
clients of a round have in common. What differs from client to client travels with its task.
"""

import copy
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedtilt.cluster.connection import connected, send_tensors_as_arrays, tensors_as_arrays
from fedtilt.cluster.pool import WorkerPool
from fedtilt.data import Federation
from fedtilt.errors import InputError
from fedtilt.rounds.executors import BatchSettings, InProcessExecutor
from fedtilt.training import LocalJob, Trained
from fedtilt.training.precision import fp32_deterministic

Jobs = dict[int, list[LocalJob]]  # by client


class RayExecutor:
    """Trains on the workers of a Ray cluster; those that die are replaced, and their clients are trained again.

    Args:
        federation: the clients' data
        model: the architecture
        backend: the name of a backend
        batch_settings: the batches of every client
        device: where this process has its models; workers train on the same kind of device
        precision: of matrix products on CUDA
        address: of the cluster; see `connected`
        workers: how many; None: one for each CPU or GPU of the cluster
        stack_size: clients that the stacked backend trains together; None: the share of a worker
        timeout: seconds to wait for a worker when there is none
        notice: called with messages for the user
    """

    def __init__(
        self, federation: Federation, model: nn.Module, backend: str, batch_settings: BatchSettings, *,
        device: torch.device, precision: str, address: str, workers: int | None, stack_size: int | None, timeout: float,
        notice: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._device, self._stacked, self._stack_size = device, backend == "stacked", stack_size
        with ExitStack() as stack:
            self._ray = stack.enter_context(connected(address))
            actor = self._ray.remote(_Worker)
            with tensors_as_arrays():
                constants = self._ray.put((federation, copy.deepcopy(model).cpu()))

            def start(options: dict[str, Any]) -> Any:
                return actor.options(**options).remote(constants, backend, batch_settings, device.type, precision)

            resource = "GPU" if device.type == "cuda" else "CPU"
            self._pool = WorkerPool(
                self._ray, start, resource=resource, workers=workers, timeout=timeout, notice=notice
            )
            stack.callback(self._pool.close)
            self._resources = stack.pop_all()

    def train(self, round: int, jobs: Jobs) -> Iterator[tuple[int, list[Trained]]]:
        """Send clients to workers as they become free."""
        shared, own = _split(jobs)
        with tensors_as_arrays():
            shared_reference = self._ray.put(shared)

        def submit(worker: Any, clients: Clients) -> Any:
            with tensors_as_arrays():
                return worker.train.remote(round, shared_reference, {client: own[client] for client in clients})

        work = deque(self._stacks(list(jobs)))
        for clients, reply in self._pool.run(work, submit):
            if isinstance(reply, _Refusal):
                if not reply.out_of_memory or len(clients) == 1:
                    raise InputError(reply.message)
                work += clients.halves()
            else:
                yield from zip(clients, ([self._copy(result) for result in results] for results in reply), strict=True)

    def close(self) -> None:
        """Stop the workers and disconnect."""
        self._resources.close()

    def _copy(self, result: Trained) -> Trained:
        """A result in memory of this process, so that the object store can drop it."""
        return Trained(*(None if t is None else t.to(self._device, copy=True) for t in result))  # type: ignore[arg-type]

    def _stacks(self, clients: list[int]) -> list["Clients"]:
        """Clients that are trained together."""
        size = 1
        if self._stacked:
            size = self._stack_size or -(-len(clients) // self._pool.size(len(clients)))
        return [Clients(clients[i : i + size]) for i in range(0, len(clients), size)]


class Clients(tuple[int, ...]):
    """The numbers of clients that are trained together."""

    def halves(self) -> list["Clients"]:
        """Two parts of nearly equal size."""
        half = len(self) // 2
        return [Clients(self[:half]), Clients(self[half:])]

    def __str__(self) -> str:
        return f"client{'s' if len(self) > 1 else ''} {', '.join(map(str, self))}"


@dataclass(frozen=True)
class _SharedTensor:
    """Stands in a job for a tensor that several clients have in common."""

    number: int


def _split(jobs: Jobs) -> tuple[list[Tensor], Jobs]:
    """The tensors that several clients have in common, and the jobs with a `_SharedTensor` for each."""
    clients_of = Counter(key for of_client in jobs.values() for key in {id(t) for t in _tensors(of_client)})
    numbers: dict[int, int] = {}
    shared: list[Tensor] = []
    for tensor in (t for of_client in jobs.values() for t in _tensors(of_client)):
        if clients_of[id(tensor)] > 1 and id(tensor) not in numbers:
            numbers[id(tensor)] = len(shared)
            shared.append(tensor)

    def without(job: LocalJob) -> LocalJob:
        changes = {name: _SharedTensor(numbers[id(t)]) for name, t in _named_tensors(job) if id(t) in numbers}
        return replace(job, **changes)  # type: ignore[arg-type]

    return shared, {client: [without(job) for job in of_client] for client, of_client in jobs.items()}


def _named_tensors(job: LocalJob) -> list[tuple[str, Tensor]]:
    return [(f.name, value) for f in fields(job) if isinstance(value := getattr(job, f.name), Tensor)]


def _tensors(jobs: Sequence[LocalJob]) -> list[Tensor]:
    return [tensor for job in jobs for _, tensor in _named_tensors(job)]


@dataclass(frozen=True)
class _Refusal:
    """Why a worker did not train, in a message for the user."""

    message: str
    out_of_memory: bool = False


class _Worker:
    """The actor: trains clients one after the other, or in stacks, with one thread on a CPU."""

    def __init__(
        self, constants: tuple[Federation, nn.Module], backend: str, batch_settings: BatchSettings, device: str,
        precision: str,
    ) -> None:  # fmt: skip
        federation, model = constants
        self._device = torch.device(device)
        torch.set_num_threads(1)
        send_tensors_as_arrays()
        with fp32_deterministic(self._device):
            model = model.to(self._device)
            self._executor = InProcessExecutor(federation, model, backend, batch_settings, self._device, precision)

    def ready(self) -> None:
        """Returns when the worker has been started."""

    def train(self, round: int, shared: Sequence[Tensor], jobs: Mapping[int, Sequence[LocalJob]]) -> Any:
        """The results of every client, in the order of `jobs`, as tensors in memory that is not written again."""
        local: dict[int, Tensor] = {}  # one tensor of the device for equal ones: stacks and jobs share it

        def on_device(tensor: Any) -> Tensor:
            value = shared[tensor.number] if isinstance(tensor, _SharedTensor) else tensor
            return local.setdefault(id(value), value.to(self._device))

        def complete(job: LocalJob) -> LocalJob:
            values = {f.name: getattr(job, f.name) for f in fields(job)}
            tensors = {name: on_device(v) for name, v in values.items() if isinstance(v, Tensor | _SharedTensor)}
            return replace(job, **tensors)  # type: ignore[arg-type]

        try:
            with fp32_deterministic(self._device):
                completed = {client: [complete(job) for job in of_client] for client, of_client in jobs.items()}
                results = dict(self._executor.train(round, completed))
        except InputError as error:
            return _Refusal(str(error))
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            clients = Clients(jobs)
            return _Refusal(
                f"{clients} cannot be trained on a worker of the cluster: out of memory ({str(error).split('. ')[0]}); "
                "use a smaller batch_size or model, or fewer workers for each GPU",
                out_of_memory=True,
            )
        return [results[client] for client in jobs]
