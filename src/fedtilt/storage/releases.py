"""How many models with noise a run has made. With secret noise, a round that is repeated makes another one."""

from pathlib import Path

from fedtilt.errors import InputError
from fedtilt.files import read_json, write_json


class Releases:
    """Counts the models of a run, also those of rounds that were repeated after a kill or damage.

    The count is recorded in a file before the model is used; None: nowhere. `done` rounds are done.

    >>> releases = Releases(None, done=3)
    >>> releases.add(), releases.count
    (4, 4)
    """

    def __init__(self, file: Path | None, done: int = 0) -> None:
        self._file = file
        self.count = max(done, self._recorded(done))

    def _recorded(self, done: int) -> int:
        if self._file is None:
            return 0
        if not self._file.exists():
            if done:
                raise InputError(
                    f"{self._file} is missing, and without it nobody knows how many models were made; restore it from "
                    "a copy, or start again in another folder"
                )
            return 0
        match read_json(self._file):
            case {"releases": int(releases)} if releases > 0:
                return releases
        raise InputError(f"{self._file} is damaged; start again in another folder")

    def add(self) -> int:
        """Count one more model, and return how many there are."""
        self.count += 1
        if self._file is not None:
            write_json(self._file, {"releases": self.count})
        return self.count
