"""What a site keeps between rounds, such as its personal model: one file per round, none is ever sent.

STATE/FEDERATION/METHOD/seed-0/site-00003/1f0c…/round-00007.safetensors

The folder `1f0c…` is the id of the server's training history: a resumed run continues in it, a federation that starts
over or goes back to an earlier round gets a new one, and older folders are left alone. A site keeps its state of every
round that the server can go back to. Files are written atomically, and have a digest.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedtilt.auditing import collect as audit
from fedtilt.errors import InputError
from fedtilt.files import read_tensors, write_tensors
from fedtilt.flower.training_history import TrainingHistory
from fedtilt.parts import Tensors


class DamagedState(InputError):
    """A state that cannot be used: its file is damaged, or of another model."""


class SiteState(NamedTuple):
    """What a site kept of one round."""

    round: int
    path: Path

    def read(self, expected: Tensors) -> dict[str, Tensor]:
        """The tensors, or a `DamagedState`; a file that cannot be read at all may be intact, and is an `InputError`.

        Args:
            expected: tensors of the names, shapes and types that it must have
        """
        try:
            state = read_tensors(self.path)
        except InputError as error:
            if isinstance(error.__cause__, OSError):
                raise
            raise DamagedState(self._restart(str(error))) from error
        model = {name: tensor for name, tensor in state.items() if name not in audit.NAMES}  # those are by sample
        if (found := _describe(model)) != (wanted := _describe(expected)):
            raise DamagedState(self._restart(f"{self.path} is of another model: it has {found} instead of {wanted}"))
        return state

    def _restart(self, reason: str) -> str:
        return f"what this site kept of round {self.round} starts again from the shared model: {reason}"


class SiteStates:
    """What one site keeps in one training history."""

    def __init__(self, folder: Path, history: TrainingHistory) -> None:
        self._parent, self._history = folder, history
        self.folder = folder / history.id

    def rounds(self) -> list[int]:
        """The rounds of this history with a stored state, oldest first."""
        return _rounds(self.folder)

    def path(self, round: int) -> Path:
        """The file of one round."""
        return _path(self.folder, round)

    def current(self, base_round: int) -> SiteState | None:
        """What the site kept last; None before its first round.

        The state of a round that the server never aggregated (it was killed and repeats that round) is not current: the
        state before it is. In a history that started from another one, that one's states count up to that round.

        Args:
            base_round: the round that the server's w came from
        """
        rounds = self.rounds()
        if rounds and rounds[-1] > base_round + 1:
            raise InputError(
                f"the server went back to round {base_round}, and this site has trained round {rounds[-1]} since "
                f"({self.folder}); start the run with --back-to {base_round}, so that the sites go back too"
            )
        last = base_round
        for id, until in [(self._history.id, base_round), *reversed(self._history.earlier)]:
            folder, last = self._parent / id, min(last, until)
            if aggregated := [round for round in _rounds(folder) if round <= last]:
                return SiteState(aggregated[-1], _path(folder, aggregated[-1]))
        return None

    def save(self, round: int, base_round: int, state: Tensors, keep: Collection[int] = ()) -> None:
        """Save the state of a round, and keep those that the server can go back to.

        Args:
            round: the round that was trained
            base_round: the round that it started from; the server goes back to it if it never aggregates `round`
            state: what the site keeps
            keep: the rounds that the server can go back to
        """
        write_tensors(self.path(round), state)
        rounds = self.rounds()
        needed = {max((r for r in rounds if r <= kept), default=round) for kept in {base_round, *keep}}
        for stored in rounds:
            if stored not in needed and stored != round:
                self.path(stored).unlink()


def _rounds(folder: Path) -> list[int]:
    numbers = (path.stem.removeprefix("round-") for path in folder.glob("round-*.safetensors"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def _path(folder: Path, round: int) -> Path:
    return folder / f"round-{round:05d}.safetensors"


def _describe(tensors: Mapping[str, Tensor]) -> str:
    """Names, shapes and types in one line."""
    return ", ".join(f"{name} {tuple(t.shape)} {t.dtype}" for name, t in sorted(tensors.items())) or "nothing"
