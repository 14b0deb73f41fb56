"""What a site keeps between rounds, such as its personal model: one file per round, the last two, none is ever sent.

STATE/FEDERATION/METHOD/seed-0/site-00003/1f0c…/round-00007.safetensors

Files are written atomically. The folder `1f0c…` is the id of the server's training history: a resumed run continues in
it, a federation that starts over gets a new one, and older folders are left alone.
"""

import re
from pathlib import Path

from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.files import read_tensors, write_tensors
from fedtilt.parts import Tensors


class SiteStates:
    """What one site keeps in one training history.

    `base_round` is the round that the server's w came from.
    """

    def __init__(self, folder: Path, history_id: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{16}", history_id):
            raise InputError(f"the server's history id must be 16 hexadecimal digits, got {history_id[:40]!r}")
        self.folder = folder / history_id

    def rounds(self) -> list[int]:
        """The rounds with a stored state, oldest first."""
        numbers = (path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def path(self, round: int) -> Path:
        """The file of one round."""
        return self.folder / f"round-{round:05d}.safetensors"

    def current_round(self, base_round: int) -> int | None:
        """The round of the current state; None before the first.

        The state of a round that the server never aggregated (it was killed and repeats that round) is not current: the
        state before it is.
        """
        rounds = self.rounds()
        aggregated = [round for round in rounds if round <= base_round]
        if not aggregated and len(rounds) > 1:
            raise InputError(
                f"the server went back to round {base_round}, and the states in {self.folder} are of rounds "
                f"{rounds[0]} and {rounds[-1]}: restore the server's checkpoint, or move that folder away to start over"
            )
        return aggregated[-1] if aggregated else None

    def current(self, base_round: int) -> dict[str, Tensor]:
        """The current state; empty before the first."""
        round = self.current_round(base_round)
        return {} if round is None else read_tensors(self.path(round))

    def save(self, round: int, base_round: int, state: Tensors) -> None:
        """Save the state of a round, and keep the one to go back to if the server never aggregates it."""
        previous = self.current_round(base_round)
        write_tensors(self.path(round), state)
        for stored in self.rounds():
            if stored not in (previous, round):
                self.path(stored).unlink()
