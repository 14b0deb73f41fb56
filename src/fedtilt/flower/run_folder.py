"""The server's run folder, laid out as the simulator's: spec, metrics, counts, checkpoints of the shared model.

It adds, under seed-N, history.json (the name of this training history, which sites file their personal models under)
and faults.json (who took part in which round, and what was refused of which site); stopped.json says why a run stopped,
and which sites it lacked. There is no personal model.
"""

import dataclasses
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.results import MethodResult, Result, Summary, evaluated_counts, over_seeds
from fedtilt.files import read_json, write_bytes, write_json
from fedtilt.flower.membership import Missing
from fedtilt.flower.messages import shapes_of
from fedtilt.flower.task import Frame, Job
from fedtilt.locks import locked
from fedtilt.rounds.client_states import FederationState
from fedtilt.spec import dump
from fedtilt.storage.provenance import record_environment, seed_folder, settings_of
from fedtilt.storage.run_folder import RunFolder


class Ledger:
    """What the server writes down."""

    def __init__(self, folder: Path, job: Job, frame: Frame, model: nn.Module) -> None:
        self.folder, self._job, self._frame, self._model = folder, job, frame, model
        self._home = seed_folder(folder, job.spec.seed)
        self._store = RunFolder(self._home)
        self._name = job.method.name
        self.history = ""
        self._faults: dict[str, Any] = {"refused": {}, "rounds": {}}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hold the folder for this run alone; what stops the run is written into stopped.json."""
        stopped = self.folder / "stopped.json"
        with locked(self.folder):
            stopped.unlink(missing_ok=True)
            try:
                yield
            except Exception as error:
                lost = {"sites": error.sites} if isinstance(error, Missing) else {}
                write_json(stopped, {"why": str(error)} | lost)
                raise

    def is_begun(self) -> bool:
        """Whether the folder holds a run, to go on with or to refuse."""
        return (self._home / "fingerprint.json").exists()

    def begin(self, w: Tensor, notice: Callable[[str], None]) -> tuple[int, Tensor]:
        """Claim the folder: the round to go on from and its shared model, or round 0 and the given one."""
        state = self._store.begin(self._description(), notice)
        if not (self.folder / "run.json").exists():
            write_bytes(self.folder / "spec.toml", dump(self._job.spec).encode())
            record_environment(self.folder, "cpu", [self._job.spec.seed], runner="flower")
        named = self._home / "history.json"
        if not named.exists():
            write_json(named, {"history": secrets.token_hex(8)})
        self.history = read_json(named)["history"]
        if (self._home / "faults.json").exists():
            self._faults = read_json(self._home / "faults.json")
        if state is None:
            self.settled(0, w)
            return 0, w
        return state.round, state.shared[self._name]

    def settled(self, round: int, w: Tensor) -> None:
        """Make the shared model of a round last."""
        self._store.checkpoint(FederationState(round, {self._name: w}, self._store.client_states))

    def is_evaluated(self, round: int) -> bool:
        """Whether the metrics of a round are here."""
        return any(number == round for number, _ in self._store.history.get(self._name, []))

    def evaluated(self, round: int, summary: Summary, counts: Counts, total: Tensor) -> None:
        """Add the metrics of a round, and what its rows and columns are called."""
        names = self._frame.class_names
        self._store.describe(
            clients=self._frame.site_names,
            classes=names if total.shape[1] == len(names) else ["all classes"],  # some site withholds its classes
            has_outliers=self._frame.has_outliers.nonzero()[:, 0].tolist(),
        )
        self._store.record(round, {self._name: summary}, {self._name: counts}, total)

    def took_part(self, round: int, entry: Mapping[str, Any]) -> None:
        """Remember who took part in a round; `refused` writes it down."""
        self._faults["rounds"][str(round)] = dict(entry)

    def refused(self, refusals: Mapping[str, Mapping[str, int]]) -> None:
        """Write down who took part, and how often what was refused of whom."""
        self._faults["refused"] = {who: dict(reasons) for who, reasons in refusals.items()}
        write_json(self._home / "faults.json", self._faults)

    def known_refusals(self) -> dict[str, dict[str, int]]:
        """What was refused in earlier runs of this history."""
        found: dict[str, dict[str, int]] = self._faults["refused"]
        return found

    def finish(self) -> Result:
        """The results of the finished run, written as the simulator writes them."""
        state = self._store.latest()
        assert state is not None
        counts, total = self._store.counts(state.round)
        result = Result(
            {
                self._name: MethodResult(
                    method=self._job.method,
                    history=self._store.history[self._name],
                    correct=evaluated_counts(counts[self._name]),
                    total=total,
                    client_names=tuple(self._frame.site_names),
                    _net=self._model,
                    _shared=state.shared[self._name],  # personal models are on their sites
                )
            }
        )
        write_json(self.folder / "results.json", over_seeds({self._job.spec.seed: result}))
        return result

    def _description(self) -> dict[str, Any]:
        """What must not change between a run and its resumption."""
        return {
            "runner": "flower",
            **settings_of([self._job.method], self._job.training),
            "data": self._frame.data,
            "outliers": dataclasses.asdict(self._job.spec.outliers.to_outliers()),
            "clients": self._frame.sites,
            "classes": list(self._frame.class_names),
            "model": {name: list(shape) for name, shape in shapes_of(self._model).items()},
        }
