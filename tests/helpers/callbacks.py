"""A callback from a function."""

from collections.abc import Callable, Mapping

import fedtilt as ft
from fedtilt.runs.callback import SearchProgress


class Calls(ft.Callback):
    """Calls a function after every round of a run or of a search, and keeps the notices and scores."""

    def __init__(
        self,
        on_round: Callable[[ft.Round], object] = lambda _: None,
        on_search: Callable[[SearchProgress], object] = lambda _: None,
    ) -> None:
        self._on_round, self._on_search = on_round, on_search
        self.notices: list[str] = []
        self.scores: list[tuple[int, Mapping[str, Mapping[str, float]]]] = []

    def on_round(self, round: ft.Round, metrics: object) -> None:
        self._on_round(round)

    def on_search(self, progress: SearchProgress) -> None:
        self._on_search(progress)

    def on_scores(self, round: int, scores: Mapping[str, Mapping[str, float]]) -> None:
        self.scores.append((round, scores))

    def on_notice(self, text: str) -> None:
        self.notices.append(text)


def stop_after(round: int | None) -> Calls:
    """Interrupts the run after this round."""

    def stop(r: ft.Round) -> None:
        if r.number == round:
            raise KeyboardInterrupt

    return Calls(stop)
