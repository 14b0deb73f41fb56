"""The run folder: metrics, counts and checkpoints of one seed, written so that a kill at any moment loses nothing.

fingerprint.json                               methods, settings, data and model: a folder with others is refused
federation.json                                names of clients and classes, and the clients with outliers
backend.json                                   which backend trained last, and why faster ones did not
model.json                                     how to build the model, and how to standardise its input
constants.safetensors                          frozen parameters and initial buffers of the model, if it has any
metrics.jsonl                                  one line per evaluated round and method
counts/round-00040.safetensors                 correct predictions per client and class
checkpoints/round-00040/                       what the server keeps, and a manifest with hashes; the last two
clients/METHOD/client-00003.round-00038.…      what clients keep, by client and the round they took part in
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.results import Summary
from fedtilt.files import first_difference, read_json, read_tensors, sync_folder, write_bytes, write_json, write_tensors
from fedtilt.rounds.client_states import ClientStates, FederationState, StoredState, file_name
from fedtilt.storage import run_length
from fedtilt.storage.run_length import with_interval, without_rounds

History = dict[str, list[tuple[int, Summary]]]  # method → (round, metrics)
_CHECKPOINTS = 2  # how many are kept


class RunFolder:
    """One seed's part of a run folder."""

    def __init__(self, folder: Path, memory_limit: int = 2 * 2**30) -> None:
        self.folder = folder
        self.client_states = ClientStates(folder / "clients", memory_limit)
        self.history: History = {}
        self.validation: dict[str, Summary] = {}  # of the last evaluated round

    # -- fingerprint and description ---------------------------------------------------------------------------------

    def begin(self, fingerprint: Mapping[str, Any], notice: Callable[[str], None]) -> FederationState | None:
        """Start or resume a run in this folder: the state of the last checkpoint, or None for a new run.

        A folder with another fingerprint is refused; the number of rounds may change as `check_rounds` allows. A
        damaged checkpoint is reported to `notice` and skipped.
        """
        path = self.folder / "fingerprint.json"
        if not path.exists():
            write_json(path, fingerprint)
            return None
        before = with_interval(read_json(path))
        difference = first_difference(without_rounds(before), without_rounds(_with_keys_of(before, fingerprint)))
        if difference:
            key, was, now = difference
            raise InputError(
                f"{self.folder} was started with {key} = {was}, and now it is {now}; "
                "restore it, or start a new run in another folder (--out, or out= in Python)"
            )
        train = fingerprint["train"]
        rounds, interval = train["rounds"], train["eval_every"]
        if rounds != before["train"]["rounds"]:
            self.check_rounds(rounds)
            write_json(path, _with_keys_of(before, fingerprint))
        # the last round is evaluated even between two intervals; a longer run has no such evaluation
        return self.resume(notice, lambda round: round % interval == 0 or round == rounds)

    def check_rounds(self, rounds: int) -> None:
        """Refuse this number of rounds if the run in this folder cannot go on to it."""
        path = self.folder / "fingerprint.json"
        if path.exists():
            done = max(map(_round_of, self._checkpoints()), default=0)
            is_evaluated = self._counts_file(done).exists()
            run_length.check_rounds(self.folder, read_json(path)["train"], rounds, done, is_evaluated)

    def resume(
        self, notice: Callable[[str], None], evaluates: Callable[[int], bool] = lambda _: True
    ) -> FederationState | None:
        """The state of the newest intact checkpoint; everything that was written after it is deleted.

        Args:
            notice: called with a message about a damaged checkpoint
            evaluates: whether the run evaluates a round; other evaluations are deleted too
        """
        state = self.latest(notice)
        self._delete_after(state.round if state else 0, evaluates)
        return state

    def check_other_seeds(self, fingerprint: Mapping[str, Any]) -> None:
        """Refuse a folder with seeds of another run: reports would mix them.

        The seeds of one run may differ in their number of rounds while they go on beyond their end, one by one.
        """
        compared = without_rounds if (self.folder / "fingerprint.json").exists() else dict
        for path in sorted(self.folder.parent.glob("seed-*/fingerprint.json")):
            if path.parent == self.folder:
                continue
            other = compared(with_interval(read_json(path)))
            difference = first_difference(
                _without_seed(other), _without_seed(compared(_with_keys_of(other, fingerprint)))
            )
            if difference:
                key, was, now = difference
                raise InputError(
                    f"{self.folder.parent} has {path.parent.name} of a run with {key} = {was}, and now it is {now}; "
                    "choose another folder"
                )

    def describe(
        self, *, clients: Sequence[str], classes: Sequence[str], has_outliers: Sequence[int],
        constants: Mapping[str, Tensor] | None = None, model: Mapping[str, Any] | None = None,
        backend: str | None = None,
    ) -> None:  # fmt: skip
        """Write names, model and backend for reports and exports.

        Args:
            clients: names of the clients
            classes: names of the classes
            has_outliers: numbers of the clients with outliers
            constants: frozen parameters and initial buffers of the model
            model: how to build the model, and how to standardise its input
            backend: which backend trains, and why faster ones do not
        """
        names = {"clients": list(clients), "classes": list(classes), "has_outliers": list(has_outliers)}
        write_json(self.folder / "federation.json", names, sync=False)
        if backend is not None:
            write_json(self.folder / "backend.json", {"backend": backend}, sync=False)
        if model is not None:
            write_json(self.folder / "model.json", model, sync=False)
        if constants and not self._constants_file.exists():
            write_tensors(self._constants_file, constants)

    def description(self) -> dict[str, Any]:
        """What `describe` wrote, without the constants."""
        paths = [self.folder / "federation.json", self.folder / "model.json"]
        return {key: value for path in paths if path.exists() for key, value in read_json(path).items()}

    def constants(self) -> dict[str, Tensor]:
        """Frozen parameters and initial buffers of the model."""
        return read_tensors(self._constants_file) if self._constants_file.exists() else {}

    @property
    def _constants_file(self) -> Path:
        return self.folder / "constants.safetensors"

    # -- metrics and counts ------------------------------------------------------------------------------------------

    def record(
        self, round: int, summaries: Mapping[str, Summary], counts: Mapping[str, Counts], total: Tensor,
        validation: Mapping[str, Summary] | None = None,
    ) -> None:  # fmt: skip
        """Add an evaluated round."""
        lines = ""
        self.validation = dict(validation or {})
        for name, summary in summaries.items():
            self.history.setdefault(name, []).append((round, summary))
            entry = {"round": round, "method": name} | summary.to_json()
            if name in self.validation:
                entry["validation"] = self.validation[name].to_json()
            lines += json.dumps(entry, allow_nan=False) + "\n"
        tensors = {"total": total.int()}
        for name, count in counts.items():
            tensors[f"{name}/shared"] = count.shared.int()
            tensors[f"{name}/never_selected"] = count.never_selected
            if count.personal is not None:
                tensors[f"{name}/personal"] = count.personal.int()
        write_tensors(self._counts_file(round), tensors)
        try:
            with self._metrics_file.open("a") as file:
                file.write(lines)
        except OSError as error:
            raise InputError(f"cannot write {self._metrics_file}: {error.strerror}; free some space") from error

    def counts(self, round: int) -> tuple[dict[str, Counts], Tensor]:
        """The counts of an evaluated round by method, and the number of samples."""
        tensors = read_tensors(self._counts_file(round))
        total = tensors.pop("total").long()
        counts = {}
        for key in tensors:
            name, part = key.rsplit("/", 1)
            if part == "shared":
                personal = tensors.get(f"{name}/personal")
                personal = None if personal is None else personal.long()
                counts[name] = Counts(tensors[key].long(), personal, tensors[f"{name}/never_selected"])
        return counts, total

    @property
    def _metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    def _counts_file(self, round: int) -> Path:
        return self.folder / "counts" / f"round-{round:05d}.safetensors"

    def _delete_after(self, round: int, evaluates: Callable[[int], bool]) -> None:
        """Read the history up to this round, and delete what later rounds and other evaluations have written."""
        self.history, self.validation = {}, {}
        lines = []
        if self._metrics_file.exists():
            for line in self._metrics_file.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    break  # the line that was being written when the process was killed
                if entry["round"] <= round and evaluates(entry["round"]):
                    lines.append(line)
                    self.history.setdefault(entry["method"], []).append((entry["round"], Summary.from_json(entry)))
                    if "validation" in entry:
                        self.validation[entry["method"]] = Summary.from_json(entry["validation"])
            write_bytes(self._metrics_file, "".join(line + "\n" for line in lines).encode())
        for path in (self.folder / "counts").glob("round-*"):
            if _round_of(path) > round or not evaluates(_round_of(path)):
                path.unlink()
        for folder in self._checkpoints():
            if _round_of(folder) > round:  # a damaged one that was skipped
                shutil.rmtree(folder)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self, state: FederationState, keep: Collection[int] = ()) -> None:
        """Write a checkpoint: complete under its final name, or absent.

        Args:
            state: what the server and the clients keep
            keep: rounds whose checkpoints are kept beside the last two
        """
        if self._metrics_file.exists():
            with self._metrics_file.open("rb") as file:
                os.fsync(file.fileno())
        final = self._checkpoint_folder(state.round)
        partial = final.with_name(f".{final.name}.part")
        for old in (partial, final):
            shutil.rmtree(old, ignore_errors=True)
        stored = self.client_states.save_all()
        server = {f"{method}/{name}": t for method, tensors in state.server.items() for name, t in tensors.items()}
        manifest = {
            "round": state.round,
            "server": write_tensors(partial / "server.safetensors", server),
            "clients": [[*owner, *stored_state] for owner, stored_state in sorted(stored.items())],
        }
        write_json(partial / "manifest.json", {"sha256": _digest(manifest)} | manifest)
        sync_folder(partial)
        partial.rename(final)
        sync_folder(final.parent)
        self._delete_old_checkpoints(keep)

    def _delete_old_checkpoints(self, keep: Collection[int]) -> None:
        """Delete all but the last checkpoints and `keep`, and the client states that none of these refers to."""
        folders = self._checkpoints()
        old = [folder for folder in folders[:-_CHECKPOINTS] if _round_of(folder) not in keep]
        for folder in old:
            shutil.rmtree(folder)
        manifests = [read_json(folder / "manifest.json") for folder in folders if folder not in old]
        needed = [file_name((method, client), round) for m in manifests for method, client, round, _ in m["clients"]]
        self.client_states.prune(needed)

    def latest(self, notice: Callable[[str], None] = lambda _: None) -> FederationState | None:
        """The state of the newest intact checkpoint, or None if there is no checkpoint at all."""
        damaged = []
        for folder in reversed(self._checkpoints()):
            try:
                state = self._read_checkpoint(folder)
            except InputError as error:
                damaged.append(folder)
                notice(
                    f"the checkpoint of round {_round_of(folder)} is damaged ({error}); going back to the one before"
                )
                continue
            return state
        if damaged:
            raise InputError(f"no checkpoint in {self.folder} is intact; start again in another folder")
        return None

    def checkpoint_rounds(self) -> list[int]:
        """The rounds with a checkpoint, oldest first."""
        return [_round_of(folder) for folder in self._checkpoints()]

    def checkpoint_of(self, round: int) -> FederationState:
        """The state of one checkpoint, which must be intact."""
        return self._read_checkpoint(self._checkpoint_folder(round))

    def delete_checkpoints_after(self, round: int) -> None:
        """Make an earlier checkpoint the last one; the next `begin` deletes what was recorded after it."""
        for folder in reversed(self._checkpoints()):  # a kill leaves a folder that can be resumed
            if _round_of(folder) > round:
                shutil.rmtree(folder)

    def _read_checkpoint(self, folder: Path) -> FederationState:
        manifest = read_json(folder / "manifest.json")
        if not isinstance(manifest, dict) or manifest.pop("sha256", None) != _digest(manifest):
            raise InputError(f"{folder / 'manifest.json'} was changed after it was written")
        server: dict[str, dict[str, Tensor]] = {}
        for key, tensor in read_tensors(folder / "server.safetensors", manifest["server"]).items():
            method, name = key.rsplit("/", 1)
            server.setdefault(method, {})[name] = tensor
        stored = {(method, client): StoredState(*rest) for method, client, *rest in manifest["clients"]}
        for owner, stored_state in stored.items():
            read_tensors(self.folder / "clients" / file_name(owner, stored_state.round), stored_state.sha256)
        self.client_states.restore(stored)
        return FederationState(manifest["round"], dict(server), self.client_states)

    def _checkpoints(self) -> list[Path]:
        return sorted((self.folder / "checkpoints").glob("round-*"), key=_round_of)

    def _checkpoint_folder(self, round: int) -> Path:
        return self.folder / "checkpoints" / f"round-{round:05d}"


