"""What the server requires in every round."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from fedtilt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RoundPolicy:
    """Quorum, deadlines and limits.

    Args:
        quorum: the share of a round's selected sites whose models must arrive and be valid
        join_quorum: the share of all sites that must join before a run starts or resumes
        deadline: seconds a site has for a round's training, or for its evaluation
        wait: seconds to wait at the start until all sites are connected
        max_samples: a reply that claims more samples is rejected
        max_silent_rounds: a site that is silent in this number of rounds in a row is skipped until it replies again
        kept_rounds: how many good rounds are kept to go back to, beside the last two rounds

    >>> RoundPolicy(quorum=0.5).required_models(3)
    2
    """

    quorum: float = 0.5
    join_quorum: float = 0.0
    deadline: float = 600.0
    wait: float = 60.0
    max_samples: int = 10_000_000
    max_silent_rounds: int = 2
    kept_rounds: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.quorum <= 1:
            raise InputError(f"quorum must be in (0, 1], got {self.quorum!r}")
        if not 0 <= self.join_quorum <= 1:
            raise InputError(f"join-quorum must be in [0, 1], got {self.join_quorum!r}")
        for key in ("deadline", "wait"):
            if not 0 < getattr(self, key) < math.inf:
                raise InputError(f"{key} must be a number of seconds > 0, got {getattr(self, key)!r}")
        for key in ("max_samples", "max_silent_rounds", "kept_rounds"):
            if getattr(self, key) < 1:
                raise InputError(f"{key.replace('_', '-')} must be ≥ 1, got {getattr(self, key)!r}")

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """The policy in a Flower run configuration; a missing key takes its default."""
        values = {}
        for field in fields(cls):
            key = field.name.replace("_", "-")
            value = config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{key} must be a number, got {value!r}")
            values[field.name] = int(value) if field.type is int else float(value)
        return cls(**values)  # type: ignore[arg-type]

    def required_models(self, selected: int) -> int:
        """How many valid models a round of `selected` sites needs."""
        return max(1, math.ceil(self.quorum * selected - 1e-9))

    def required_to_join(self, sites: int) -> int:
        """How many of all sites must join."""
        return math.ceil(self.join_quorum * sites - 1e-9)
