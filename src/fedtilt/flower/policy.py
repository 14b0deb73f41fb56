"""What the server requires in every round."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from fedtilt.config.setting_fields import check_value, setting
from fedtilt.errors import InputError


@dataclass(frozen=True, kw_only=True)
class RoundPolicy:
    """Quorum, deadlines and limits.

    >>> RoundPolicy(quorum=0.5).required_models(3)
    2
    """

    quorum: float = setting(0.5, "the share of a round's selected sites whose models must arrive and be valid",
                            gt=0, le=1)  # fmt: skip
    join_quorum: float = setting(0.0, "the share of all sites that must join before a run starts or resumes",
                                 ge=0, le=1)  # fmt: skip
    deadline: float = setting(600.0, "seconds a site has for a round's training, or for its evaluation", gt=0)
    wait: float = setting(60.0, "seconds to wait at the start until all sites are connected", gt=0)
    max_samples: int = setting(10_000_000, "a reply that claims more samples is rejected", ge=1)
    max_silent_rounds: int = setting(
        2, "a site that is silent in this number of rounds in a row is skipped until it replies again", ge=1
    )
    kept_rounds: int = setting(3, "how many good rounds are kept to go back to, beside the last two rounds", ge=1)

    def __post_init__(self) -> None:
        for each in fields(self):
            try:
                object.__setattr__(self, each.name, check_value(each, getattr(self, each.name)))
            except InputError as error:
                raise InputError(str(error).replace(each.name, _key(each.name))) from None

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """The policy in a Flower run configuration; a missing key takes its default."""
        values = {each.name: config.get(_key(each.name)) for each in fields(cls)}
        return cls(**{name: value for name, value in values.items() if value is not None})  # type: ignore[arg-type]

    def required_models(self, selected: int) -> int:
        """How many valid models a round of `selected` sites needs."""
        return max(1, math.ceil(self.quorum * selected - 1e-9))

    def required_to_join(self, sites: int) -> int:
        """How many of all sites must join."""
        return math.ceil(self.join_quorum * sites - 1e-9)


def _key(name: str) -> str:
    return name.replace("_", "-")
