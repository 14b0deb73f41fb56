"""All jobs in one step: parameters stacked (L, P), a batch of every client at once. For GPUs.

Clients of unequal size keep their number of steps: short batches are padded with samples of weight zero, and jobs that
are done do not change. Jobs with another recipe, or with far fewer steps, are another stack. On CUDA the step of a
`SequentialNet` is a few Triton kernels, that of any other model is compiled by torch; either is captured in a CUDA
graph and replayed. The number of the step is on the device, so nothing synchronises inside a round.
"""

import copy
import importlib.util
import os
import shutil
import sysconfig
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fedtilt.data.groups import CLASS
from fedtilt.data.inputs import Inputs, concatenate, take, to_device
from fedtilt.methods.objectives import counts_weight_0
from fedtilt.models import logits, parameters_to_vector
from fedtilt.optimizers import SGD
from fedtilt.parts import buffers_to_vector
from fedtilt.training.local_job import Batches, LocalJob, Trained
from fedtilt.training.stacked.batch_norm import BATCH_NORMS
from fedtilt.training.stacked.buffers import Recipe
from fedtilt.training.stacked.functions import batched_functions
from fedtilt.training.stacked.layers import parameter_index, stackable_copy
from fedtilt.training.stacked.recurrent import unroll_reason
from fedtilt.training.stacked.stack import Stack, StackSizes, places_of_batches
from fedtilt.training.stacked.vmap_step import StackedGradient

__all__ = [
    "batched_functions",
    "can_stack",
    "clear_cache",
    "load_ahead",
    "special_reason",
    "stackable_copy",
    "train",
    "triton_reason",
    "unsupported_reason",
]

_MAX_JOBS = 65_535  # the limit of a CUDA grid dimension
_STEP_OVERHEAD = 16  # a step takes some time whatever the number of jobs, about that of this many
_ROUNDING = 0.01  # relative difference of gradients, below which they are equal
_LONGER = 1.25  # by so much must jobs be longer than others to be a stack of their own


def unsupported_reason(
    model: nn.Module, job: LocalJob, device_type: str, sample: Inputs | None = None, target: Tensor | None = None
) -> str | None:
    """Why this backend does not train the job, as a clause; None if it does."""
    reason = triton_reason() if device_type == "cuda" else None
    return reason or special_reason(model, job) or _unsupported_reason(model, Recipe.of(job), sample, target)


def triton_reason() -> str | None:
    """Why Triton, which compiles a C file of its own on first use, cannot start, as a clause; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if os.name != "posix":
        return None  # Triton for Windows carries its own compiler
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton needs a C compiler, and neither gcc nor clang is on the PATH"
    if not Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists():
        return "Triton needs Python's headers (python3-dev), and Python.h is not installed"
    return None


def special_reason(model: nn.Module, job: LocalJob) -> str | None:
    """Why this backend does not take the job's special steps, as a clause; None if it does."""
    if job.training is not None:
        return job.special_steps
    if job.objective is not None and counts_weight_0(job.objective):
        return f"the objective {job.objective.label!r} counts samples of weight 0, which fill a stack"
    if job.first is not None and not job.optimizer.is_plain:  # its state would have to start again
        return f"{job.special_steps}, with an optimiser other than plain SGD"
    return None


def can_stack(model: nn.Module, sample: Inputs) -> bool:
    """Whether the model, without buffers that change, can be batched over jobs; `sample` is one input, (1, …)."""
    recipe = Recipe(SGD(), _sum_of_outputs, (CLASS,), (), trains_buffers=False)
    return _unsupported_reason(model, recipe, sample) is None


