"""The run folder: metrics, counts and checkpoints of one seed, written so that a kill at any moment loses nothing.

fingerprint.json                               methods, settings, data and model: a run with others is rejected
federation.json                                names of clients and classes or groups, clients with outliers, warnings
backend.json                                   which backend trained last, and why faster ones did not
model.json                                     how to build the model, and how to standardise its input
thresholds.json                                round, and by method a threshold on a class, if any were chosen
early_stop.json                                after which round the run ended early, and why
constants.safetensors                          frozen parameters and initial buffers of the model, if it has any
metrics.jsonl                                  one line per evaluated round and method
counts/round-00040.safetensors                 correct predictions, or errors, per client and class or group
predictions.safetensors                        what the last models predict on the test data
baselines/                                     metrics, counts and predictions of what the methods are compared with
checkpoints/round-00040/                       server states, and a manifest with hashes; the last two
clients/states-000012                          client states, many in one file
privacy.json                                   with secret noise: how many models were made, also in repeated rounds

Everything has a digest, and is checked when it is read.
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtilt.data.groups import CLASS
from fedtilt.data.sampling import UNKNOWN, DrawnRows
from fedtilt.data.targets import LabelTarget, NumericTarget
from fedtilt.engine.client_states import ClientStates, FederationState
from fedtilt.errors import InputError
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.files import interpreting, read_json, read_tensors, write_json, write_tensors
from fedtilt.storage.checkpoints import Checkpoints
from fedtilt.storage.evaluations import EvaluationHistory, Evaluations
from fedtilt.storage.fingerprint import check_rounds, check_unchanged, read_fingerprint
from fedtilt.text_tables import first_names

EARLY_STOP = "early_stop.json"
THRESHOLDS = "thresholds.json"
Notice = Callable[[str], None]


def baselines_folder(folder: Path) -> Path:
    """The folder of the baselines in that of a seed."""
    return folder / "baselines"


def read_thresholds(folder: Path, round: int) -> dict[str, Threshold]:
    """The thresholds in the folder of a seed, by method; empty: none were chosen for the models after this round."""
    path = folder / THRESHOLDS
    if not path.exists():
        return {}
    found = read_json(path)
    with interpreting(path):
        is_same = found.get("round", round) == round  # files of earlier versions have no round
        return {m: Threshold.from_json(values) for m, values in found["thresholds"].items()} if is_same else {}


_OF_EARLIER_RUNS = DrawnRows(UNKNOWN, fixed_shares=True)  # as in most: by a partition, or in proportion


def drawn_rows(record: Mapping[str, Any]) -> DrawnRows:
    """How the test rows of a run came about, from its federation.json."""
    return DrawnRows(**{key: record.get(key, value) for key, value in _OF_EARLIER_RUNS._asdict().items()})


class RunFolder:
    """One seed's part of a run folder."""

    def __init__(self, folder: Path, memory_limit: int = 2 * 2**30) -> None:
        self.folder = folder
        self.client_states = ClientStates(folder / "clients", memory_limit)
        self.evaluations = Evaluations(folder)
        self.checkpoints = Checkpoints(folder, self.client_states)
        self.privacy_file = folder / "privacy.json"
        self._has_constants = False

    # -- start and resume --------------------------------------------------------------------------------------------

    def begin(self, fingerprint: Mapping[str, Any], notice: Notice) -> FederationState | None:
        """Start or resume a run in this folder: the state of the last checkpoint, or None for a new run.

        Raises InputError for another fingerprint; the number of rounds may change as `check_rounds` allows. A damaged
        checkpoint is reported to `notice` and skipped.
        """
        self._check_folders()
        path = self.folder / "fingerprint.json"
        if not path.exists():
            if self.checkpoints.rounds() or self.evaluations.metrics_file.exists():
                raise InputError(f"{path} is missing; restore it from a copy, or start again in another folder")
            write_json(path, dict(fingerprint))
            return None
        before = read_fingerprint(path)
        check_unchanged(self.folder, before, fingerprint)
        train = fingerprint["train"]
        rounds, interval = train["rounds"], train["eval_every"]
        if rounds != before["train"]["rounds"]:
            self.check_rounds(rounds)
            write_json(path, dict(fingerprint))
        # the last round is evaluated even between two intervals; a longer run has no such evaluation
        return self.resume(notice, lambda round: round % interval == 0 or round == rounds)

    def _check_folders(self) -> None:
        """Raise InputError for links to other folders, in which outdated files would be deleted."""
        for folder in (self.folder, *(self.folder / name for name in ("checkpoints", "clients", "counts"))):
            if folder.is_symlink():
                raise InputError(f"{folder} is a symbolic link; replace it with the folder itself")

    def check_rounds(self, rounds: int) -> None:
        """Raise InputError if the run in this folder cannot continue to this number of rounds."""
        path = self.folder / "fingerprint.json"
        if path.exists():
            done = max(self.checkpoints.rounds(), default=0)
            is_evaluated = self.evaluations.counts_file(done).exists()
            check_rounds(self.folder, read_fingerprint(path)["train"], rounds, done, is_evaluated)

    def resume(self, notice: Notice, evaluates: Callable[[int], bool] = lambda _: True) -> FederationState | None:
        """The state of the newest intact checkpoint; what was written after it, or is not evaluated, is deleted."""
        state = self._newest_intact(notice)
        self.evaluations.restore(state.round if state else 0, list(state.server) if state else [], evaluates, notice)
        self.checkpoints.delete_after(state.round if state else 0)  # damaged ones that were skipped
        self._remove_damaged_clients(notice)
        return state

    def _remove_damaged_clients(self, notice: Notice) -> None:
        """Let clients whose state is damaged start again from the shared model, and name them."""
        by_file: dict[tuple[Path, str], list[int]] = {}
        for (method, client), path in self.client_states.damaged().items():
            by_file.setdefault((path, method), []).append(client)
            self.client_states.remove((method, client))
        for (path, method), clients in by_file.items():
            names = first_names([self.client_name(client) for client in clients], 12)
            subject = f"client {names} starts" if len(clients) == 1 else f"clients {names} start"
            notice(f"{path} is damaged: {subject} again from the shared model of {method}")

    def client_name(self, client: int) -> str:
        """The name of a client, or its number if the names cannot be read."""
        try:
            return str(self.description()["clients"][client])
        except (InputError, KeyError, IndexError, TypeError):
            return str(client)

    # -- description -------------------------------------------------------------------------------------------------

    def describe(
        self, *, clients: Sequence[str], classes: Sequence[str], has_outliers: Sequence[int], group: str = CLASS,
        attackers: Sequence[int] = (), left_out: Sequence[int] = (), about_data: Sequence[str] = (),
        constants: Mapping[str, Tensor] | None = None, model: Mapping[str, Any] | None = None,
        backend: str | None = None, drawn: DrawnRows, test_rows: str = "",
    ) -> None:  # fmt: skip
        """Write names, how rows were drawn, model and backend for reports and exports.

        `classes` are the names of the columns of counts, which are classes unless `group` says otherwise; `test_rows`
        is a digest of the test rows, which two runs must share to be compared.
        """
        names: dict[str, Any] = {"clients": list(clients), "classes": list(classes), "has_outliers": list(has_outliers)}
        names |= drawn._asdict()
        names |= {"test_rows": test_rows} if test_rows else {}
        names |= {} if group == CLASS else {"group": group}
        names |= {"attackers": list(attackers)} if attackers else {}
        names |= {"left_out": list(left_out)} if left_out else {}
        names |= {"about_data": list(about_data)} if about_data else {}
        write_json(self.folder / "federation.json", names, sync=False)
        if backend is not None:
            write_json(self.folder / "backend.json", {"backend": backend}, sync=False)
        if model is not None:
            write_json(self.folder / "model.json", dict(model), sync=False)
        if constants and not self._has_constants:
            if not _has_tensors(self._constants_file, constants):
                write_tensors(self._constants_file, constants)
            self._has_constants = True

    def record_thresholds(self, round: int, thresholds: Mapping[str, Threshold]) -> None:
        """Write the thresholds of methods, which are chosen for their models after this round."""
        found = {method: threshold.to_json() for method, threshold in thresholds.items()}
        write_json(self.folder / THRESHOLDS, {"round": round, "thresholds": found})

    def description(self) -> dict[str, Any]:
        """What `describe` wrote, without the constants."""
        paths = [self.folder / name for name in ("federation.json", "model.json")]
        return {key: value for path in paths if path.exists() for key, value in read_json(path).items()}

    def constants(self) -> dict[str, Tensor]:
        """Frozen parameters and initial buffers of the model."""
        return read_tensors(self._constants_file) if self._constants_file.exists() else {}

    @property
    def _constants_file(self) -> Path:
        return self.folder / "constants.safetensors"

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self, state: FederationState, keep: Collection[int] = ()) -> None:
        """Write a checkpoint: complete under its final name, or absent; those of the rounds in `keep` are kept."""
        self.evaluations.sync()
        is_evaluated = any(rounds[-1][0] == state.round for rounds in self.evaluations.history.values())
        self.checkpoints.write(state, is_evaluated=is_evaluated, keep=keep)

    # -- early stops -------------------------------------------------------------------------------------------------

    def go_back(self, round: int, notice: Notice) -> FederationState:
        """The state of a kept checkpoint, which must be intact; everything that was written after it is deleted."""
        self._read_intact(round)
        self.checkpoints.delete_after(round)
        state = self.resume(notice)
        assert state is not None
        assert state.round == round
        return state

    def record_end(self, round: int, reason: str, rounds: int | None) -> None:
        """Record that the run ends with this round, its last checkpoint; with `rounds`, unless it gets more rounds."""
        write_json(self._early_stop_file, {"round": round, "reason": reason, "rounds": rounds})

    def end_reason(self, round: int, rounds: int) -> str | None:
        """Why a run of these rounds has ended with this round; None: it has not, and a record of it is outdated."""
        if not self._early_stop_file.exists():
            return None
        record = read_json(self._early_stop_file)
        with interpreting(self._early_stop_file):
            if record["round"] == round and (record["rounds"] is None or record["rounds"] >= rounds):
                return str(record["reason"])
        self._early_stop_file.unlink()
        return None

    @property
    def _early_stop_file(self) -> Path:
        return self.folder / EARLY_STOP

    def latest(self, round: int | None = None) -> FederationState | None:
        """The state of the last checkpoint, or of the one of this round; None if there is no checkpoint at all.

        A damaged one raises InputError. The states of clients are checked when they are read.
        """
        rounds = self.checkpoints.rounds()
        if not rounds:
            return None
        wanted = rounds[-1] if round is None else round
        if wanted not in rounds:
            raise InputError(f"{self.folder} has no checkpoint of round {wanted}; it has {', '.join(map(str, rounds))}")
        try:
            return self.checkpoints.read(wanted)
        except InputError as error:
            remedy = "resume the run, which goes back to the one before" if rounds[0] < wanted else "train it again"
            raise InputError(f"the checkpoint of round {wanted} is damaged ({error}); {remedy}") from error

    def _read_intact(self, round: int) -> FederationState:
        """The state of a checkpoint; raises InputError if it, or its evaluation, is damaged."""
        if self.checkpoints.is_evaluated(round):
            self.evaluations.check(round)
        return self.checkpoints.read(round)

    def _newest_intact(self, notice: Notice) -> FederationState | None:
        """The state of the newest checkpoint that is intact, with its evaluation; None if there is none at all."""
        problem = None
        for round in reversed(self.checkpoints.rounds()):
            try:
                return self._read_intact(round)
            except InputError as error:
                problem = f"the checkpoint of round {round} is damaged ({error})"
                notice(f"{problem}; going back to the one before")
        if problem is not None:
            raise InputError(f"no checkpoint in {self.folder} is intact: {problem}; start again in another folder")
        return None


