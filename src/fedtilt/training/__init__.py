"""Train local jobs: one signature, `train(model, jobs, batches) → results`, and backends that agree.

autograd  any `nn.Module` and recipe, by autograd, one job at a time: the reference
native    perceptrons and CNNs in C, one job at a time: for CPUs with a C compiler
fused     perceptrons, with a hand-written backward pass, one job at a time: for CPUs without a C compiler
stacked   all jobs in one step: for GPUs

A backend is asked about the whole work, `unsupported_reason(model, job, device_type, sample, target)`: None, or a
clause that says why it does not train this job. The autograd loop trains every job, also those whose special steps the
backend of the run does not know: `special_reason(model, job)`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from fedtilt.data.inputs import Inputs
from fedtilt.errors import InputError
from fedtilt.methods.objectives import check_objective
from fedtilt.training import autograd_loop, fused_mlp, native, stacked
from fedtilt.training.local_job import (
    LAST_BATCH,
    Batches,
    LocalJob,
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


_MODULES: dict[str, Any] = {"autograd": autograd_loop, "native": native, "fused": fused_mlp, "stacked": stacked}
_FASTEST_FIRST = {"cpu": ("native", "fused", "autograd"), "cuda": ("stacked", "autograd")}


def _with_special_jobs(name: str, module: Any) -> Backend:
    """The backend, with autograd for jobs whose special steps it does not know, and with the losses of `start`."""

    def train_all(
        model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], *, precision: str = "float32"
    ) -> list[Trained]:
        alone = [job.special_steps is not None and module.special_reason(model, job) is not None for job in jobs]
        rest = [i for i, is_alone in enumerate(alone) if not is_alone]
        # the others take samples by their number, and not batch by batch
        data_of = {id(data): data if name == "autograd" else data.augmented() for data in (batches[i] for i in rest)}
        of_rest = [data_of[id(batches[i])] for i in rest]
        trained = iter(module.train(model, [jobs[i] for i in rest], of_rest, precision=precision))
        results = []
        for job, data, is_alone in zip(jobs, batches, alone, strict=True):
            result = autograd_loop.train(model, [job], [data], precision=precision)[0] if is_alone else next(trained)
            loss = autograd_loop.start_loss(model, job, data, precision) if job.measures_loss else None
            results.append(result._replace(loss=loss))
        return results

    return train_all


BACKENDS = {name: _with_special_jobs(name, module) for name, module in _MODULES.items()}


class BackendChoice(NamedTuple):
    """The backend that trains a run, and why faster ones do not."""

    name: str
    reasons: Mapping[str, str]  # faster backend → why it does not train this run
    special: str | None = None  # why autograd trains some of its jobs; None: it does not

    def describe(self) -> str:
        """One line for the user.

        >>> BackendChoice("autograd", {"native": "the model has an LSTM"}).describe()
        'autograd (not native: the model has an LSTM)'
        """
        reasons = [f"not {name}: {reason}" for name, reason in self.reasons.items()]
        reasons += [f"autograd for jobs where {self.special}"] if self.special else []
        return f"{self.name} ({'; '.join(reasons)})" if reasons else self.name


def choose_backend(
    model: nn.Module,
    jobs: Sequence[LocalJob],
    device_type: str,
    backend: str = "auto",
    sample: tuple[Inputs, Tensor] | None = None,
    precision: str = "float32",
    weighted: bool = False,
) -> BackendChoice:
    """The fastest backend that trains these jobs, or `backend` if it does.

    Args:
        model: the model to train
        jobs: a job of every kind that the run has
        device_type: "cpu" or "cuda"
        backend: a name from `BACKENDS`, or "auto"
        sample: one input and its target, (1, …) each, to test whether the model can be stacked
        precision: "float32", or "tf32" or "bfloat16" on CUDA
        weighted: whether samples have weights, which autograd alone knows
    """
    if precision != "float32" and device_type != "cuda":
        raise InputError(f"precision = {precision!r} is for CUDA, not for {device_type}; leave it out")
    if backend not in ("auto", *BACKENDS):
        raise InputError(f"unknown backend {backend!r}; choose one of auto, {', '.join(BACKENDS)}")
    for job in jobs:
        if job.objective is not None:
            check_objective(job.objective, weighted=weighted)
    reasons: dict[str, str] = {}
    x, target = (None, None) if sample is None else sample
    for name in _FASTEST_FIRST[device_type] if backend == "auto" else (backend,):
        reason_of = _MODULES[name].unsupported_reason
        unsupported = [(job, r) for job in jobs if (r := reason_of(model, job, device_type, x, target))]
        reason = "samples have weights" if weighted else next((r for job in jobs if (r := job.autograd_reason)), None)
        reason = None if name == "autograd" else reason
        reason = reason or next(
            (r for job, r in unsupported if job.special_steps is None or len(unsupported) == len(jobs)), None
        )
        if reason is None:
            return BackendChoice(name, reasons, unsupported[0][1] if unsupported else None)
        reasons[name] = reason
    raise InputError(f"backend {backend!r} cannot train this because {reasons[backend]}; use 'auto' or 'autograd'")


__all__ = [
    "BACKENDS",
    "LAST_BATCH",
    "Backend",
    "BackendChoice",
    "Batches",
    "LocalJob",
    "Trained",
    "choose_backend",
    "distinct_jobs",
    "make_batches",
]
