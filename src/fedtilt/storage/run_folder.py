"""The run folder: metrics, counts and checkpoints of one seed, written so that a kill at any moment loses nothing.

fingerprint.json                                       what is run, to refuse a folder begun with something else
federation.json                                names of the clients and classes, and who carries outliers
model.json                                     how to make the model again, and what its input is standardised with
extras.safetensors                             what a model's state holds besides its parameters, if anything
metrics.jsonl                                  one line per judged round and method
counts/round-00040.safetensors                 right answers per client and class
checkpoints/round-00040/                       shared models and a manifest with hashes; two are kept
personal/METHOD/client-00003.round-00038.…     personal models, by client and the round they were trained in
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.results import Summary
from fedtilt.files import first_difference, read_json, read_tensors, sync_folder, write_bytes, write_json, write_tensors
from fedtilt.rounds.client_states import ClientStates, FederationState, StoredState, file_of

History = dict[str, list[tuple[int, Summary]]]  # method → (round, metrics)
_KEPT = 2


class RunFolder:
    """One seed's part of a run folder."""

    def __init__(self, folder: Path, memory_limit: int = 2 * 2**30) -> None:
        self.folder = folder
        self.client_states = ClientStates(folder / "personal", memory_limit)
        self.history: History = {}
        self.validation: dict[str, Summary] = {}  # of the last judged round

    # -- what is run -------------------------------------------------------------------------------------------------

    def begin(self, job: Mapping[str, Any], notice: Callable[[str], None]) -> FederationState | None:
        """Claim the folder for this job; the state to go on from, or None to start.

        Refuses a folder that was begun with another job; a damaged checkpoint is told to `notice`, and the one before
        it taken.
        """
        written = self.folder / "fingerprint.json"
        if not written.exists():
            write_json(written, job)
            return None
        before = read_json(written)
        differing = first_difference(before, _known(job, before))
        if differing:
            key, was, now = differing
            raise InputError(
                f"{self.folder} was begun with {key} = {was}, and now it is {now}; "
                "restore it, or start a new run in another folder (--out, or out= in Python)"
            )
        return self.resume(notice)

    def resume(self, notice: Callable[[str], None]) -> FederationState | None:
        """The state of the newest intact checkpoint, and nothing left of what came after it."""
        state = self.latest(notice)
        self._rewind(state.round if state else 0)
        return state

    def check_siblings(self, job: Mapping[str, Any]) -> None:
        """Refuse to lay a seed beside those of another job: they would be reported as one experiment."""
        for other in sorted(self.folder.parent.glob("seed-*/fingerprint.json")):
            if other.parent == self.folder:
                continue
            theirs = read_json(other)
            differing = first_difference(_seedless(theirs), _seedless(_known(job, theirs)))
            if differing:
                key, was, now = differing
                raise InputError(
                    f"{self.folder.parent} holds {other.parent.name} of a run with {key} = {was}, and now it is {now}; "
                    "choose another folder"
                )

    def describe(
        self, *, clients: Sequence[str], classes: Sequence[str], has_outliers: Sequence[int],
        extras: Mapping[str, Tensor] | None = None, model: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Note what the clients and classes are called, who carries outliers and what the model is, for readers."""
        names = {"clients": list(clients), "classes": list(classes), "has_outliers": list(has_outliers)}
        write_json(self.folder / "federation.json", names, sync=False)
        if model is not None:
            write_json(self.folder / "model.json", model, sync=False)
        if extras:
            write_tensors(self._extras_file, extras)

    def described(self) -> dict[str, Any]:
        """What `describe` noted, without what an older version did not write."""
        paths = [self.folder / "federation.json", self.folder / "model.json"]
        return {key: value for path in paths if path.exists() for key, value in read_json(path).items()}

    def extras(self) -> dict[str, Tensor]:
        """What the model's state holds besides its parameters."""
        return read_tensors(self._extras_file) if self._extras_file.exists() else {}

    @property
    def _extras_file(self) -> Path:
        return self.folder / "extras.safetensors"

    # -- metrics and counts ------------------------------------------------------------------------------------------

    def record(
        self, round: int, summaries: Mapping[str, Summary], counts: Mapping[str, Counts], total: Tensor,
        validation: Mapping[str, Summary] | None = None,
    ) -> None:  # fmt: skip
        """Add a judged round."""
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
        """The counts of a judged round by method, and the samples."""
        tensors = read_tensors(self._counts_file(round))
        total = tensors.pop("total").long()
        counts = {}
        for key in tensors:
            name, part = key.rsplit("/", 1)
            if part == "shared":
                own = tensors.get(f"{name}/personal")
                counts[name] = Counts(
                    tensors[key].long(), None if own is None else own.long(), tensors[f"{name}/never_selected"]
                )
        return counts, total

    @property
    def _metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    def _counts_file(self, round: int) -> Path:
        return self.folder / "counts" / f"round-{round:05d}.safetensors"

    def _rewind(self, round: int) -> None:
        """Forget what came after the checkpoint: it comes again, the same."""
        self.history, self.validation = {}, {}
        kept = []
        if self._metrics_file.exists():
            for line in self._metrics_file.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    break  # the line that was being written when the process was killed
                if entry["round"] <= round:
                    kept.append(line)
                    self.history.setdefault(entry["method"], []).append((entry["round"], Summary.from_json(entry)))
                    if "validation" in entry:
                        self.validation[entry["method"]] = Summary.from_json(entry["validation"])
            write_bytes(self._metrics_file, "".join(line + "\n" for line in kept).encode())
        for path in (self.folder / "counts").glob("round-*"):
            if _round_of(path) > round:
                path.unlink()
        for folder in self._checkpoints():
            if _round_of(folder) > round:  # a damaged one that was passed over
                shutil.rmtree(folder)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self, state: FederationState) -> None:
        """Make the state last: whole under its final name, or not there."""
        if self._metrics_file.exists():
            with self._metrics_file.open("rb") as file:
                os.fsync(file.fileno())
        final = self._checkpoint_folder(state.round)
        partial = final.with_name(f".{final.name}.part")
        for stale in (partial, final):
            shutil.rmtree(stale, ignore_errors=True)
        stored = self.client_states.stored()
        digest = write_tensors(partial / "shared.safetensors", state.shared)
        manifest = {
            "round": state.round,
            "shared": digest,
            "personal": [[*owner, *stored_state] for owner, stored_state in sorted(stored.items())],
        }
        write_json(partial / "manifest.json", {"sha256": _digest(manifest)} | manifest)
        sync_folder(partial)
        partial.rename(final)
        sync_folder(final.parent)
        self._tidy()

    def _tidy(self) -> None:
        """Keep two checkpoints, and the personal models that either refers to."""
        folders = self._checkpoints()
        for old in folders[:-_KEPT]:
            shutil.rmtree(old)
        manifests = [read_json(folder / "manifest.json") for folder in folders[-_KEPT:]]
        needed = [file_of((method, client), round) for m in manifests for method, client, round, _ in m["personal"]]
        self.client_states.prune(needed)

    def latest(self, notice: Callable[[str], None] = lambda _: None) -> FederationState | None:
        """The state of the newest checkpoint that is intact, or None where there is none at all."""
        damaged = []
        for folder in reversed(self._checkpoints()):
            try:
                state = self._read(folder)
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

    def _read(self, folder: Path) -> FederationState:
        manifest = read_json(folder / "manifest.json")
        if not isinstance(manifest, dict) or manifest.pop("sha256", None) != _digest(manifest):
            raise InputError(f"{folder / 'manifest.json'} is not what was written")
        shared = read_tensors(folder / "shared.safetensors", manifest["shared"])
        stored = {(method, client): StoredState(*rest) for method, client, *rest in manifest["personal"]}
        for owner, stored_state in stored.items():
            read_tensors(self.folder / "personal" / file_of(owner, stored_state.round), stored_state.sha256)
        self.client_states.restore(stored)
        return FederationState(manifest["round"], shared, self.client_states)

    def _checkpoints(self) -> list[Path]:
        return sorted((self.folder / "checkpoints").glob("round-*"), key=_round_of)

    def _checkpoint_folder(self, round: int) -> Path:
        return self.folder / "checkpoints" / f"round-{round:05d}"


