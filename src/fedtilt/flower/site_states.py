"""Personal models on their site: one file a round, of which the last two are kept, and none ever travels.

STATE/FEDERATION/METHOD/seed-0/site-00003/1f0c…/round-00007.safetensors

A file is whole or not there. The folder `1f0c…` is the server's training history: a new run that resumes goes on in it,
a federation that starts over gets another one, and what was there before is left alone.
"""

import re
from pathlib import Path

from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.files import read_tensors, write_tensors


class Locker:
    """One site's personal models of one training history."""

    def __init__(self, folder: Path, history: str) -> None:
        if not re.fullmatch(r"[0-9a-f]{16}", history):
            raise InputError(f"the server's history must be 16 hexadecimal digits, got {history[:40]!r}")
        self.folder = folder / history

    def rounds(self) -> list[int]:
        """The rounds whose models are here, oldest first."""
        numbers = (path.stem.removeprefix("round-") for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(number) for number in numbers if number.isdecimal())

    def path(self, round: int) -> Path:
        """The file of one round."""
        return self.folder / f"round-{round:05d}.safetensors"

    def standing(self, base: int) -> int | None:
        """The round of the model that stands when the server's w is of round `base`; None before the first.

        A model trained in a round that the server never aggregated (it was killed, and began that round again) does not
        stand: the one before it does.
        """
        rounds = self.rounds()
        standing = [r for r in rounds if r <= base]
        if not standing and len(rounds) > 1:
            raise InputError(
                f"the server went back to round {base}, and the personal models in {self.folder} are of rounds "
                f"{rounds[0]} and {rounds[-1]}: restore the server's checkpoint, or move that folder away to start over"
            )
        return standing[-1] if standing else None

    def last(self, base: int) -> Tensor | None:
        """The personal model that stands, or None before the first."""
        round = self.standing(base)
        return None if round is None else read_tensors(self.path(round))["model"]

    def keep(self, round: int, base: int, model: Tensor) -> None:
        """Keep the model of a round, and the one to go back to if the server never aggregates it."""
        before = self.standing(base)
        write_tensors(self.path(round), {"model": model})
        for old in self.rounds():
            if old not in (before, round):
                self.path(old).unlink()
