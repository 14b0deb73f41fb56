"""Targets that are no classes: numbers, tokens, sets of labels; what models learn of them, and their groups."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Self

import torch
from torch import Tensor

from fedtilt import checks
from fedtilt.errors import InputError

TASKS = ("classification", "regression", "language", "multilabel")
TABLE_TASKS = TASKS[:2]  # those of a table, whose target is one column
RANGES = 4  # between the quartiles
RANGE = "range"  # the name of the groups that are the ranges of the target
ALL = "all"  # the name of the one group of samples that have no class
IGNORED = -100  # the token of a target that no model has to predict, such as padding: the ignore_index of torch


def check_task(task: object) -> None:
    """Raise InputError if a task is unknown."""
    if task not in TASKS:
        raise InputError(f"task = {task!r} is unknown; choose {' or '.join(TASKS)}")


@dataclass(frozen=True, kw_only=True)
class Target(ABC):
    """What the targets of a task are, if they are no classes; by default, all samples are one group."""

    task: ClassVar[str]
    group: ClassVar[str] = ALL  # the name of the groups that follow from the targets
    words: ClassVar[str]  # what the targets are, in messages
    sums: ClassVar[int]  # numbers that an evaluation sums; each task has another count, so that files tell them apart

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the groups that follow from the targets."""
        return (ALL,)

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The size of the last dimension of a model's output."""

    def groups(self, y: Tensor) -> Tensor:
        """The group of each target, int64 (n,)."""
        return torch.zeros(len(y), dtype=torch.int64, device=y.device)

    def model_target(self, y: Tensor) -> Tensor:
        """Targets as a model learns them."""
        return y


@dataclass(frozen=True, kw_only=True)
class TokenTarget(Target):
    """Tokens (n, T), one for each position: a model returns (n, T, vocabulary); −100 is not to be predicted.

    Args:
        vocabulary: the number of tokens; a model may have outputs for more
    """

    task: ClassVar[str] = "language"
    words: ClassVar[str] = "tokens as targets"
    sums: ClassVar[int] = 3

    vocabulary: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", checks.whole(self.vocabulary, "vocabulary", 1))

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> Self:
        """The vocabulary of these tokens: the largest and all below it."""
        return cls(vocabulary=1 + max((int(t.max()) for t in tensors if t.numel()), default=0))

    @property
    def outputs(self) -> int:
        """One logit per token."""
        return self.vocabulary


@dataclass(frozen=True, kw_only=True)
class LabelTarget(Target):
    """Several labels of a sample, 0 or 1 each, float32 (n, labels): a model returns one logit per label.

    Args:
        labels: the name of each label
    """

    task: ClassVar[str] = "multilabel"
    words: ClassVar[str] = "several labels per sample"
    sums: ClassVar[int] = 5

    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(map(str, self.labels)))
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise InputError(f"the labels of a target are {list(self.labels)}; give one or more, all different")

    @property
    def outputs(self) -> int:
        """One logit per label."""
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class NumericTarget(Target):
    """How numbers are learnt: models return (y − mean) / deviation, and the ranges of y take the place of classes.

    Args:
        mean: the mean of the training targets
        deviation: their standard deviation
        bounds: ascending; a range ends at a bound, which it includes

    >>> target = NumericTarget(mean=2.0, deviation=1.0, bounds=(1.5, 2.5))
    >>> target.names, target.groups(torch.tensor([1.0, 2.5, 9.0])).tolist()
    (('≤ 1.5', '1.5 to 2.5', '> 2.5'), [0, 1, 2])
    >>> NumericTarget(mean=1500.0, deviation=400.0, bounds=(999.7, 1650.0)).names
    ('≤ 1000', '1000 to 1650', '> 1650')
    """

    task: ClassVar[str] = "regression"
    group: ClassVar[str] = RANGE
    words: ClassVar[str] = "numbers as targets"
    sums: ClassVar[int] = 2

    mean: float
    deviation: float
    bounds: tuple[float, ...]

    def __post_init__(self) -> None:
        for key in ("mean", "deviation"):
            object.__setattr__(self, key, checks.number(getattr(self, key), f"the target's {key}"))
        bounds = tuple(checks.number(bound, "a bound of the target's ranges") for bound in self.bounds)
        object.__setattr__(self, "bounds", bounds)
        if not self.deviation > 0:
            raise InputError(f"the target's deviation is {self.deviation:g}; a model needs targets that differ")
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise InputError(f"the bounds of the target's ranges are {list(bounds)}; give one or more, ascending")

    @classmethod
    def of(cls, y: Tensor, name: str) -> Self:
        """The scale and the quartiles of training targets; `name` is the data set's, for errors."""
        values = y.double()
        if not len(values) or bool((values == values[0]).all()):
            raise InputError(f"data set {name!r} has the same target in all training samples; regression needs several")
        shares = torch.arange(1, RANGES, dtype=torch.float64) / RANGES
        bounds = values.quantile(shares).unique().tolist()
        return cls(
            mean=values.mean().item(), deviation=values.std(correction=0).item(),
            bounds=inner_bounds(bounds, values.min().item(), values.max().item()),
        )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the ranges, with as few digits as tell the bounds apart."""
        digits = next(
            n for n in (3, 4, 6, 9, 17) if n == 17 or len({f"{b:.{n}g}" for b in self.bounds}) == len(self.bounds)
        )
        texts = [f"{bound:.{digits}g}" for bound in self.bounds]
        # whole numbers up to a million are easier to read than exponents
        texts = [
            f"{b:.0f}" if "e+" in text and abs(b) < 1e6 else text for b, text in zip(self.bounds, texts, strict=True)
        ]
        inner = [f"{low} to {high}" for low, high in pairwise(texts)]
        return f"≤ {texts[0]}", *inner, f"> {texts[-1]}"

    @property
    def outputs(self) -> int:
        """One number."""
        return 1

    def groups(self, y: Tensor) -> Tensor:
        """The range of each target, int64."""
        return torch.bucketize(y.double(), torch.tensor(self.bounds, dtype=torch.float64, device=y.device))

    def model_target(self, y: Tensor) -> Tensor:
        """Targets as a model learns them."""
        return ((y.double() - self.mean) / self.deviation).float()

    def predictions(self, outputs: Tensor) -> Tensor:
        """A model's outputs (…, 1) as predictions (…) in the unit of the target, in float64."""
        return outputs[..., 0].double() * self.deviation + self.mean


# by task
TARGETS: dict[str, type[Target]] = {cls.task: cls for cls in (NumericTarget, TokenTarget, LabelTarget)}


def inner_bounds(bounds: list[float], lowest: float, highest: float) -> tuple[float, ...]:
    """The bounds that leave no range empty: at least the lowest target and below the highest."""
    return tuple(bound for bound in bounds if lowest <= bound < highest) or (lowest,)
