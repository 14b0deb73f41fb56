"""Jumps of the shared model: a round that carries it too far is not one to go back to.

Screening bounds what a minority of sites can do. A majority, or two sites of which one is wrong, can still carry the
model away. Round t is good unless its model w_t jumps:

    ‖w_t − w_g‖ > k · m · (t − g)

g is the last good round, m the median of the changes ‖w_t − w_{t−1}‖ in the last good rounds, k that of the screening
(`train.screen`). The bound grows with t − g: a model that only learns faster than before is good again after some
rounds, a model that was carried away is not. The first round has nothing to compare with, and is good.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

_ROUNDS = 10  # how many changes are compared


class Change(NamedTuple):
    """How far one round moved the shared model."""

    length: float  # ‖w_t − w_{t−1}‖
    jump: str | None  # why the round is not good, and what undoes it


class JumpCheck:
    """Tells good rounds from jumps.

    Args:
        k: how many times the median a change may be; 0: every round is good
        round: the last good round
        model: its shared parameters (S,)
        changes: the lengths of the changes in the good rounds up to it
    """

    def __init__(self, k: float, round: int, model: Tensor, changes: Sequence[float] = ()) -> None:
        self._k, self.round, self._model = k, round, model
        self._changes = list(changes)[-_ROUNDS:]

    def check(self, round: int, before: Tensor, after: Tensor) -> Change:
        """The change of a round; if the round is good, the next ones are compared with it.

        Args:
            round: the number of the round
            before: the shared parameters (S,) at its start
            after: the shared parameters (S,) at its end
        """
        length = _distance(after, before)
        if jump := self._jump(round, after):
            return Change(length, jump)
        self.round, self._model = round, after
        self._changes = [*self._changes, length][-_ROUNDS:]
        return Change(length, None)

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
