"""Going back to an earlier round: training histories, and the rounds that are not ones to go back to.

A training history is the rounds that follow from each other, without those that were undone when the server went back.
Sites store their state under the id of a history. Going back to a round starts a new one: a site finds in the earlier
ones its state of the rounds up to there, and uses nothing of the rounds after it.

A jump is a round that carries the shared model too far. Screening bounds what a minority of sites can do. A majority,
or two sites of which one is wrong, can still carry the model away. Round t is good unless its model w_t jumps:

    ‖w_t − w_g‖ > k · m · (t − g)

g is the last good round, m the median of the changes ‖w_t − w_{t−1}‖ in the last good rounds, k that of the screening
(`train.screen`). The bound grows with t − g: a model that only learns faster than before is good again after some
rounds, a model that was carried away is not. The first round has nothing to compare with, and is good.
"""

import re
import secrets
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import Tensor

from fedtilt.errors import InputError

_ROUNDS = 10  # whose changes are compared


@dataclass(frozen=True)
class TrainingHistory:
    """The id of a history, and those that it started from.

    >>> TrainingHistory("00000000000000aa").branch(4).earlier
    (('00000000000000aa', 4),)
    """

    id: str
    earlier: tuple[tuple[str, int], ...] = ()  # (id, the last round that counts), oldest first

    def __post_init__(self) -> None:
        for id in (self.id, *(id for id, _ in self.earlier)):
            if not isinstance(id, str) or not re.fullmatch(r"[0-9a-f]{16}", id):
                raise InputError(f"the server's history id must be 16 hexadecimal digits, got {str(id)[:40]!r}")

    @classmethod
    def new(cls) -> Self:
        """A history without a round."""
        return cls(secrets.token_hex(8))

    def branch(self, round: int) -> Self:
        """A new history that starts after a round of this one."""
        return type(self)(secrets.token_hex(8), (*self.earlier, (self.id, round)))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"history": self.id} | ({"earlier": [list(entry) for entry in self.earlier]} if self.earlier else {})

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """The inverse of `to_json`."""
        match values:
            case {"history": id, **rest}:
                earlier = rest.get("earlier", [])
                if isinstance(earlier, list) and all(isinstance(e, list) and len(e) == 2 for e in earlier):
                    return cls(id, tuple((name, int(round)) for name, round in earlier))
        raise InputError(f"this is no training history: {str(values)[:80]!r}")


class ModelChange(NamedTuple):
    """How far one round moved the shared model."""

    length: float  # ‖w_t − w_{t−1}‖
    jump: str | None  # why the round is not good, and what undoes it


class JumpCheck:
    """Tells good rounds from jumps, after the last good round with its shared parameters (S,).

    A change may be `k` times the median of the changes in the good rounds before; 0: every round is good.
    """

    def __init__(self, k: float, round: int, model: Tensor, changes: Sequence[float] = ()) -> None:
        self._k, self.round, self._model = k, round, model
        self._changes = list(changes)[-_ROUNDS:]

    def check(self, round: int, before: Tensor, after: Tensor) -> ModelChange:
        """The change of a round between its models; if the round is good, the next ones are compared with it."""
        length = _distance(after, before)
        if jump := self._jump(round, after):
            return ModelChange(length, jump)
        self.round, self._model = round, after
        self._changes = [*self._changes, length][-_ROUNDS:]
        return ModelChange(length, None)

    def _jump(self, round: int, after: Tensor) -> str | None:
        median = statistics.median(self._changes) if self._changes else 0.0
        distance = _distance(after, self._model)
        if not self._k or not median or distance <= self._k * median * (round - self.round):
            return None
        return (
            f"the shared model jumped: it is {distance / median:.3g} times as far from that of round {self.round} as "
            f"one round usually moves it; back-to {self.round} undoes it"
        )


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm())  # float64: the square of 3e38 is beyond float32