def _sum_of_outputs(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs.flatten(1).sum(1)


def _unsupported_reason(
    model: nn.Module, recipe: Recipe, sample: Inputs | None, target: Tensor | None = None
) -> str | None:
    for name, layer in model.named_modules():
        reason = unroll_reason(layer) if isinstance(layer, nn.RNNBase) else None
        if isinstance(layer, nn.RReLU):
            reason = "draws random numbers"
        if reason is not None:
            return f"layer {name!r} ({type(layer).__name__}) {reason}"
    if recipe.trains_buffers:
        for name in recipe.buffer_layers:
            layer = model.get_submodule(name)
            if type(layer) not in BATCH_NORMS:
                return f"the buffers of layer {name!r} ({type(layer).__name__}) change in training"
    # the modules alone do not show what `forward` does
    return None if sample is None else _forward_reason(model, recipe, sample, target)


def _forward_reason(model: nn.Module, recipe: Recipe, sample: Inputs, target: Tensor | None) -> str | None:
    try:
        (gradient, masks), (padded_gradient, padded_masks) = (
            _step_of_two_jobs(model, recipe, sample, target, rows) for rows in ([0, 1], [0, 1, 0])
        )
    except Exception:  # of the model, which the loop may train all the same
        return "the model or the loss cannot be batched over jobs: it draws random numbers, or branches on values"
    if len(masks) != len(padded_masks) or any(
        padded not in (shape, (shape[0] * 3 // 2, *shape[1:]))
        for shape, padded in zip(masks, padded_masks, strict=True)
    ):
        return "dropout in it needs the samples in the first dimension: its masks would depend on the padding"
    if (padded_gradient - gradient).norm() > _ROUNDING * gradient.norm():
        return "what the model or the loss computes of a sample depends on the others: it would depend on the padding"
    return None


def _step_of_two_jobs(
    model: nn.Module, recipe: Recipe, sample: Inputs, target: Tensor | None, rows: Sequence[int]
) -> tuple[Tensor, list[tuple[int, ...]]]:
    """The gradients and the shapes of the dropout masks; a third row is padding.

    Row 0 is the sample, row 1 another, of values that the model takes.
    """
    device = next(model.parameters()).device
    step = StackedGradient(model, recipe, device, "float32")
    theta = torch.zeros(step.layout.row_length, device=device)
    theta[parameter_index(step.layout, device)] = parameters_to_vector(model).to(theta)
    buffers = buffers_to_vector(model, recipe.buffer_names) if recipe.trains_buffers else theta[:0]
    index = torch.tensor(rows, device=device)
    sample = to_device(sample, device)
    other = tree_map(lambda t: t / 2 if t.is_floating_point() else torch.full_like(t, t.max()), sample)
    x, zeros = take(concatenate([sample, other]), index), torch.zeros_like(index)
    y = zeros if target is None else target.to(device)[zeros]
    weights = (torch.arange(len(rows), device=device) < 2).float()
    groups, tilts = zeros.expand(len(recipe.groups), len(rows)), theta.new_ones(len(recipe.groups) + 1)
    pieces = [theta[columns] for columns in step.layout.pieces]
    of_a_job = pieces, buffers, x, y, groups, weights, tilts, weights[0], zeros[0]
    gradients, _ = step(zeros[0], step.constants, *tree_map(lambda t: t.expand(2, *t.shape), of_a_job))
    return torch.cat(gradients, 1), step.mask_shapes


def train(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], *, precision: str = "float32"
) -> list[Trained]:
    """Train every job on its batches."""
    trained: dict[int, Trained] = {}
    for stack in _split_into_stacks(jobs, batches):
        results = _train_together(model, [jobs[i] for i in stack], [batches[i] for i in stack], precision)
        trained.update(zip(stack, results, strict=True))
    return [trained[i] for i in range(len(jobs))]


def _split_into_stacks(jobs: Sequence[LocalJob], batches: Sequence[Batches]) -> list[list[int]]:
    """The indices of the jobs that are trained together: one recipe, and numbers of steps that do not differ much.

    Jobs differ by the length that they ask for, not by their client's number of samples: the sizes of the
    stacks are then the same in every round, and each is compiled once.
    """
    by_length: dict[Recipe, dict[tuple[int | None, int | None], list[int]]] = {}
    alike = {  # clients often have the same job
        id(job): by_length.setdefault(Recipe.of(job), {}).setdefault((job.epochs, job.steps), [])
        for job in {id(job): job for job in jobs}.values()
    }
    for i, job in enumerate(jobs):
        alike[id(job)].append(i)
    stacks: list[list[int]] = []
    for lengths in by_length.values():
        if len(lengths) == 1:
            stacks += lengths.values()
            continue
        longest = {length: max(batches[i].steps(jobs[i]) for i in indices) for length, indices in lengths.items()}
        limit = 0.0  # of the stack that is being filled: its steps
        for length in sorted(lengths, key=longest.__getitem__, reverse=True):
            steps, indices = longest[length], lengths[length]
            saved, cost = len(indices) * (limit - steps), _STEP_OVERHEAD * steps
            if limit and not (limit > _LONGER * steps and saved > cost):
                stacks[-1] += indices
            else:
                stacks.append(list(indices))
                limit = steps
    return stacks


def _train_together(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], precision: str
) -> list[Trained]:
    """Train jobs of one recipe, as many at once as fit into memory."""
    trained: list[Trained] = []
    while len(trained) < len(jobs):
        # in parts of nearly equal size: every other shape is another graph
        parts = -(-len(jobs) // min(_jobs_in_memory.get(model, len(jobs)), _MAX_JOBS))
        size = -(-len(jobs) // parts)
        part = slice(len(trained), len(trained) + size)
        try:
            trained += _train_stack(model, jobs[part], batches[part], precision)
            continue
        except torch.cuda.OutOfMemoryError:
            if size == 1:
                raise
        # outside the except clause: the traceback would keep the buffers alive
        _jobs_in_memory[model] = size // 2
        clear_cache()
        torch.cuda.empty_cache()
    return trained


def _train_stack(
    model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], precision: str
) -> list[Trained]:
    if jobs[0].buffers is not None:
        _check_single_samples(model, batches)
    key = _stack_key(model, jobs, batches, precision)
    stack = _taken(key) or Stack(*key)
    trained = stack.train(jobs, batches)
    _put_back(key, stack)
    return trained


def load_ahead(model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], precision: str) -> None:
    """Load the batches of the next round, whose jobs may be like these, while the device still trains this one.

    If its jobs or batches turn out to be others, or its stacks to be new, they are loaded then.
    """
    if any(data.augmentation is not None for data in batches):  # a round makes its own copies of those
        return
    for indices in _split_into_stacks(jobs, batches):
        of_stack = [jobs[i] for i in indices], [batches[i] for i in indices]
        key = _stack_key(model, *of_stack, precision)
        if (stack := _taken(key)) is not None:
            stack.load_samples(*of_stack)
            _put_back(key, stack)


_StackKey = tuple[nn.Module, Recipe, StackSizes, torch.device, str]


def _stack_key(model: nn.Module, jobs: Sequence[LocalJob], batches: Sequence[Batches], precision: str) -> _StackKey:
    return model, Recipe.of(jobs[0]), StackSizes.of(jobs, batches), jobs[0].start.device, precision


def _taken(key: _StackKey) -> Stack | None:
    """A stack that was put back, for one thread alone: its buffers are those of one round."""
    with _stacks_lock:
        return _stacks.pop(key, None)


def _put_back(key: _StackKey, stack: Stack) -> None:
    with _stacks_lock:
        _stacks[key] = stack
        if len(_stacks) > _MAX_STACKS:
            del _stacks[next(iter(_stacks))]


def _check_single_samples(model: nn.Module, batches: Sequence[Batches]) -> None:
    """Let torch raise for a batch of one sample, where BatchNorm has one value per channel and no variance."""
    single = next((data for data in batches if data.bounds.diff().min() == 1), None)
    if single is not None:
        with torch.no_grad():
            logits(copy.deepcopy(model).to(single.y.device).train(), take(single.x, slice(0, 1)))


# How many jobs of a model fit into memory at once, once that is known.
_jobs_in_memory: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

# A run needs one set of sizes per recipe and length, and one more where the last group of clients is smaller.
_MAX_STACKS = 8
_stacks: dict[_StackKey, Stack] = {}  # what was used last is last
_stacks_lock = threading.Lock()  # several threads may train


def clear_cache() -> None:
    """Free all buffers and CUDA graphs."""
    with _stacks_lock:
        _stacks.clear()
    places_of_batches.cache_clear()