class InMemoryRun:
    """The interface of `RunFolder` for a run without a folder; only client states over the limit are in files."""

    def __init__(self, memory_limit: int) -> None:
        self.client_states = ClientStates(None, memory_limit)
        self.evaluations = EvaluationHistory()
        self.privacy_file = None

    def begin(self, fingerprint: Mapping[str, Any], notice: Notice) -> None:
        """No-op: there is no earlier state."""

    def describe(
        self, *, model: Mapping[str, Any], constants: Mapping[str, Tensor], backend: str, **names: Any
    ) -> None:
        """Remember what `RunFolder.describe` writes."""
        self._description, self._constants = {**names, **model}, constants

    def description(self) -> dict[str, Any]:
        """What `describe` was called with, without the constants."""
        return dict(self._description)

    def constants(self) -> dict[str, Tensor]:
        """Frozen parameters and initial buffers of the model."""
        return dict(self._constants)

    def checkpoint(self, state: FederationState, keep: Collection[int] = ()) -> None:
        """Keep a copy of this state if its round is in `keep`."""
        if state.round in keep:
            self._kept = copy.deepcopy(state), copy.deepcopy(self.evaluations)

    def go_back(self, round: int, notice: Notice) -> FederationState:
        """The state of a kept round; the evaluations are those up to it."""
        state, self.evaluations = self._kept
        assert state.round == round
        return state

    def record_end(self, round: int, reason: str, rounds: int | None) -> None:
        """No-op."""

    def end_reason(self, round: int, rounds: int) -> None:
        """None: there is no earlier run."""


