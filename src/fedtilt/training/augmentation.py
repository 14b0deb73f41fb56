"""Augmentation: a function of a batch of inputs that every training step applies, with random numbers keyed by batch.

The function draws from torch's global generators. They are seeded for every batch, so what it returns depends on
(seed, round, client, epoch, batch) alone: not on other clients, workers, or where a run was resumed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fedtilt import seeds
from fedtilt.data.inputs import Inputs, named_tensors
from fedtilt.errors import InputError

Transform = Callable[[Any], Any]  # a batch of inputs → a batch like it
_REPEATS = 4


class Augmentation(NamedTuple):
    """A transform, and the key of its random numbers at one client in one round."""

    transform: Transform
    key: int

    @classmethod
    def of(cls, transform: Transform | None, *, seed: int, round: int, client: int) -> "Augmentation | None":
        """Of a client in a round; None without a transform."""
        return None if transform is None else cls(transform, seeds.key(seed, "transform", round=round, client=client))

    def __call__(self, x: Inputs, epoch: int, batch: int) -> Inputs:
        """The batch of this number in this epoch, transformed."""
        device = next(iter(named_tensors(x, "x").values())).device
        key = seeds.key(self.key, "batch", round=epoch, client=batch)
        with torch.no_grad(), seeds.seeded_global_rng(key, device):
            found = self.transform(x)
        _check_like(x, found)
        return found


def _check_like(x: Inputs, found: object) -> None:
    """Raise InputError if a transform returned something else than a batch like the one it was given."""
    for name, before in named_tensors(x, "inputs").items():
        after = found if not isinstance(x, dict) else None
        if isinstance(x, dict) and isinstance(found, dict) and list(found) == list(x):
            after = named_tensors(found, "inputs")[name]
        if not isinstance(after, torch.Tensor):
            raise InputError(
                f"transform returned {type(found).__name__} for {name}; return a batch like the one that it is given"
            )
        if after.shape != before.shape or after.dtype != before.dtype:
            raise InputError(
                f"transform returned {after.dtype} of shape {tuple(after.shape)} for {name} of {before.dtype} and "
                f"shape {tuple(before.shape)}; return a batch like the one that it is given"
            )
        if after.is_floating_point() and not after.isfinite().all():
            raise InputError(f"transform returned values that are not finite for {name}; check what it computes")


def check_transform(transform: Transform, x: Inputs) -> Inputs:
    """Some samples, transformed with a fixed key; raises InputError if the same key gives another result."""
    augment = Augmentation(transform, key=0)
    copies = [augment(_copy(x), 0, 0) for _ in range(_REPEATS)]
    first = named_tensors(copies[0], "inputs")
    for other in copies[1:]:
        if any(not torch.equal(first[name], values) for name, values in named_tensors(other, "inputs").items()):
            raise InputError(
                "transform returns another batch when it is called again with the same seed; draw its random numbers "
                "with torch, not with random, numpy or a generator of its own"
            )
    return copies[0]


def _copy(x: Inputs) -> Inputs:
    return {name: values.clone() for name, values in x.items()} if isinstance(x, dict) else x.clone()
