"""A run without a folder: the interface of `RunFolder`, in memory."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fedtilt.engine.client_states import ClientStates, FederationState
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.storage.evaluations import History


class InMemoryRun:
    """The interface of `RunFolder` for a run without a folder; only client states over the limit are in files."""

    def __init__(self, memory_limit: int) -> None:
        self.client_states = ClientStates(None, memory_limit)
        self.history: History = {}
        self.validation: dict[str, RoundMetrics] = {}
        self._last: tuple[dict[str, Counts], Tensor] | None = None

    def begin(self, fingerprint: Mapping[str, Any], notice: Callable[[str], None]) -> None:
        """No-op: there is no earlier state."""

    def describe(self, **names: object) -> None:
        """No-op."""

    def record(
        self, round: int, summaries: Mapping[str, RoundMetrics], counts: Mapping[str, Counts], total: Tensor,
        validation: Mapping[str, RoundMetrics] | None = None,
    ) -> None:  # fmt: skip
        """Add an evaluated round."""
        self.validation = dict(validation or {})
        for name, summary in summaries.items():
            self.history.setdefault(name, []).append((round, summary))
        self._last = dict(counts), total

    def counts(self, round: int) -> tuple[dict[str, Counts], Tensor]:
        """The counts of the last evaluated round by method, and the number of samples."""
        assert self._last is not None
        return self._last

    def checkpoint(self, state: FederationState) -> None:
        """No-op."""
