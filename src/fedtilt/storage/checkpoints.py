"""Checkpoints: the server states, and where the client states are, with hashes.

checkpoints/round-00040/manifest.json          the round, and the hashes of the other two files
checkpoints/round-00040/server.safetensors     server states, by method
checkpoints/round-00040/clients.safetensors    where the client states are, by method
clients/states-000012                          client states (`fedtilt.engine.client_states`)
"""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtilt.engine.client_states import ClientStates, FederationState, Owner, StoredState
from fedtilt.errors import InputError
from fedtilt.files import interpreting, read_json, read_tensors, sync_folder, write_json, write_tensors, writing
from fedtilt.state import ServerState
from fedtilt.storage.evaluations import rounds_in

_CHECKPOINTS = 2  # how many are kept


class Checkpoints:
    """The checkpoints in the folder of one seed."""

    def __init__(self, folder: Path, client_states: ClientStates) -> None:
        self._folder = folder / "checkpoints"
        self._client_states = client_states
        self._files_of: dict[int, frozenset[int]] = {}  # round → files with its client states, once they are known

    def rounds(self) -> list[int]:
        """The rounds with a checkpoint, oldest first."""
        return list(rounds_in(self._folder).values())

    def folder_of(self, round: int) -> Path:
        """The folder of a checkpoint."""
        return self._folder / f"round-{round:05d}"

    def write(self, state: FederationState, *, is_evaluated: bool, keep: Collection[int] = ()) -> None:
        """Write a checkpoint: complete under its final name, or absent.

        `is_evaluated` says whether the metrics of its round are recorded. Those of the rounds in `keep` are kept.
        """
        stored = self._client_states.save_all()
        final = self.folder_of(state.round)
        partial = final.with_name(f".{final.name}.part")
        with writing(final):
            for old in (partial, final):
                if old.exists():
                    shutil.rmtree(old)
            server = {f"{method}/{name}": t for method, s in state.server.items() for name, t in s.to_tensors().items()}
            manifest = {
                "round": state.round,
                "evaluated": is_evaluated,
                "server": write_tensors(partial / "server.safetensors", server),
                "clients": write_tensors(partial / "clients.safetensors", _to_tensors(stored)),
            }
            write_json(partial / "manifest.json", manifest)
            partial.rename(final)
            sync_folder(final.parent)
        self._files_of[state.round] = frozenset(stored_state.file for stored_state in stored.values())
        self._delete_old(keep)

    def _delete_old(self, keep: Collection[int]) -> None:
        """Delete all but the last checkpoints and `keep`, and the client states that none of these refers to."""
        rounds = self.rounds()
        kept = [round for round in rounds if round in rounds[-_CHECKPOINTS:] or round in keep]
        for round in rounds:
            if round not in kept:
                self._delete(round)
        try:
            needed = {file for round in kept for file in self._files(round)}
        except InputError:  # a damaged manifest: whatever it refers to is kept as long as it is
            return
        self._client_states.prune(needed)

    def _files(self, round: int) -> frozenset[int]:
        if round not in self._files_of:
            self._files_of[round] = frozenset(state.file for state in self._stored(round).values())
        return self._files_of[round]

    def delete_after(self, round: int) -> None:
        """Delete the checkpoints of later rounds, the last one first: a kill leaves a folder that can be resumed."""
        for later in reversed(self.rounds()):
            if later > round:
                self._delete(later)

    def _delete(self, round: int) -> None:
        with writing(self.folder_of(round)):
            shutil.rmtree(self.folder_of(round))
        self._files_of.pop(round, None)

    def read(self, round: int) -> FederationState:
        """The state of a checkpoint, which must be intact; the states of clients are checked when they are read."""
        manifest = self._manifest(round)
        server: dict[str, dict[str, Tensor]] = {}
        with interpreting(self.folder_of(round)):
            for key, tensor in read_tensors(self.folder_of(round) / "server.safetensors", manifest["server"]).items():
                method, name = key.rsplit("/", 1)
                server.setdefault(method, {})[name] = tensor
            states = {method: ServerState.from_tensors(tensors) for method, tensors in server.items()}
        self._client_states.restore(self._stored(round))
        return FederationState(round, states, self._client_states)

    def is_evaluated(self, round: int) -> bool:
        """Whether the metrics of this round were recorded before its checkpoint."""
        return bool(self._manifest(round)["evaluated"])

    def _manifest(self, round: int) -> dict[str, Any]:
        path = self.folder_of(round) / "manifest.json"
        manifest = read_json(path)
        expected = {"round", "evaluated", "server", "clients"}
        if not isinstance(manifest, dict) or not expected <= manifest.keys() or manifest["round"] != round:
            raise InputError(
                f"{path} is damaged, or an earlier version of fedtilt wrote it; start again in another folder"
            )
        return manifest

    def _stored(self, round: int) -> dict[Owner, StoredState]:
        """Where the states of the clients are."""
        path = self.folder_of(round) / "clients.safetensors"
        tensors = read_tensors(path, self._manifest(round)["clients"])
        with interpreting(path):
            stored = {}
            for method in dict.fromkeys(key.rsplit("/", 1)[0] for key in tensors):
                where, hashes = tensors[f"{method}/where"].tolist(), tensors[f"{method}/sha256"].numpy()
                for (client, round, file, start, size), sha256 in zip(where, hashes, strict=True):
                    stored[method, client] = StoredState(round, file, start, size, bytes(sha256))
            return stored


def _to_tensors(stored: Mapping[Owner, StoredState]) -> dict[str, Tensor]:
    """Where states are, as tensors: rows of thousands of clients as Python values would fragment the memory."""
    tensors = {}
    for method in dict.fromkeys(method for method, _ in stored):
        owners = sorted(owner for owner in stored if owner[0] == method)
        where = [(client, *stored[method, client][:4]) for _, client in owners]
        hashes = bytearray().join(stored[owner].sha256 for owner in owners)
        tensors[f"{method}/where"] = torch.tensor(where)  # (C, 5): client, round, file, start, size
        tensors[f"{method}/sha256"] = torch.frombuffer(hashes, dtype=torch.uint8).reshape(-1, 32)
    return tensors
