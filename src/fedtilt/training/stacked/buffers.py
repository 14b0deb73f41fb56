"""What the jobs of one stack have in common, and the buffers that they are loaded into, so that one step trains all."""

import math
from typing import NamedTuple, Self

import torch
from torch import Tensor

from fedtilt.data.inputs import Inputs
from fedtilt.math.losses import SampleLoss
from fedtilt.methods.objectives import Objective
from fedtilt.optimizers import Optimizer
from fedtilt.training.local_job import LocalJob
from fedtilt.training.stacked.optimizers import state_rows


class SpecialSteps(NamedTuple):
    """What the steps of a job have besides; see `LocalJob`."""

    has_drift: bool = False
    has_utility: bool = False
    repeats: int = 1
    moves_anchor: bool = False
    has_first: bool = False  # some parameters train before the others
    objective: Objective | None = None  # in place of the tilts

    @classmethod
    def of(cls, job: LocalJob) -> Self:
        """Those of a job."""
        return cls(
            job.drift is not None,
            job.utility < math.inf,
            job.repeats,
            job.anchor_rate > 0,
            job.first is not None,
            job.objective,
        )


class Recipe(NamedTuple):
    """The settings that are the same for all jobs of a stack."""

    optimizer: Optimizer
    loss: SampleLoss
    groups: tuple[str, ...]  # of every level, from inner to outer
    buffer_names: tuple[str, ...]  # the buffers of the model that change in training mode
    trains_buffers: bool  # otherwise they are frozen
    special: SpecialSteps = SpecialSteps()

    @classmethod
    def of(cls, job: LocalJob) -> Self:
        """The recipe of a job."""
        groups = tuple(name for name, _ in job.levels)
        special = SpecialSteps.of(job)
        return cls(job.optimizer, job.loss, groups, job.buffer_names, job.buffers is not None, special)

    @property
    def buffer_layers(self) -> tuple[str, ...]:
        """The names of the layers whose buffers change in training mode."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self.buffer_names))


class Rows(NamedTuple):
    """What a step reads and writes for every parameter, on one device; L jobs.

    Rows are those of the `SequentialNet` if the kernels train the model, otherwise `ParameterRows`.
    """

    theta: Tensor  # (L, row_length)
    optimizer_state: Tensor  # (rows of state, L, row_length)
    anchor: Tensor  # (L, row_length), the distinct anchors first
    # of special steps; without columns where the recipe has none
    drift: Tensor  # (L, row_length)
    first: Tensor  # (L, row_length) 1 for the parameters that train first

    @classmethod
    def zeros(cls, jobs: int, row_length: int, recipe: Recipe, device: torch.device) -> Self:
        """Those of a stack of jobs of this recipe."""
        special = recipe.special
        shapes = {
            "theta": (jobs, row_length),
            "optimizer_state": (state_rows(recipe.optimizer), jobs, row_length),
            "anchor": (jobs, row_length),
            "drift": (jobs, row_length * special.has_drift),
            "first": (jobs, row_length * special.has_first),
        }
        return cls(**{name: torch.zeros(shape, device=device) for name, shape in shapes.items()})


class Piece(NamedTuple):
    """Columns of the rows, each (L, columns)."""

    theta: Tensor
    optimizer_state: tuple[Tensor, ...]
    anchor: Tensor
    drift: Tensor
    first: Tensor

    @classmethod
    def of(cls, rows: Rows, columns: slice) -> Self:
        """These columns."""
        state = tuple(row[:, columns] for row in rows.optimizer_state.unbind())
        return cls(rows.theta[:, columns], state, *(t[:, columns] for t in (rows.anchor, rows.drift, rows.first)))


class Buffers(NamedTuple):
    """What else a step reads and writes, on one device; L jobs, C clients."""

    model_buffers: Tensor  # (L, B) the buffers of the model, such as running statistics
    anchor_index: Tensor  # (L,) the row of a job's anchor
    prox: Tensor  # (L,)
    lr: Tensor  # (L,)
    tilts: Tensor  # (levels + 1, L) from inner to outer: lam, tau, …
    client_index: Tensor  # (L,) the client whose samples a job trains on
    steps: Tensor  # (L,) the number of steps of a job
    x: Inputs  # (C, samples, …)
    y: Tensor  # (C, samples), of tokens and several labels (C, samples, …)
    groups: Tensor  # (levels, C, samples) the group of each sample; of the classes, its label
    batch_indices: Tensor  # (steps, C, batch size) the samples of every step, −1 for padding
    first_step: Tensor  # (1,) the number of the next step to run
    dropout_key: Tensor  # (L,) of the masks
    # of special steps
    utility: Tensor  # (L,)
    anchor_rate: Tensor  # (L,)
    first_steps: Tensor  # (L,) the steps in which the first parameters train