Recorder = RunFolder | InMemoryRun


def _has_tensors(path: Path, expected: Mapping[str, Tensor]) -> bool:
    """Whether a file is there, intact, with these tensors."""
    if not path.exists():
        return False
    try:
        tensors = read_tensors(path)
    except InputError:
        return False
    return tensors.keys() == expected.keys() and all(
        torch.equal(tensors[name], t.cpu()) for name, t in expected.items()
    )


def model_description(recipe: Mapping[str, Any] | None, data: Any) -> dict[str, Any]:
    """How to build a model, and what its inputs and outputs are; for model.json and the metadata of exports.

    `recipe` is None if no function that can be imported makes the model. `data` is its data set, or what else has the
    input_shape, class_names, target, schema and image of one.
    """
    target = data.target
    found: dict[str, Any] = {} if recipe is None else {"model": dict(recipe)}
    found["input_shape"] = data.input_shape
    found |= {"class_names": list(data.class_names)} if target is None else {}
    if isinstance(target, NumericTarget):
        found["target"] = {"mean": target.mean, "deviation": target.deviation}
    elif target is not None:
        found |= {"task": target.task, "outputs": target.outputs}
        found |= {"labels": list(target.labels)} if isinstance(target, LabelTarget) else {}
    found |= {"mean": [0.5], "deviation": [0.5]} if data.image else {}  # pixels become [-1, 1]
    return found | ({} if data.schema is None else {"schema": data.schema.to_json()})
