"""Shared memory through which forked workers receive jobs and return trained models."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedtilt.training import LocalJob, Trained

TENSORS_PER_JOB = len([field for field in fields(LocalJob) if "Tensor" in str(field.type)])


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
        offsets: dict[int, list[Any]] = {}
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

    def read_results(self, described: Sequence[Sequence[Any]]) -> list[Trained]:
        """Copies of the trained models that `write_results` wrote."""

        def read(entry: Any) -> Any:
            return None if entry is None else self._view(*entry).clone()

        return [Trained(*map(read, entries)) for entries in described]

    def _write(self, tensor: Tensor, offset: int) -> list[int]:
        size = 4 * tensor.numel()
        if tensor.dtype != torch.float32 or tensor.dim() != 1 or offset + size > len(self._memory):
            raise RuntimeError(f"no room for {tensor.dtype} of shape {tuple(tensor.shape)} in a block of the workers")
        self._view(offset, size).copy_(tensor)
        return [offset, size]

    def _view(self, offset: int, size: int) -> Tensor:
        return torch.frombuffer(self._memory[offset : offset + size], dtype=torch.float32)


def is_constant(value: object) -> bool:
    """Whether a value of a job is neither a tensor nor JSON."""
    return value is not None and not isinstance(value, Tensor | int | float | str)
