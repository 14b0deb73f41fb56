"""What a federation remembers: above all personal models, in memory while they are few, in files beyond a size.

A file belongs to one (method, client, round it was trained in) and is never written twice, so a kill cannot tear one
that a checkpoint refers to.
"""

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedtilt.files import read_tensors, write_tensors

Owner = tuple[str, int]  # method, client


class StoredState(NamedTuple):
    """A personal model on disk."""

    round: int
    sha256: str


def file_of(owner: Owner, round: int) -> str:
    """The file of a personal model, relative to the shelf's folder."""
    method, client = owner
    return f"{method}/client-{client:05d}.round-{round:05d}.safetensors"


class ClientStates:
    """`(method, client) → personal model`, with the round each was trained in."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = 2 * 2**30) -> None:
        self._lasting = folder is not None  # files of a run folder outlive the process: they are synced
        self._folder = folder
        self._limit = limit_bytes
        self._hot: OrderedDict[Owner, Tensor] = OrderedDict()  # oldest first
        self._hot_bytes = 0
        self._rounds: dict[Owner, int] = {}
        self._volumes: dict[Owner, StoredState] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For a copy elsewhere, maybe without a GPU: files that end with this process come along in memory."""
        kept = self.__dict__.copy()
        owners = list(self._hot)
        if not self._lasting:
            kept |= {"_folder": None, "_volumes": {}}
            owners = sorted(self._rounds, key=self.round_of)
        hot = OrderedDict((o, model.cpu()) for o in owners if (model := self.get(o)) is not None)
        return kept | {"_hot": hot, "_hot_bytes": sum(model.nbytes for model in hot.values())}

    def __len__(self) -> int:
        return len(self._rounds)

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._rounds

    def owners(self) -> list[Owner]:
        """Who has a personal model, sorted."""
        return sorted(self._rounds)

    def round_of(self, owner: Owner) -> int:
        """The round this model was trained in; 0 for a client that never took part."""
        return self._rounds.get(owner, 0)

    def get(self, owner: Owner) -> Tensor | None:
        """The model, or None for a client that never took part."""
        if owner in self._hot:
            return self._hot[owner]
        if owner in self._volumes:
            return read_tensors(self._home() / file_of(owner, self._volumes[owner].round))["model"]
        return None

    def put(self, owner: Owner, round: int, model: Tensor) -> None:
        """Keep a client's new model; over the limit, the oldest in memory move to files."""
        self._forget(owner)
        self._hot[owner] = model
        self._hot_bytes += model.nbytes
        self._rounds[owner] = round
        while self._hot_bytes > self._limit and len(self._hot) > 1:
            oldest = next(iter(self._hot))
            self._write(oldest)
            self._hot_bytes -= self._hot.pop(oldest).nbytes

    def stored(self) -> dict[Owner, StoredState]:
        """Every model as a file; those that were only in memory are written now."""
        for owner in list(self._hot):
            self._write(owner)
        return dict(self._volumes)

    def restore(self, stored: dict[Owner, StoredState]) -> None:
        """Take over the files of a checkpoint."""
        for owner, stored_state in stored.items():
            self._rounds[owner], self._volumes[owner] = stored_state.round, stored_state

    def prune(self, needed: Iterable[str]) -> None:
        """Delete the files that neither the shelf nor anyone else needs any more."""
        kept = {file_of(owner, stored_state.round) for owner, stored_state in self._volumes.items()} | set(needed)
        for path in self._home().glob("*/*.safetensors*"):
            if str(path.relative_to(self._home())) not in kept:
                path.unlink()

    def _forget(self, owner: Owner) -> None:
        if owner in self._hot:
            self._hot_bytes -= self._hot.pop(owner).nbytes
        stale = self._volumes.pop(owner, None)
        if stale and not self._lasting:  # a checkpoint may still need a lasting one: `prune` decides
            (self._home() / file_of(owner, stale.round)).unlink()

    def _write(self, owner: Owner) -> None:
        round = self._rounds[owner]
        if owner in self._volumes and self._volumes[owner].round == round:
            return
        file = self._home() / file_of(owner, round)
        digest = write_tensors(file, {"model": self._hot[owner]}, sync=self._lasting)
        self._volumes[owner] = StoredState(round, digest if self._lasting else "")

    def _home(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedtilt-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


@dataclass
class FederationState:
    """All that a federation remembers between two rounds."""

    round: int
    shared: dict[str, Tensor]  # method → (P,)
    client_states: ClientStates
