"""What the server insists on in every round."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from fedtilt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Quorum, deadline and the limits of what a site may say.

    >>> Rules(quorum=0.5).needed(3)
    2
    """

    quorum: float = 0.5  # the share of a round's selected sites whose models must arrive and be sound
    join_quorum: float = 0.0  # the share of all sites that must have joined before a run begins or goes on
    deadline: float = 600.0  # seconds a site has for a round's training, or for judging
    wait: float = 60.0  # seconds to wait at the start until all sites are connected
    max_samples: int = 10_000_000  # a site that says it has more is not believed

    def __post_init__(self) -> None:
        if not 0 < self.quorum <= 1:
            raise InputError(f"quorum must be in (0, 1], got {self.quorum!r}")
        if not 0 <= self.join_quorum <= 1:
            raise InputError(f"join-quorum must be in [0, 1], got {self.join_quorum!r}")
        for key in ("deadline", "wait"):
            if not 0 < getattr(self, key) < math.inf:
                raise InputError(f"{key} must be a number of seconds > 0, got {getattr(self, key)!r}")
        if self.max_samples < 1:
            raise InputError(f"max_samples must be ≥ 1, got {self.max_samples!r}")

    @classmethod
    def read(cls, config: Mapping[str, object]) -> Self:
        """The rules in a Flower run configuration; a key that is not there takes its default."""
        given = {}
        for field in fields(cls):
            value = config.get(field.name.replace("_", "-"))
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{field.name} must be a number, got {value!r}")
            given[field.name] = int(value) if field.name == "max_samples" else float(value)
        return cls(**given)  # type: ignore[arg-type]

    def needed(self, selected: int) -> int:
        """How many sound models a round of so many sites needs."""
        return max(1, math.ceil(self.quorum * selected - 1e-9))

    def needed_to_join(self, sites: int) -> int:
        """How many of all sites must have joined."""
        return math.ceil(self.join_quorum * sites - 1e-9)
