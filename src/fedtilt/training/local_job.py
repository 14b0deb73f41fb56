"""A local job: one model that is trained on one client's batches in one round."""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data.groups import CLASS
from fedtilt.data.inputs import Inputs, concatenate, split, take
from fedtilt.math.losses import SampleLoss, cross_entropy
from fedtilt.methods.objectives import Objective
from fedtilt.methods.training import Training
from fedtilt.optimizers import SGD, Optimizer
from fedtilt.training.augmentation import Augmentation, Transform

MIN_UTILITY = 0.2  # below it, the logarithm of a utility continues as a straight line


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalJob:
    """Training from `start`, one mini-batch a step, with the gradient ∇R + prox · (θ − anchor) + drift.

    R is the nested tilted loss: `lam` tilts over the samples of a group, `tau` over the groups, and each level of
    `outer` over groups of groups. With a finite `utility`, −log(utility − R) takes its place; with `objective`, that of
    the user. With `training`, the user's code trains.
    """

    start: Tensor  # (T,)
    anchor: Tensor  # (T,) the centre of the proximal term
    prox: float  # strength of the proximal term, 0 for none
    tau: float
    lam: float
    lr: float

    group: str = CLASS  # the groups that tau tilts over
    outer: tuple[tuple[str, float], ...] = ()  # further levels, (groups, tilt) from inner to outer
    epochs: int | None = None  # passes over the client's data; None: all epochs of its batches
    steps: int | None = None  # at most this many steps; None: all of these epochs
    buffer_names: tuple[str, ...] = ()  # the buffers that `forward` changes in training
    buffers: Tensor | None = None  # (B,) where these start; None: they are frozen, as the model has them
    optimizer: Optimizer = SGD()  # noqa: RUF009
    loss: SampleLoss = cross_entropy
    drift: Tensor | None = None  # (T,) added to every gradient
    objective: Objective | None = None  # in place of the tilts
    training: Training | None = None  # in place of all steps
    slot: Tensor | None = None  # (K,) what `training` remembers on the client: see `pack`
    broadcast: Tensor | None = None  # (K',) what `training` remembers on the server
    broadcast_shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()  # its names and shapes
    round: int = 1
    utility: float = math.inf  # more than the loss of any batch; inf: the loss itself is minimised
    repeats: int = 1  # steps on every batch
    anchor_rate: float = 0.0  # after the steps on a batch, the anchor moves by this share of the way to θ
    first: Tensor | None = None  # (T,) 1 for the parameters that train first, alone, and 0 for those that follow
    first_epochs: int = 0  # the passes over the data in which they do
    measures_loss: bool = False  # whether R of `start` on all samples is returned
    micro_batch: int | None = None  # samples of a forward and backward pass; None: the whole batch

    @property
    def special_steps(self) -> str | None:
        """What its steps have that a backend may not know, as a clause; None if nothing."""
        if self.training is not None:
            return f"training {self.training.label!r} is Python code"
        if self.objective is not None:
            return f"the objective is {self.objective.label!r}"
        if self.drift is not None:
            return "a vector is added to every gradient"
        if self.repeats > 1 or self.anchor_rate:
            return "the centre of the proximal term moves"
        if self.first is not None:
            return "some parameters train before the others"
        return "the loss is inside a logarithm" if self.utility < math.inf else None

    @property
    def autograd_reason(self) -> str | None:
        """Why no other backend than autograd trains it, as a clause; None: others may."""
        if self.optimizer.is_of_torch:
            return f"the optimiser is {self.optimizer.label}"
        return None if self.micro_batch is None else "gradients are accumulated over micro-batches"

    @property
    def levels(self) -> tuple[tuple[str, float], ...]:
        """All levels of groups, (groups, tilt) from inner to outer."""
        return (self.group, self.tau), *self.outer

    @property
    def tilts(self) -> tuple[float, ...]:
        """The tilts from inner to outer, as `nested_tilt` takes them: lam, tau, …"""
        return self.lam, *(tilt for _, tilt in self.levels)

    def groups_of(self, y: Tensor, groups: Mapping[str, Tensor]) -> list[Tensor]:
        """The group of each sample, (n,), for each level, from the labels and the groups of each column."""
        return [y if name == CLASS else groups[name] for name, _ in self.levels]

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for two jobs of one client that give the same result; without a proximal term the anchor is unused."""
        tensors = [self.start, self.anchor if self.prox else None, self.buffers, self.drift, self.first, self.slot]
        tensors.append(self.broadcast)
        settings = self.prox, self.levels, self.lam, self.lr, self.epochs, self.steps, self.optimizer, self.loss
        special = self.utility, self.repeats, self.anchor_rate, self.first_epochs, self.measures_loss, self.micro_batch
        special += self.objective, self.training, self.round  # type: ignore[assignment]
        return *(None if tensor is None else id(tensor) for tensor in tensors), *settings, *special


def pack(slot: Mapping[str, Tensor]) -> Tensor:
    """A slot as one vector, its tensors in the order of their names."""
    parts = [slot[name].detach().reshape(-1).float() for name in sorted(slot)]
    return torch.cat(parts) if parts else torch.zeros(0)


def unpack(vector: Tensor, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """The inverse of `pack`: copies with these names and shapes."""
    names = sorted(shapes)
    pieces = vector.split([math.prod(shapes[name]) for name in names]) if names else ()
    return {name: piece.reshape(tuple(shapes[name])).clone() for name, piece in zip(names, pieces, strict=True)}


def unusual_part(job: LocalJob, model: nn.Module) -> str | None:
    """What the model has besides parameters that all train, as a clause; None if nothing."""
    if job.buffer_names:
        return f"the model has buffers that change in training, such as {job.buffer_names[0]!r}"
    frozen = next((name for name, p in model.named_parameters() if not p.requires_grad), None)
    return None if frozen is None else f"parameter {frozen!r} is frozen"


class Trained(NamedTuple):
    """The result of a local job."""

    parameters: Tensor  # (T,)
    buffers: Tensor | None = None  # (B,); None: the job has none
    anchor: Tensor | None = None  # (T,) where the anchor ends; None: it does not move
    loss: Tensor | None = None  # (1,) R of `start` on all samples, before training; None: not measured
    # of a job with `training`
    personal: Tensor | None = None  # (T,)
    personal_buffers: Tensor | None = None  # (B,)
    slot: Tensor | None = None  # (K,)
    sent: Tensor | None = None  # (K",)


class Batch(NamedTuple):
    """What one step trains on."""

    x: Inputs
    y: Tensor
    groups: list[Tensor]  # the group of each sample for each level of the job
    weights: Tensor | None  # of the samples; None: they count the same


@dataclass(frozen=True, kw_only=True, eq=False)
class Batches:
    """A client's data of one round, the order of its samples and how an epoch is split; the same for all its jobs."""

    x: Inputs  # (n, …), or a dictionary of such tensors
    y: Tensor  # (n,)
    order: Tensor  # (epochs, n): a permutation per epoch
    bounds: Tensor  # (batches per epoch + 1,) on the CPU: batch k is order[epoch, bounds[k] : bounds[k + 1]]
    key: int  # seeds the randomness inside a model (dropout)
    groups: Mapping[str, Tensor] = field(default_factory=dict)  # column of groups → the group of each sample, (n,)
    weights: Tensor | None = None  # (n,) of the samples; None: they count the same
    augmentation: Augmentation | None = None  # of every batch that is trained on
    largest: int = 0  # samples of the largest batch of all clients: a stack pads to it, whoever is in it; 0: unknown

    def of(self, job: LocalJob) -> Iterator[Batch]:
        """The batches that a job trains on, one a step."""
        batches = itertools.islice(self._all(self.groups_of(job)), self.steps(job))
        return (batch for batch in batches for _ in range(job.repeats)) if job.repeats > 1 else batches

    def groups_of(self, job: LocalJob) -> list[Tensor]:
        """The group of each sample, (n,), for each level of a job."""
        return job.groups_of(self.y, self.groups)

    def all(self) -> Iterator[tuple[Inputs, Tensor]]:
        """The batches of all epochs: samples and labels."""
        return ((batch.x, batch.y) for batch in self._all([]))

    def _all(self, groups: Sequence[Tensor]) -> Iterator[Batch]:
        sizes, augment = self.bounds.diff().tolist(), self.augmentation
        for epoch, order in enumerate(self.order[:, : int(self.bounds[-1])]):
            x, y = take(self.x, order), self.y[order]  # one gather per epoch; batches are views of it
            labels = y.split(sizes)
            levels = [labels if codes is self.y else codes[order].split(sizes) for codes in groups]
            weights = None if self.weights is None else self.weights[order].split(sizes)
            for k, batch in enumerate(split(x, sizes)):
                if augment is not None:
                    batch = augment(batch, epoch, k)
                yield Batch(batch, labels[k], [codes[k] for codes in levels], None if weights is None else weights[k])

    def augmented(self) -> "Batches":
        """The same batches as samples of their own, for backends that take samples by their number."""
        if self.augmentation is None:
            return self
        order = self.order[:, : int(self.bounds[-1])]
        rows = order.reshape(-1)
        return replace(
            self,
            x=concatenate([batch.x for batch in self._all([])]),
            y=self.y[rows],
            order=torch.arange(len(rows), device=rows.device).reshape(order.shape),
            groups={name: codes[rows] for name, codes in self.groups.items()},
            weights=None if self.weights is None else self.weights[rows],
            augmentation=None,
        )

    @functools.cached_property
    def size(self) -> int:
        """Samples of the largest batch, of all clients where that is known."""
        return int(np.diff(self.bounds.numpy()).max(initial=self.largest))

    @functools.cached_property
    def samples(self) -> int:
        """The client's samples."""
        return len(self.y)

    @functools.cached_property
    def per_epoch(self) -> int:
        """Batches per epoch."""
        return len(self.bounds) - 1

    def steps(self, job: LocalJob) -> int:
        """How many batches a job trains on."""
        steps = self.per_epoch * (len(self.order) if job.epochs is None else job.epochs)
        return steps if job.steps is None else min(steps, job.steps)

    def __len__(self) -> int:
        return len(self.order) * self.per_epoch