class InMemoryRun:
    """The interface of `RunFolder` for a run without a folder; only client states over the limit are in files."""

    def __init__(self, memory_limit: int) -> None:
        self.client_states = ClientStates(None, memory_limit)
        self.history: History = {}
        self.validation: dict[str, Summary] = {}
        self._last: tuple[dict[str, Counts], Tensor] | None = None

    def begin(self, fingerprint: Mapping[str, Any], notice: Callable[[str], None]) -> None:
        """No-op: there is no earlier state."""

    def describe(self, **names: object) -> None:
        """No-op."""

    def record(
        self, round: int, summaries: Mapping[str, Summary], counts: Mapping[str, Counts], total: Tensor,
        validation: Mapping[str, Summary] | None = None,
    ) -> None:  # fmt: skip
        """Add an evaluated round."""
        self.validation = dict(validation or {})
        for name, summary in summaries.items():
            self.history.setdefault(name, []).append((round, summary))
        self._last = dict(counts), total

    def counts(self, round: int) -> tuple[dict[str, Counts], Tensor]:
        """The counts of the last evaluated round by method, and the number of samples."""
        assert self._last is not None
        return self._last

    def checkpoint(self, state: FederationState) -> None:
        """No-op."""


def _round_of(path: Path) -> int:
    """The round in the name of a checkpoint or a file of counts.

    >>> _round_of(Path("counts/round-100000.safetensors"))
    100000
    """
    return int(path.name.split(".")[0].removeprefix("round-"))


def _with_keys_of(before: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """A fingerprint as JSON values, without keys that an earlier version did not write."""
    return {key: value for key, value in json.loads(json.dumps(fingerprint)).items() if key in before}


def _without_seed(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a fingerprint that the seeds of one run share; a seed may change samples, partition and model."""
    by_seed = ("samples", "partition", "sizes", "start", "constants")
    common = {key: value for key, value in fingerprint.items() if key not in by_seed}
    return common | {"train": {key: value for key, value in fingerprint["train"].items() if key != "seed"}}


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
