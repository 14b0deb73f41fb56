"""The state of a federation between rounds: server states, and client states in memory or in files.

A file has the states of many clients, one after the other, each in the format of safetensors. It is written at once and
never changed, so a killed process cannot damage a file that a checkpoint refers to. Every state has its own hash, so
damage costs the clients whose bytes it hits, and no other.
"""

import hashlib
import re
import shutil
import tempfile
import weakref
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
from safetensors.torch import load
from torch import Tensor

from fedtilt.cluster.remote_tensor import LostTensorError, RemoteTensor, fetched
from fedtilt.errors import InputError
from fedtilt.files import atomic_file, reading, tensors_to_bytes, writing
from fedtilt.state import ClientState, ServerState

Owner = tuple[str, int]  # method, client
_NO_STATE = ClientState()  # of a client that was never selected
_MAX_FILES = 32  # with current states, beyond which the smaller half of them is merged


class StoredState(NamedTuple):
    """Where a client's state is on disk."""

    round: int  # in which the client took part
    file: int  # the number of the file
    start: int  # the first byte
    size: int
    sha256: bytes


def file_name(number: int) -> str:
    """The name of a file of states."""
    return f"states-{number:06d}"


def files_in(folder: Path) -> dict[Path, int]:
    """The files of states in a folder, complete or not, and their numbers."""
    matches = {path: re.fullmatch(r"states-(\d{6,})(\.part)?", path.name) for path in folder.glob("states-*")}
    return {path: int(match[1]) for path, match in matches.items() if match}


