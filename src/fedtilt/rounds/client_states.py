"""The state of a federation between rounds: what the server keeps, and what clients keep, in memory or in files.

A file belongs to one (method, client, round of training) and is never overwritten, so a killed process cannot damage a
file that a checkpoint refers to.
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
from fedtilt.parts import Tensors

Owner = tuple[str, int]  # method, client


class StoredState(NamedTuple):
    """A client's state on disk."""

    round: int  # in which the client took part
    sha256: str


def file_name(owner: Owner, round: int) -> str:
    """The file of a client's state, relative to the folder of `ClientStates`."""
    method, client = owner
    return f"{method}/client-{client:05d}.round-{round:05d}.safetensors"


class ClientStates:
    """`(method, client) →` the tensors that a client keeps, with the round in which it took part last.

    Args:
        folder: where states are stored; None: a temporary folder, created when needed
        limit_bytes: size of the states in memory, beyond which the oldest are moved to files
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = 2 * 2**30) -> None:
        self._persistent = folder is not None  # files of a run folder outlive the process: they are synced
        self._folder = folder
        self._limit = limit_bytes
        self._in_memory: OrderedDict[Owner, Tensors] = OrderedDict()  # oldest first
        self._bytes_in_memory = 0
        self._rounds: dict[Owner, int] = {}
        self._on_disk: dict[Owner, StoredState] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For a copy in another process, maybe without a GPU: states in temporary files are copied into memory."""
        attributes = self.__dict__.copy()
        owners = list(self._in_memory)
        if not self._persistent:
            attributes |= {"_folder": None, "_on_disk": {}}
            owners = sorted(self._rounds, key=self.round_of)
        states = OrderedDict((o, {name: tensor.cpu() for name, tensor in self.get(o).items()}) for o in owners)
        return attributes | {"_in_memory": states, "_bytes_in_memory": sum(map(_nbytes, states.values()))}

    def __len__(self) -> int:
        return len(self._rounds)

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._rounds

    def owners(self) -> list[Owner]:
        """Every (method, client) with a state, sorted."""
        return sorted(self._rounds)

    def round_of(self, owner: Owner) -> int:
        """The round in which this client took part last; 0 if it was never selected."""
        return self._rounds.get(owner, 0)

    def get(self, owner: Owner) -> Tensors:
        """The client's tensors by name; empty for a client that was never selected."""
        if owner in self._in_memory:
            return self._in_memory[owner]
        if owner in self._on_disk:
            return read_tensors(self._get_folder() / file_name(owner, self._on_disk[owner].round))
        return {}

    def put(self, owner: Owner, round: int, state: Tensors) -> None:
        """Set a client's new state; over the limit, the oldest states in memory are moved to files."""
        self._remove(owner)
        self._in_memory[owner] = state
        self._bytes_in_memory += _nbytes(state)
        self._rounds[owner] = round
        while self._bytes_in_memory > self._limit and len(self._in_memory) > 1:
            oldest = next(iter(self._in_memory))
            self._write(oldest)
            self._bytes_in_memory -= _nbytes(self._in_memory.pop(oldest))

    def save_all(self) -> dict[Owner, StoredState]:
        """Write the states that are only in memory; all states as files."""
        for owner in list(self._in_memory):
            self._write(owner)
        return dict(self._on_disk)

    def restore(self, stored: dict[Owner, StoredState]) -> None:
        """Use the files of a checkpoint."""
        for owner, stored_state in stored.items():
            self._rounds[owner], self._on_disk[owner] = stored_state.round, stored_state

    def prune(self, needed: Iterable[str]) -> None:
        """Delete all files but those of the current states and those in `needed`."""
        keep = {file_name(owner, stored_state.round) for owner, stored_state in self._on_disk.items()} | set(needed)
        for path in self._get_folder().glob("*/*.safetensors*"):
            if str(path.relative_to(self._get_folder())) not in keep:
                path.unlink()

    def _remove(self, owner: Owner) -> None:
        if owner in self._in_memory:
            self._bytes_in_memory -= _nbytes(self._in_memory.pop(owner))
        old = self._on_disk.pop(owner, None)
        if old and not self._persistent:  # a checkpoint may still need a persistent file: `prune` deletes it later
            (self._get_folder() / file_name(owner, old.round)).unlink()

    def _write(self, owner: Owner) -> None:
        round = self._rounds[owner]
        if owner in self._on_disk and self._on_disk[owner].round == round:
            return
        path = self._get_folder() / file_name(owner, round)
        digest = write_tensors(path, self._in_memory[owner], sync=self._persistent)
        self._on_disk[owner] = StoredState(round, digest if self._persistent else "")

    def _get_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedtilt-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def _nbytes(state: Tensors) -> int:
    return sum(tensor.nbytes for tensor in state.values())


@dataclass
class FederationState:
    """The complete state of a federation between two rounds."""

    round: int
    server: dict[str, Tensors]  # method → what its server keeps
    client_states: ClientStates

    @property
    def shared(self) -> dict[str, Tensor]:
        """Method → its shared parameters (S,)."""
        return {method: tensors["parameters"] for method, tensors in self.server.items()}
