"""The worker of `RayExecutor`: trains clients, and computes on blocks of their models, in a process of the cluster."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtilt.cluster.connection import send_tensors_as_arrays
from fedtilt.errors import InputError
from fedtilt.executors.in_process import ClientTraining, InProcessExecutor
from fedtilt.training import LocalJob, Trained
from fedtilt.training.precision import fp32_deterministic


class Clients(tuple[int, ...]):
    """The numbers of clients that are trained together."""

    def halves(self) -> list["Clients"]:
        """Two parts of nearly equal size."""
        half = len(self) // 2
        return [Clients(self[:half]), Clients(self[half:])]

    def __str__(self) -> str:
        return f"client{'s' if len(self) > 1 else ''} {', '.join(map(str, self))}"


@dataclass(frozen=True)
class TensorReference:
    """Stands in a job for a tensor that several clients have in common, or for a vector in the object store."""

    shared: int | None = None  # its number among those in common
    blocks: Sequence[Any] = ()  # references to its blocks


class ReturnedTensor(NamedTuple):
    """Stands in a result for a vector whose blocks are return values of their own."""

    size: int
    finite: bool


class Failure(NamedTuple):
    """Why a worker did not do its work, in a message for the user."""

    message: str
    out_of_memory: bool = False
    lost: bool = False  # a vector that it needs was on a node that has died


class Reply(NamedTuple):
    """What a worker has trained."""

    results: list[list[Trained]]  # of every client
    node: str  # where it ran
    seconds: float


def count_returned(jobs: Sequence[LocalJob]) -> int:
    """How many vectors are return values of their own, if these jobs are trained with blocks."""
    return sum(2 if job.anchor_rate else 1 for job in jobs)


class Worker:
    """The actor: trains clients one after the other, or in stacks, with one thread on a CPU."""

    def __init__(self, training: ClientTraining, device: str, precision: str) -> None:
        import ray

        self._ray = ray
        self._node = ray.get_runtime_context().get_node_id()
        self._device = torch.device(device)
        torch.set_num_threads(1)
        send_tensors_as_arrays()
        with fp32_deterministic(self._device):
            on_device = training._replace(model=training.model.to(self._device))
            self._executor = InProcessExecutor(on_device, self._device, precision)

    def ready(self) -> str:
        """The id of the node, when the worker has been started."""
        return self._node

    def train(
        self, round: int, shared: Sequence[Tensor], jobs: Mapping[int, Sequence[LocalJob]],
        columns: Sequence[slice] | None,
    ) -> Any:  # fmt: skip
        """A `Reply` with the results of every client in the order of `jobs`, or a `Failure`.

        With `columns`, each trained vector is returned as blocks of these, after the reply. `shared` are the tensors
        that clients have in common.
        """
        count = sum(map(count_returned, jobs.values())) * len(columns or ())
        try:
            started = time.perf_counter()
            with fp32_deterministic(self._device):
                results = dict(self._executor.train(round, self._complete(shared, jobs)))
            seconds = time.perf_counter() - started
        except (InputError, torch.OutOfMemoryError, self._ray.exceptions.ObjectLostError) as error:
            failure = self._failure(error, Clients(jobs))
            return (failure, *[None] * count) if count else failure
        ordered = [results[client] for client in jobs]
        if not columns:
            return Reply(ordered, self._node, seconds)
        blocks: list[Tensor] = []
        reply = Reply([[_take_out(t, columns, blocks) for t in trained] for trained in ordered], self._node, seconds)
        return reply, *blocks

    def on_block(self, function: Callable[..., Tensor], rows: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """function(block (C, columns), *arguments), or a `Failure`; `rows` are references to those of the block."""
        try:
            block = torch.stack(self._ray.get(list(rows))).to(self._device)
        except self._ray.exceptions.ObjectLostError as error:
            return self._failure(error, Clients())
        with fp32_deterministic(self._device):
            return function(block, *(a.to(self._device) if isinstance(a, Tensor) else a for a in arguments))

    def _complete(self, shared: Sequence[Tensor], jobs: Mapping[int, Sequence[LocalJob]]) -> dict[int, list[LocalJob]]:
        """The jobs with all their tensors on the device; jobs and stacks share one tensor for equal ones."""
        on_device: dict[int, Tensor] = {}

        def find(value: Any) -> Tensor:
            if isinstance(value, TensorReference) and value.shared is not None:
                value = shared[value.shared]
            if id(value) not in on_device:
                stored = isinstance(value, TensorReference)
                tensor = torch.cat(self._ray.get(list(value.blocks))) if stored else value
                on_device[id(value)] = tensor.to(self._device)
            return on_device[id(value)]

        def complete(job: LocalJob) -> LocalJob:
            values = {name: v for name, v in vars(job).items() if isinstance(v, Tensor | TensorReference)}
            tensors: dict[str, Any] = {name: find(value) for name, value in values.items()}
            return replace(job, **tensors)

        return {client: [complete(job) for job in of_client] for client, of_client in jobs.items()}

    def _failure(self, error: Exception, clients: Clients) -> Failure:
        if isinstance(error, InputError):
            return Failure(str(error))
        if not isinstance(error, torch.OutOfMemoryError):
            return Failure(str(error), lost=True)
        torch.cuda.empty_cache()
        return Failure(
            f"{clients} cannot be trained on a worker of the cluster: out of memory ({str(error).split('. ')[0]}); "
            "use a smaller batch_size or model, or fewer workers for each GPU",
            out_of_memory=True,
        )


def _take_out(result: Trained, columns: Sequence[slice], blocks: list[Tensor]) -> Trained:
    """The result with a `ReturnedTensor` for each of its vectors, whose blocks are appended to `blocks`."""

    def take_out(vector: Tensor | None) -> Any:
        if vector is None:
            return None
        blocks.extend(vector[part] for part in columns)
        return ReturnedTensor(len(vector), bool((vector * 0).sum() == 0))  # 0 · inf and 0 · NaN are NaN

    return result._replace(parameters=take_out(result.parameters), anchor=take_out(result.anchor))