class ClientStates:
    """`(method, client) →` the state of a client, with the round in which it took part last.

    Those of a client may be `RemoteTensor`s, which stay on a node of a cluster, and are copied to a file by `save_all`.

    Args:
        folder: where states are stored; None: a temporary folder, created when needed
        limit_bytes: size of the states in memory, beyond which the oldest are moved to files
    """

    def __init__(self, folder: Path | None = None, limit_bytes: int = 2 * 2**30) -> None:
        self._persistent = folder is not None  # files of a run folder outlive the process: they are synced
        self._folder = folder
        self._limit = limit_bytes
        self._in_memory: OrderedDict[Owner, ClientState] = OrderedDict()  # oldest first
        self._bytes_in_memory = 0
        self._rounds: dict[Owner, int] = {}
        self._on_disk: dict[Owner, StoredState] = {}  # the current states that are in files
        self._saved: dict[Owner, StoredState] = {}  # those of the last `save_all`, to which a run may go back

    def __getstate__(self) -> dict[str, Any]:
        """For a copy in another process, maybe without a GPU: states in temporary files are copied into memory."""
        attributes = self.__dict__.copy()
        owners = list(self._in_memory)
        if not self._persistent:
            attributes |= {"_folder": None, "_on_disk": {}}
            owners = sorted(self._rounds, key=self.round_of)
        states = OrderedDict((owner, self.get(owner).map(Tensor.cpu)) for owner in owners)
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

    def get(self, owner: Owner, *, fetch: bool = True) -> ClientState:
        """The client's state, without `fetch` maybe of `RemoteTensor`s; empty for one that was never selected."""
        if owner in self._in_memory:
            state = self._in_memory[owner]
            try:
                return state.map(fetched) if fetch and _is_remote(state) else state
            except LostTensorError:
                if owner not in self._on_disk:
                    raise
        if owner in self._on_disk:
            return self._load(owner)
        return _NO_STATE

    def put(self, owner: Owner, round: int, state: ClientState) -> None:
        """Set a client's new state; over the limit, the oldest half of the states in memory is moved to a file.

        The tensors of the old state are overwritten if they fit: new ones every round would fragment the memory.
        """
        old = self._in_memory.get(owner)
        if old is not None and _same_layout(old, state):
            tensors = state.to_tensors()
            for name, tensor in old.to_tensors().items():
                tensor.copy_(tensors[name])
            state = old
        self.remove(owner)
        self._in_memory[owner] = state
        self._bytes_in_memory += _nbytes(state)
        self._rounds[owner] = round
        if self._bytes_in_memory > self._limit:
            self._move_oldest_to_file()

    def remove(self, owner: Owner) -> None:
        """Forget a client's state, as if the client had never been selected."""
        if owner in self._in_memory:
            self._bytes_in_memory -= _nbytes(self._in_memory.pop(owner))
        self._on_disk.pop(owner, None)
        self._rounds.pop(owner, None)

    @property
    def is_saved(self) -> bool:
        """Whether all states are in files."""
        return len(self._on_disk) == len(self._rounds)

    def save_all(self) -> dict[Owner, StoredState]:
        """Write the states that are only in memory, here or on nodes, to one file; where all states are."""
        self._write([owner for owner in self._in_memory if owner not in self._on_disk])
        self._saved = dict(self._on_disk)
        return self._saved

    def fetch_remote(self) -> None:
        """Bring all states that are on nodes of a cluster to this process, or to its files."""
        for owner in [owner for owner, state in self._in_memory.items() if _is_remote(state)]:
            if owner in self._on_disk:
                del self._in_memory[owner]
            else:
                self.put(owner, self._rounds[owner], self.get(owner))

    def restore(self, stored: Mapping[Owner, StoredState]) -> None:
        """Use the states of a checkpoint instead of those of now."""
        self._in_memory.clear()
        self._bytes_in_memory = 0
        self._on_disk = dict(stored)
        self._rounds = {owner: state.round for owner, state in stored.items()}

    def damaged(self) -> dict[Owner, Path]:
        """The states that cannot be read, and their files."""
        damaged = {}
        for owner, state in self._on_disk.items():
            try:
                self._load(owner)
            except InputError:
                damaged[owner] = self._path(state.file)
        return damaged

    def prune(self, needed: Collection[int]) -> None:
        """Delete all files but those with current states, those of the last `save_all` and those in `needed`."""
        used = {state.file for states in (self._on_disk, self._saved) for state in states.values()}
        keep = {file_name(number) for number in {*needed, *used}}
        for path in files_in(self._get_folder()):
            if path.name not in keep:
                with writing(path):
                    path.unlink()

    def _move_oldest_to_file(self) -> None:
        """Move the oldest states to a file, until the others have at most half of the limit, or one is left."""
        owners, size = [], self._bytes_in_memory
        for owner, state in list(self._in_memory.items())[:-1]:
            if size <= self._limit / 2:
                break
            owners.append(owner)
            size -= _nbytes(state)
        self._write([owner for owner in owners if owner not in self._on_disk])
        for owner in owners:
            self._bytes_in_memory -= _nbytes(self._in_memory.pop(owner))

    def _write(self, owners: Sequence[Owner]) -> None:
        """Write states to a new file, and with them the current states of files that are merged."""
        if not owners:
            return
        number = 1 + max(files_in(self._get_folder()).values(), default=0)
        merged = self._files_to_merge()
        # sorted: a resumed run then writes the same bytes
        owners = sorted([*owners, *(owner for owner, state in self._on_disk.items() if state.file in merged)])
        start, stored = 0, {}
        with atomic_file(self._path(number), sync=self._persistent) as file:
            for owner in owners:
                content = (
                    self._content(owner) if owner in self._on_disk else tensors_to_bytes(self.get(owner).to_tensors())
                )
                sha256 = hashlib.sha256(content).digest()
                stored[owner] = StoredState(self._rounds[owner], number, start, len(content), sha256)
                start += file.write(content)
        self._on_disk |= stored
        if not self._persistent:  # a checkpoint may still need a persistent file: it calls `prune`
            self.prune([])

    def _files_to_merge(self) -> set[int]:
        """Files that are mostly outdated and, if there are many, the smaller half."""
        sizes = Counter[int]()  # of the current states in each file
        for state in self._on_disk.values():
            sizes[state.file] += state.size
        mostly_outdated = {file for file, size in sizes.items() if 2 * size < self._file_size(file)}
        others = sorted(sizes.keys() - mostly_outdated, key=lambda file: (sizes[file], file))
        return mostly_outdated | set(others[: len(others) // 2] if len(others) > _MAX_FILES else ())

    def _file_size(self, number: int) -> int:
        with reading(self._path(number)):
            return self._path(number).stat().st_size

    def _load(self, owner: Owner) -> ClientState:
        try:
            return ClientState.from_tensors(load(self._content(owner)))
        except (safetensors.SafetensorError, ValueError) as error:
            raise InputError(f"{self._path(self._on_disk[owner].file)} is damaged ({error})") from error

    def _content(self, owner: Owner) -> bytes:
        state = self._on_disk[owner]
        path = self._path(state.file)
        with reading(path), path.open("rb") as file:
            file.seek(state.start)
            content = file.read(state.size)
        if hashlib.sha256(content).digest() != state.sha256:
            method, client = owner
            raise InputError(
                f"{path} is damaged where it has the state of client {client} for method {method!r}; "
                "resume the run: this client then starts again from the shared model"
            )
        return content

    def _path(self, number: int) -> Path:
        return self._get_folder() / file_name(number)

    def _get_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fedtilt-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def _is_remote(state: ClientState) -> bool:
    return any(isinstance(tensor, RemoteTensor) for tensor in state.to_tensors().values())


def _nbytes(state: ClientState) -> int:
    return sum(tensor.nbytes for tensor in state.to_tensors().values() if not isinstance(tensor, RemoteTensor))


def _same_layout(a: ClientState, b: ClientState) -> bool:
    layouts = [{name: (t.shape, t.dtype, t.device) for name, t in each.to_tensors().items()} for each in (a, b)]
    return layouts[0] == layouts[1] and not _is_remote(a) and not _is_remote(b)


@dataclass
class FederationState:
    """The complete state of a federation between two rounds."""

    round: int
    server: dict[str, ServerState]  # by method
    client_states: ClientStates

    @property
    def shared(self) -> dict[str, Tensor]:
        """Method → its shared parameters (S,)."""
        return {method: server.parameters for method, server in self.server.items()}