LAST_BATCH = ("even", "keep", "drop")


def batch_bounds(samples: int, batch_size: int, last_batch: str = "even") -> list[int]:
    """Where the batches of an epoch begin and end.

    "even" splits n samples into ⌈n / B⌉ batches whose sizes differ by at most one, so that no small leftover takes a
    full step just before the model is evaluated; "keep" has a smaller last batch, "drop" leaves it out, unless it is
    the only one.

    >>> [batch_bounds(23, 10, last_batch) for last_batch in LAST_BATCH]
    [[0, 7, 15, 23], [0, 10, 20, 23], [0, 10, 20]]
    """
    if last_batch == "even":
        count = -(-samples // batch_size)
        return [k * samples // count for k in range(count)] + [samples]
    if last_batch == "drop" and samples >= batch_size:
        return list(range(0, samples + 1, batch_size))
    return [*range(0, samples, batch_size), samples]


def step_count(job: LocalJob, samples: int, batch_size: int, last_batch: str = "even") -> int:
    """How many steps a job with its own epochs or steps makes on this many samples."""
    per_epoch = len(batch_bounds(samples, batch_size, last_batch)) - 1
    batches = per_epoch * job.epochs if job.epochs is not None else job.steps
    assert batches is not None
    return (batches if job.steps is None else min(batches, job.steps)) * job.repeats


def make_batches(
    x: Inputs, y: Tensor, *, seed: int, round: int, client: int, epochs: int, batch_size: int, last_batch: str = "even",
    groups: Mapping[str, Tensor] | None = None, weights: Tensor | None = None, transform: Transform | None = None,
) -> Batches:  # fmt: skip
    """The batches of one client in one round; their order depends on (seed, round, client) alone."""
    order = seeds.permutations(seeds.key(seed, "order", round=round, client=client), epochs, len(y), device=y.device)
    return Batches(
        x=x,
        y=y,
        order=order,
        bounds=torch.tensor(batch_bounds(len(y), batch_size, last_batch)),
        key=seeds.key(seed, "dropout", round=round, client=client),
        groups=groups or {},
        weights=weights,
        augmentation=Augmentation.of(transform, seed=seed, round=round, client=client),
    )


def distinct_jobs(jobs: list[LocalJob]) -> tuple[list[LocalJob], list[int]]:
    """The distinct jobs, and for every job the index of its equal among them."""
    index_of: dict[tuple[object, ...], int] = {}
    distinct: list[LocalJob] = []
    indices = []
    for job in jobs:
        index = index_of.setdefault(job.identity, len(distinct))
        if index == len(distinct):
            distinct.append(job)
        indices.append(index)
    return distinct, indices
