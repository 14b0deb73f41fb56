"""Learning rates over the rounds: what those of a round are multiplied with."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedtilt.config.named import NamedSettings
from fedtilt.config.setting_fields import REQUIRED, setting


@dataclass(frozen=True, kw_only=True)
class Schedule(NamedSettings):
    """Warm-up, then what a subclass says of the rounds after it."""

    warmup_rounds: int = setting(0, "rounds before it, over which the learning rates rise in equal steps", ge=0)

    def factor(self, round: int, rounds: int) -> float:
        """The factor of this round, counted from 1, of these rounds.

        >>> [Cosine(warmup_rounds=1).factor(round, 3) for round in (1, 2, 3)]
        [0.5, 1.0, 0.5]
        """
        if round <= self.warmup_rounds:
            return round / (self.warmup_rounds + 1)
        return self.after_warmup(round - 1 - self.warmup_rounds, rounds - self.warmup_rounds)

    def after_warmup(self, done: int, rounds: int) -> float:
        """The factor after this many of the rounds that follow the warm-up."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The same learning rates in every round."""

    rule: ClassVar[str] = "constant"


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Down to 0 after the last round: (1 + cos(π · done / rounds)) / 2."""

    rule: ClassVar[str] = "cosine"

    def after_warmup(self, done: int, rounds: int) -> float:
        """Half a period of the cosine."""
        return (1 + math.cos(math.pi * done / rounds)) / 2


def _decay(when: str) -> Any:
    return setting(REQUIRED, f"the factor {when}", gt=0, le=1)


@dataclass(frozen=True, kw_only=True)
class Exponential(Schedule):
    """Times `decay` every round."""

    rule: ClassVar[str] = "exponential"
    decay: float = _decay("of every round")

    def after_warmup(self, done: int, rounds: int) -> float:
        """decay^done."""
        return self.decay**done


@dataclass(frozen=True, kw_only=True)
class Step(Schedule):
    """Times `decay` after every `every` rounds."""

    rule: ClassVar[str] = "step"
    decay: float = _decay("of every step")
    every: int = setting(REQUIRED, "rounds between two steps", ge=1)

    def after_warmup(self, done: int, rounds: int) -> float:
        """decay^⌊done / every⌋."""
        return self.decay ** (done // self.every)


SCHEDULES: dict[str, type[Schedule]] = {cls.rule: cls for cls in (Constant, Cosine, Exponential, Step)}
