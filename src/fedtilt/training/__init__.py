"""Train local jobs: one signature, `train(model, jobs, batches) → results`, and backends that agree.

autograd  any `nn.Module` and recipe, by autograd, one job at a time: the reference
native    perceptrons and CNNs in C, one job at a time: for CPUs with a C compiler
fused     perceptrons, with a hand-written backward pass, one job at a time: for CPUs without a C compiler
stacked   all jobs in one step: for GPUs

A backend is asked about the whole work, `unsupported_reason(model, job, device_type, sample)`: None, or a clause that
says why it does not train this job. The autograd loop never refuses.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import nn

from fedtilt.data.inputs import Inputs
from fedtilt.errors import InputError
from fedtilt.training import autograd_loop, fused_mlp, native, stacked
from fedtilt.training.local_job import (
    LAST_BATCH,
    OPTIMIZERS,
    Batches,
    LocalJob,
    Optimizer,
    Trained,
    distinct_jobs,
    make_batches,
)


class Backend(Protocol):
    """Trains every job on its batches; `precision` is that of products on CUDA."""

    def __call__(
        self, model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], *, precision: str = "float32"
    ) -> list[Trained]:
        """The results, in the order of the jobs."""
        ...


BACKENDS: dict[str, Backend] = {
    "autograd": autograd_loop.train,
    "native": native.train,
    "fused": fused_mlp.train,
    "stacked": stacked.train,
}
_FASTEST_FIRST = {"cpu": ("native", "fused", "autograd"), "cuda": ("stacked", "autograd")}
_UNSUPPORTED_REASON = {
    "autograd": lambda *_: None,
    "native": native.unsupported_reason,
    "fused": fused_mlp.unsupported_reason,
    "stacked": stacked.unsupported_reason,
}


class BackendChoice(NamedTuple):
    """The backend that trains a run, and why faster ones do not."""

    name: str
    reasons: Mapping[str, str]  # faster backend → why it does not train this run

    def describe(self) -> str:
        """One line for the user.

        >>> BackendChoice("autograd", {"native": "the model has an LSTM"}).describe()
        'autograd (not native: the model has an LSTM)'
        """
        reasons = "; ".join(f"not {name}: {reason}" for name, reason in self.reasons.items())
        return f"{self.name} ({reasons})" if reasons else self.name


def choose_backend(
    model: nn.Module,
    jobs: Sequence[LocalJob],
    device_type: str,
    backend: str = "auto",
    sample: Inputs | None = None,
    precision: str = "float32",
) -> BackendChoice:
    """The fastest backend that trains these jobs, or `backend` if it does.

    Args:
        model: the model to train
        jobs: a job of every kind that the run has
        device_type: "cpu" or "cuda"
        backend: a name from `BACKENDS`, or "auto"
        sample: one input, (1, …), to test whether the model can be stacked
        precision: "float32", or "tf32" or "bfloat16" on CUDA
    """
    if precision != "float32" and device_type != "cuda":
        raise InputError(f"precision = {precision!r} is for CUDA, not for {device_type}; leave it out")
    if backend not in ("auto", *BACKENDS):
        raise InputError(f"unknown backend {backend!r}; choose one of auto, {', '.join(BACKENDS)}")
    reasons: dict[str, str] = {}
    for name in _FASTEST_FIRST[device_type] if backend == "auto" else (backend,):
        reason = next((r for job in jobs if (r := _UNSUPPORTED_REASON[name](model, job, device_type, sample))), None)
        if reason is None:
            return BackendChoice(name, reasons)
        reasons[name] = reason
    raise InputError(f"backend {backend!r} cannot train this because {reasons[backend]}; use 'auto' or 'autograd'")


__all__ = [
    "BACKENDS",
    "LAST_BATCH",
    "OPTIMIZERS",
    "Backend",
    "BackendChoice",
    "Batches",
    "LocalJob",
    "Optimizer",
    "Trained",
    "choose_backend",
    "distinct_jobs",
    "make_batches",
]