class InMemoryRun:
    """What a run that is not stored remembers of itself: the same calls, and no file but those of a full shelf."""

    def __init__(self, memory_limit: int) -> None:
        self.client_states = ClientStates(None, memory_limit)
        self.history: History = {}
        self.validation: dict[str, Summary] = {}
        self._last: tuple[dict[str, Counts], Tensor] | None = None

    def begin(self, job: Mapping[str, Any], notice: Callable[[str], None]) -> None:
        """There is nothing to go on from."""

    def describe(self, **names: object) -> None:
        """There is nobody to tell."""

    def record(
        self, round: int, summaries: Mapping[str, Summary], counts: Mapping[str, Counts], total: Tensor,
        validation: Mapping[str, Summary] | None = None,
    ) -> None:  # fmt: skip
        """Add a judged round."""
        self.validation = dict(validation or {})
        for name, summary in summaries.items():
            self.history.setdefault(name, []).append((round, summary))
        self._last = dict(counts), total

    def counts(self, round: int) -> tuple[dict[str, Counts], Tensor]:
        """The counts of the last judged round, and the samples."""
        assert self._last is not None
        return self._last

    def checkpoint(self, state: FederationState) -> None:
        """Nothing lasts."""


def _round_of(path: Path) -> int:
    """The round in the name of a checkpoint or a file of counts.

    >>> _round_of(Path("counts/round-100000.safetensors"))
    100000
    """
    return int(path.name.split(".")[0].removeprefix("round-"))


def _known(job: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """A job as JSON gives it back, without what was not written down yet when another was begun."""
    return {key: value for key, value in json.loads(json.dumps(job)).items() if key in before}


def _seedless(job: Mapping[str, Any]) -> dict[str, Any]:
    """What the seeds of one run have in common; samples of toys and tables, the partition and the model are drawn."""
    drawn = ("samples", "partition", "sizes", "start")
    common = {key: value for key, value in job.items() if key not in drawn}
    return common | {"train": {key: value for key, value in job["train"].items() if key != "seed"}}


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
