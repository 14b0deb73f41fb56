"""Whether a run ends early, from its evaluations on validation data."""

from collections.abc import Mapping

from fedtilt.evaluation.metrics import Metrics
from fedtilt.evaluation.scores import SCORES
from fedtilt.stopping import Patience


class StopCheck:
    """Follows the evaluated rounds of a run, and says when it ends.

    Args:
        patience: the rule; None: a run never ends early
    """

    def __init__(self, patience: Patience | None) -> None:
        self._patience = patience
        self._best: float | None = None
        self.best_round = 0
        self.is_over = False

    def update(self, round: int, validation: Mapping[str, Metrics]) -> None:
        """Take the metrics of all methods on validation data after a round."""
        if self._patience is None:
            return
        values = [metrics.worst if self._patience.by == "worst" else metrics.mean for metrics in validation.values()]
        higher_is_better = SCORES[next(iter(validation.values())).score].higher_is_better
        score = (1 if higher_is_better else -1) * sum(values) / len(values)
        if self._best is None or score > self._best:
            self._best, self.best_round = score, round
        self.is_over = round - self.best_round >= self._patience.rounds

    @property
    def kept_round(self) -> int | None:
        """The best round so far, if the run ends with its models."""
        return self.best_round if self._patience is not None and self._patience.restore_best else None

    def describe(self, round: int, *, is_early: bool) -> str:
        """Why the run ends after a round, for the user."""
        assert self._patience is not None
        what = "the worst tenth of the clients" if self._patience.by == "worst" else "the mean over clients"
        start = f"stopped early after round {round}: " if is_early else ""
        text = f"{start}on validation data, {what} is best after round {self.best_round}"
        return f"{text}, whose models are the result" if self._patience.restore_best else text
