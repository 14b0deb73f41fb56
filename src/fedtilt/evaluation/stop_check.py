"""Whether a run ends early, from its evaluations on validation data."""

from collections.abc import Mapping
from typing import NamedTuple

from fedtilt.evaluation.metrics import Metrics
from fedtilt.evaluation.scores import SCORES
from fedtilt.stopping import Patience


class Ending(NamedTuple):
    """With which round a run ends."""

    round: int
    reason: str
    rounds: int | None  # if the run gets more rounds than these, it continues; None: it has ended early


class StopCheck:
    """Follows the evaluated rounds of a run, and says when it ends by this rule; None: never early."""

    def __init__(self, patience: Patience | None) -> None:
        self._patience = patience
        self._best: float | None = None
        self.best_round = 0
        self.is_over = False

    def update(self, round: int, validation: Mapping[str, Metrics], best: Mapping[str, Metrics] | None = None) -> None:
        """Take the metrics of all methods on validation data after a round.

        `best` are those of the best round so far over the clients of this round; default: all clients are in both.
        """
        if self._patience is None:
            return
        score = _score(validation, self._patience.by)
        to_beat = self._best if best is None else _score(best, self._patience.by)
        if to_beat is None or score > to_beat:
            self._best, self.best_round = score, round
        self.is_over = round - self.best_round >= self._patience.rounds

    @property
    def kept_round(self) -> int | None:
        """The best round so far, if the run ends with its models."""
        return self.best_round if self._patience is not None and self._patience.restore_best else None

    def ending(self, round: int, rounds: int) -> Ending | None:
        """How a run of these rounds ends that has done this one; None: with its last round, or not yet.

        After a kill before it is recorded, a resumed run ends in the same way.
        """
        best, is_early = self.kept_round, self.is_over and round < rounds
        goes_back = best is not None and best < round and (is_early or round == rounds)
        if not is_early and not goes_back:
            return None
        assert self._patience is not None
        what = "the worst tenth of the clients" if self._patience.by == "worst" else "the mean over clients"
        start = f"stopped early after round {round}: " if is_early else ""
        text = f"{start}on validation data, {what} is best after round {self.best_round}"
        reason = f"{text}, whose models are the result" if self._patience.restore_best else text
        return Ending(self.best_round if goes_back else round, reason, None if is_early else rounds)


def _score(validation: Mapping[str, Metrics], by: str) -> float:
    """The mean over the methods of what improves; higher is better."""
    values = [metrics.worst if by == "worst" else metrics.mean for metrics in validation.values()]
    higher_is_better = SCORES[next(iter(validation.values())).score].higher_is_better
    return (1 if higher_is_better else -1) * sum(values) / len(values)
