"""A callback from a function."""

from collections.abc import Callable

import fedtilt as ft


class Calls(ft.Callback):
    """Calls `on_round` after every round, and keeps the notices."""

    def __init__(self, on_round: Callable[[ft.Round], object] = lambda _: None) -> None:
        self._on_round = on_round
        self.notices: list[str] = []

    def on_round(self, round: ft.Round, metrics: object) -> None:
        self._on_round(round)

    def on_notice(self, text: str) -> None:
        self.notices.append(text)


def stop_after(round: int | None) -> Calls:
    """Interrupts the run after this round."""

    def stop(r: ft.Round) -> None:
        if r.number == round:
            raise KeyboardInterrupt

    return Calls(stop)
