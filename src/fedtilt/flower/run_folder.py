"""The server's run folder, with the simulator's layout: spec, metrics, counts, checkpoints of the shared model.

It has no state of a site. It adds:

seed-N/history.json        the id of this training history; sites store their personal models under it
seed-N/participation.json  which sites took part in each round, how far it moved the shared model, and rejection counts
stopped.json               why a run stopped, and the sites that were missing
schema.json                the schema of the sites' tables, if they have tables
seed-N/validation.json     with train.stop: the sums of every site on its validation data, by evaluated round
seed-N/privacy.json        with privacy: how many models the server has made, also in rounds that were repeated
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedtilt.data.groups import in_words
from fedtilt.engine.client_states import FederationState
from fedtilt.engine.root_set import RootSet
from fedtilt.errors import InputError
from fedtilt.evaluation.method_results import MethodResult
from fedtilt.evaluation.metrics import Counts, GroupCounts
from fedtilt.evaluation.results import Result, over_seeds
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.files import private_files, private_folder, read_json, write_json, write_toml
from fedtilt.flower.evaluation import Declared
from fedtilt.flower.membership import MissingSitesError
from fedtilt.flower.run_status import kept_rounds
from fedtilt.flower.task import FederationInfo, ResolvedTask
from fedtilt.flower.training_history import JumpCheck, ModelChange, TrainingHistory
from fedtilt.locks import locked
from fedtilt.parts import Parts, constants_of, tied_parameters
from fedtilt.spec import dump
from fedtilt.state import ServerState
from fedtilt.storage.fingerprint import digest_of
from fedtilt.storage.predictions import declared_sets
from fedtilt.storage.provenance import record_environment, recorded_settings, seed_folder
from fedtilt.storage.run_folder import RunFolder


@contextmanager
def open_run_folder(folder: Path) -> Iterator[None]:
    """Lock the folder for this run, and keep it private; an exception is recorded in stopped.json."""
    stopped_file = folder / "stopped.json"
    with private_files(), locked(private_folder(folder)):
        stopped_file.unlink(missing_ok=True)
        try:
            yield
        except Exception as error:
            missing = {"sites": error.sites} if isinstance(error, MissingSitesError) else {}
            write_json(stopped_file, {"reason": str(error)} | missing)
            raise


class ServerRunFolder:
    """The run folder of one training run on the server.

    It keeps this number of good rounds to go back to, beside the last two. `back_to` is the round to go back to; None:
    continue from the last.
    """

    def __init__(
        self, folder: Path, task: ResolvedTask, info: FederationInfo, model: nn.Module, parts: Parts, *,
        kept_rounds: int = 3, back_to: int | None = None, root: RootSet | None = None,
    ) -> None:  # fmt: skip
        self.folder, self._task, self._info, self._model, self._parts = folder, task, info, model, parts
        self._kept_rounds, self.back_to, self._root = kept_rounds, back_to, root
        self._seed_folder = seed_folder(folder, task.spec.seed)
        self._run_folder = RunFolder(self._seed_folder)
        self._history_file = self._seed_folder / "history.json"
        self._participation_file = self._seed_folder / "participation.json"
        self.privacy_file = self._seed_folder / "privacy.json"
        self.validation_file = self._seed_folder / "validation.json"
        self._method = task.method.name
        self.history = TrainingHistory.new()
        self._participation: dict[str, Any] = {"rejected": {}, "rounds": {}}

    def has_run(self) -> bool:
        """Whether the folder contains a run, to resume or to reject."""
        return (self._seed_folder / "fingerprint.json").exists()

    def begin(self, server: ServerState, notice: Callable[[str], None]) -> tuple[int, ServerState]:
        """The round of the last checkpoint, or of `back_to`, and the server state; or round 0 and `server`.

        Raises InputError for the folder of another run.
        """
        self.check_back_to()
        state = self._run_folder.begin(self._fingerprint(), notice)
        if not (self.folder / "run.json").exists():
            write_toml(self.folder / "spec.toml", dump(self._task.spec))
            if self._info.schema is not None:
                write_json(self.folder / "schema.json", self._info.schema.to_json())
            record_environment(self.folder, "cpu", [self._task.spec.seed], runner="flower")
        if self._history_file.exists():
            self.history = TrainingHistory.from_json(read_json(self._history_file))
        else:
            write_json(self._history_file, self.history.to_json())
        if self._participation_file.exists():
            self._participation = read_json(self._participation_file)
        if state is None:
            self.save_checkpoint(0, server)
            return 0, server
        if self.back_to is not None:
            state = self.go_back(self.back_to, notice)
        return state.round, state.server[self._method]

    # -- the rounds that are kept ------------------------------------------------------------------------------------

    def kept_rounds(self) -> list[int]:
        """The rounds that the server can go back to."""
        return self._run_folder.checkpoints.rounds()

    def check_back_to(self) -> None:
        """Raise InputError if `back_to` is a round that is not kept, or is damaged."""
        if self.back_to is None:
            return
        if not self.has_run():
            raise InputError(f"back-to = {self.back_to} needs a run, and {self.folder} has none; remove it")
        if self.back_to not in self.kept_rounds():
            rounds = kept_rounds(self.folder)
            raise InputError(f"back-to = {self.back_to} is no round that {self.folder} keeps; choose one of {rounds}")
        self._run_folder.checkpoints.read(self.back_to)

    def go_back(self, round: int, notice: Callable[[str], None]) -> FederationState:
        """Delete what came after a round. The last step starts a new history, with which the sites go back too.

        If the server is killed before that step, the sites do not train, and going back can be repeated.
        """
        state = self._run_folder.go_back(round, notice)
        (self.folder / "results.json").unlink(missing_ok=True)
        rounds = self._participation["rounds"]
        self._participation["rounds"] = {number: entry for number, entry in rounds.items() if int(number) <= round}
        write_json(self._participation_file, self._participation)
        self.history = self.history.branch(round)
        write_json(self._history_file, self.history.to_json())
        return state

    def jump_check(self, k: float, round: int, server: ServerState, notice: Callable[[str], None]) -> JumpCheck:
        """The check that continues after a round with this server state, with what is recorded of the rounds before.

        A change of the shared model may be `k` times the median; `notice` is called with messages about damage.
        """
        good, model = (round, server) if self._is_good(round) else self._last_good(round, server, notice)
        entries = sorted((int(number), entry) for number, entry in self._participation["rounds"].items())
        changes = [e["change"] for number, e in entries if number <= good and self._is_good(number) and "change" in e]
        return JumpCheck(k, good, model.parameters, changes)

    def _last_good(self, round: int, server: ServerState, notice: Callable[[str], None]) -> tuple[int, ServerState]:
        """The last good round that can be read, and its server state; the last round if there is none."""
        for kept in reversed(self.kept_rounds()):
            if not self._is_good(kept):
                continue
            try:
                return kept, self._run_folder.checkpoints.read(kept).server[self._method]
            except InputError as error:
                notice(f"round {kept} cannot be gone back to: {error}")
        return round, server

    def _is_good(self, round: int) -> bool:
        return "jump" not in self._participation["rounds"].get(str(round), {})

    def save_checkpoint(self, round: int, server: ServerState, best: int | None = None) -> None:
        """Save the server state after a round; the last good rounds are kept too, and the best to end with."""
        good = sorted(kept for kept in {*self.kept_rounds(), round} if self._is_good(kept))
        keep = good[-self._kept_rounds :] + ([] if best is None else [best])
        self._run_folder.checkpoint(self.state(round, server), keep=keep)

    def state(self, round: int, server: ServerState) -> FederationState:
        """The state after a round, of which the server has its part."""
        return FederationState(round, {self._method: server}, self._run_folder.client_states)

    def record_change(self, round: int, change: ModelChange) -> None:
        """Record how far a round moved the shared model, before its checkpoint is saved."""
        self._participation["rounds"][str(round)]["change"] = change.length
        if change.jump is not None:
            self._participation["rounds"][str(round)]["jump"] = change.jump
        write_json(self._participation_file, self._participation)

    def record_end(self, round: int, reason: str, rounds: int | None) -> None:
        """Record that the run ends with this round, its last checkpoint; with `rounds`, unless it gets more rounds."""
        self._run_folder.record_end(round, reason, rounds)

    def end_reason(self, round: int, rounds: int) -> str | None:
        """Why a run of these rounds has ended with this round; None: it has not."""
        return self._run_folder.end_reason(round, rounds)

    def has_results(self) -> bool:
        """Whether the results were written: the last step of a run, which going back undoes."""
        return (self.folder / "results.json").exists()

    # -- metrics and participation -----------------------------------------------------------------------------------

    def is_evaluated(self, round: int) -> bool:
        """Whether the metrics of a round are recorded."""
        return any(evaluated == round for evaluated, _ in self._run_folder.evaluations.history.get(self._method, []))

    def record_evaluation(self, round: int, summary: RoundMetrics, counts: Counts, total: Tensor) -> None:
        """Add the metrics of a round, and the names of its rows and columns."""
        class_names, group = self._info.class_names, self._info.label_group
        is_by_class = total.shape[1] == len(class_names)  # otherwise some site withholds them
        self._run_folder.describe(
            clients=self._info.site_names,
            classes=class_names if is_by_class else [f"all {in_words(group)}"],
            group=group,
            has_outliers=self._info.has_outliers.nonzero()[:, 0].tolist(),
            drawn=self._info.drawn,
            constants=constants_of(self._model, self._parts),
            model=self._info.model_description,
        )
        self._run_folder.evaluations.record(round, {self._method: summary}, {self._method: counts}, total)

    def record_declared(self, round: int, declared: Mapping[int, Declared]) -> None:
        """Write what sites declare of their test data beside the counts, of the last evaluated round: declared.json."""
        found = {str(site): values.to_json() for site, values in sorted(declared.items()) if values.to_json()}
        if found:
            write_json(self._seed_folder / "declared.json", {"round": round, "sites": found})

    def record_rejections(
        self, rejections: Mapping[str, Mapping[str, int]], rounds: Mapping[int, Mapping[str, Any]] | None = None
    ) -> None:
        """Write the rejection counts by sender and reason, and which sites took part in these rounds."""
        self._participation["rounds"] |= {str(round): dict(entry) for round, entry in (rounds or {}).items()}
        self._participation["rejected"] = {sender: dict(reasons) for sender, reasons in rejections.items()}
        write_json(self._participation_file, self._participation)

    def used_rounds(self, round: int) -> dict[int, int]:
        """Of every site, the last round until this one with an update that reached the server; 0: none."""
        recorded = self._participation["rounds"]
        found = dict.fromkeys(range(self._info.sites), 0)
        for number in range(1, round + 1):
            # without a record, such as that of a damaged file, sites keep what they have
            sites = recorded[str(number)]["accepted"] if str(number) in recorded else found
            found |= dict.fromkeys(sites, number)
        return found

    def rejections(self) -> dict[str, dict[str, int]]:
        """Rejection counts of earlier runs of this training history."""
        counts: dict[str, dict[str, int]] = self._participation["rejected"]
        return counts

    def write_results(self) -> Result:
        """The results of the finished run, written as the simulator writes them."""
        state = self._run_folder.latest()
        assert state is not None
        counts, total = self._run_folder.evaluations.counts(state.round)
        of_method = MethodResult(
            name=self._method,
            method=self._task.method,
            history=self._run_folder.evaluations.history[self._method],
            group_counts={self._info.label_group: GroupCounts(counts[self._method].evaluated, total)},
            client_names=tuple(self._info.site_names),
            fixed_shares=self._info.drawn.fixed_shares,
            _net=self._model,
            _parts=self._parts,
            _server=state.server[self._method],  # the states of clients are on their sites
            _target=self._info.target,
            _declared_sets=partial(declared_sets, self._seed_folder, self._info.site_names),
        )
        result = Result({self._method: of_method})
        write_json(self.folder / "results.json", over_seeds({self._task.spec.seed: result}))
        return result

    def _fingerprint(self) -> dict[str, Any]:
        """Everything that must stay the same when a run resumes."""
        spec, schema = self._task.spec, self._info.schema
        info = self._info
        found = task_fingerprint(self._task, info.data, info.sites, info.class_names, self._model, self._parts)
        if self._root is not None:
            found["root"] = digest_of(self._root.tensors())
        if schema is None:
            return found
        return found | {  # what decides which rows of the sites' tables are training data
            "schema": schema.to_json(),
            "split": self._info.drawn.split,
            "test_share": spec.data.test_share,
            "validation": spec.clients.validation,
            "max_train": spec.clients.max_train,
        }


def task_fingerprint(
    task: ResolvedTask, data: str, sites: int, class_names: Sequence[str], model: nn.Module, parts: Parts
) -> dict[str, Any]:
    """The part of a fingerprint that the server and the sites have in common; `data` is the name of the data set."""
    return {
        "runner": "flower",
        **recorded_settings([task.method], task.settings),
        "data": data,
        "outliers": task.spec.outliers.to_json(),
        "clients": sites,
        "classes": list(class_names),
        **parts.to_json(),
        "tied": tied_parameters(model),
        "architecture": repr(model),
    }
