"""Read a run folder into plain values, without training and without the data set.

seed-0/federation.json has the names of clients and classes and the clients with outliers: {"clients": ["north", …],
"classes": ["cat", …], "has_outliers": [3, 7]}. With {"group": "sex"}, the classes are the groups of that column.
"""

import shlex
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtilt.data.groups import CLASS
from fedtilt.data.sampling import AS_GIVEN, DrawnRows
from fedtilt.errors import InputError, InputWarning
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.evaluation.metrics import Counts, GroupCounts, counts_of_chance
from fedtilt.evaluation.predictions import Predictions
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.evaluation.scores import SCORES, Score
from fedtilt.files import interpreting, read_json, read_toml
from fedtilt.storage.evaluations import Evaluations, History
from fedtilt.storage.fingerprint import read_fingerprint
from fedtilt.storage.predictions import read_predictions
from fedtilt.storage.provenance import check_run_folder, read_record
from fedtilt.storage.run_folder import EARLY_STOP, baselines_folder, drawn_rows, read_thresholds


@dataclass(frozen=True, kw_only=True)
class SeedRun:
    """The results of one seed so far."""

    seed: int
    folder: Path | None = None  # None: the run has no folder
    history: History  # method → (round, metrics) of every evaluated round, the same rounds for every method
    counts: Mapping[str, Counts]  # of the last evaluated round
    total: Tensor  # (N, K) test samples
    has_outliers: Tensor  # (N,) bool
    client_names: tuple[str, ...]
    class_names: tuple[str, ...]  # of the K columns
    group: str = CLASS  # what the columns are: classes, ranges of the target, or a column of groups
    attackers: tuple[int, ...] = ()  # clients, which are not evaluated
    left_out: tuple[int, ...] = ()  # clients that have left: they have a number, and no data
    drawn: DrawnRows = AS_GIVEN  # how the test rows came about
    test_rows: str = ""  # a digest of them; empty: not recorded
    about_data: tuple[str, ...] = ()  # warnings, and how the source was read
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)  # by method, of a rare class
    has_ended: bool = False  # early, by the stop rule of the run
    baselines: Mapping[str, RoundMetrics] = field(default_factory=dict)  # after the last evaluated round, by name

    @cached_property
    def round(self) -> int:
        """The last evaluated round."""
        return next(iter(self.history.values()))[-1][0]

    def last(self, method: str) -> RoundMetrics:
        """The metrics after the last evaluated round."""
        return self.history[method][-1][1]

    def sums(self, method: str) -> Tensor:
        """Sums (N, K) of the evaluated models: correct predictions, or errors."""
        return self.counts[method].evaluated

    def of_chance(self, method: str) -> GroupCounts:
        """The counts that chance in the scores of a method follows from; see `counts_of_chance`."""
        by_grouping = {self.group: GroupCounts(self.sums(method), self.total)}
        others = self.counts[method].groups
        if self.group != CLASS and others and not self.sums(method).is_floating_point():
            by_grouping[CLASS] = others[0]  # see `group_names`
        return counts_of_chance(by_grouping, self.drawn.fixed_shares)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.total) - len(self.left_out)

    @property
    def tested(self) -> list[int]:
        """The clients with test data."""
        return self.total.sum(1).nonzero().flatten().tolist()

    @property
    def some_have_outliers(self) -> bool:
        """Whether some of the clients have outliers, and not all."""
        return 0 < int(self.has_outliers.sum()) < len(self.total)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder: its settings, its environment and the results of every seed."""

    folder: Path
    name: str
    started: str
    environment: Mapping[str, Any]
    fingerprint: Mapping[str, Any]  # settings of the first seed: methods, train, data, outliers, clients, model
    spec: str | None  # spec.toml; None for a run started from Python
    seeds: tuple[int, ...]  # all seeds of the run, evaluated or not
    seed_runs: tuple[SeedRun, ...]  # the seeds with an evaluated round

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods in the order of the run."""
        return tuple(self.fingerprint["methods"])

    @property
    def score(self) -> Score:
        """The main score of the run's models."""
        return SCORES[self.seed_runs[0].last(self.methods[0]).evaluated.score]

    @property
    def group(self) -> str:
        """What the tables of counts are by: classes, ranges of the target, or a column of groups."""
        return self.seed_runs[0].group

    @property
    def rounds(self) -> int:
        """The number of rounds in the settings."""
        return int(self.fingerprint["train"]["rounds"])

    @property
    def round(self) -> int:
        """The round at which methods are compared: the last that any seed has reached."""
        return max(seed_run.round for seed_run in self.seed_runs)

    @property
    def compared(self) -> tuple[SeedRun, ...]:
        """The seeds that have reached that round, or have ended early."""
        return tuple(seed_run for seed_run in self.seed_runs if seed_run.round == self.round or seed_run.has_ended)

    @property
    def baselines(self) -> tuple[str, ...]:
        """Names of what the methods are compared with, in all seeds."""
        first, *others = (seed_run.baselines for seed_run in self.compared)
        return tuple(name for name in first if all(name in found for found in others))

    @cached_property
    def predictions(self) -> tuple[dict[str, Predictions], ...]:
        """The stored predictions of methods and baselines, for every seed that is compared."""
        found = []
        for seed_run in self.compared:
            folders = [] if seed_run.folder is None else [seed_run.folder, baselines_folder(seed_run.folder)]
            read = [read_predictions(folder, seed_run.round) for folder in folders]
            found.append({name: predictions for by_name in read for name, predictions in by_name.items()})
        return tuple(found)

    @property
    def finished(self) -> bool:
        """Whether every seed has finished all its rounds, or has ended early."""
        ended = [seed_run.has_ended or seed_run.round >= self.rounds for seed_run in self.seed_runs]
        return len(ended) == len(self.seeds) and all(ended)


def read_run(folder: Path) -> Run:
    """Read a run folder, finished or not; an error names the damaged file."""
    check_run_folder(folder)
    record = read_record(folder)
    if "tuning" in record:
        command = f"fedtilt report {shlex.quote(str(folder))}"
        raise InputError(f"{folder} is a search, which has a page of its own: {command}")
    environment, seeds = dict(record["environment"]), set(record["seeds"])
    seeds |= {int(path.name[5:]) for path in folder.glob("seed-*") if path.name[5:].isdecimal()}
    seed_folders = {seed: folder / f"seed-{seed}" for seed in sorted(seeds)}
    files = {seed: path / "fingerprint.json" for seed, path in seed_folders.items()}
    fingerprints = {seed: read_fingerprint(file) for seed, file in files.items() if file.exists()}
    found = [_read_seed(seed_folders[seed], seed, fingerprint) for seed, fingerprint in fingerprints.items()]
    seed_runs = [seed_run for seed_run in found if seed_run is not None]
    if not seed_runs:
        resume = f"fedtilt resume {shlex.quote(str(folder))}"
        remedy = resume if (folder / "spec.toml").exists() else "fedtilt.run and the same arguments"
        raise InputError(f"{folder} has no evaluated round yet; continue with: {remedy}")
    backend = seed_folders[seed_runs[0].seed] / "backend.json"
    if backend.exists():
        with interpreting(backend):
            environment |= read_json(backend)
    return Run(
        folder=folder, name=folder.resolve().name, started=format_time(record["started"]), environment=environment,
        fingerprint=fingerprints[seed_runs[0].seed],
        spec=read_toml(folder / "spec.toml") if (folder / "spec.toml").exists() else None, seeds=tuple(seed_folders),
        seed_runs=tuple(seed_runs),
    )  # fmt: skip


def _read_seed(folder: Path, seed: int, fingerprint: Mapping[str, Any]) -> SeedRun | None:
    """One seed of a run; None before its first evaluated round."""
    evaluations, methods = Evaluations(folder), list(fingerprint["methods"])
    history = _read_history(evaluations, methods)
    if history is None:
        return None
    last = next(iter(history.values()))[-1][0]
    counts, total = evaluations.counts(last)
    if missing := [name for name in methods if name not in counts]:
        file = evaluations.counts_file(last)
        raise InputError(f"{file} has no counts of {', '.join(missing)}; restore it from a copy")
    return SeedRun(
        seed=seed, folder=folder, history=history, counts={name: counts[name] for name in methods}, total=total,
        baselines=_read_baselines(baselines_folder(folder), last), thresholds=read_thresholds(folder, last),
        has_ended=(folder / EARLY_STOP).exists(),
        **_read_federation(folder / "federation.json", *total.shape),
    )  # fmt: skip


def _read_baselines(folder: Path, round: int) -> dict[str, RoundMetrics]:
    """The metrics of the baselines; empty while a run has none of its last round."""
    evaluations = Evaluations(folder)
    lines = evaluations.read_lines()
    if lines.damaged:
        raise InputError(f"{lines.damaged[0]}; resume the run, which computes the baselines again")
    return {name: line.summary for name, line in lines.rounds.get(round, {}).items()}


def _read_history(evaluations: Evaluations, methods: list[str]) -> History | None:
    """Every round with the metrics of all methods; a warning says that the last one is incomplete, after a kill."""
    lines = evaluations.read_lines()
    problems = evaluations.problems(lines, methods)
    last = max([*lines.rounds, *evaluations.counted_rounds()], default=0)
    for text in (*lines.damaged, *problems.values()):
        if set(problems) != {last}:
            raise InputError(f"{text}; resume the run, which leaves out the damaged round")
        warnings.warn(f"{text}; round {last} is skipped", InputWarning, stacklevel=2)
    complete = sorted(lines.rounds.keys() - problems.keys())
    return {name: [(r, lines.rounds[r][name].summary) for r in complete] for name in methods} if complete else None


def _read_federation(path: Path, clients: int, classes: int) -> dict[str, Any]:
    """The fields of a `SeedRun` that are about clients and classes."""
    record = read_json(path)
    with interpreting(path):
        client_names, class_names = tuple(map(str, record["clients"])), tuple(map(str, record["classes"]))
        has_outliers = torch.zeros(clients, dtype=torch.bool)
        has_outliers[torch.tensor(record["has_outliers"], dtype=torch.long)] = True
        attackers, left_out = (tuple(map(int, record.get(key, ()))) for key in ("attackers", "left_out"))
        about_data = tuple(map(str, record.get("about_data", ())))
        drawn = drawn_rows(record)
    if (len(client_names), len(class_names)) != (clients, classes):
        raise InputError(
            f"{path} names {len(client_names)} clients and {len(class_names)} classes, "
            f"but the counts have {clients} and {classes}"
        )
    return {
        "client_names": client_names, "class_names": class_names, "has_outliers": has_outliers,
        "group": str(record.get("group", CLASS)), "attackers": attackers, "left_out": left_out,
        "about_data": about_data, "drawn": drawn, "test_rows": str(record.get("test_rows", "")),
    }  # fmt: skip


def format_time(started: str) -> str:
    """Format a start time.

    >>> format_time("2026-11-15T03:21:23+0000")
    '15 November 2026, 03:21'
    """
    try:
        return time.strftime("%d %B %Y, %H:%M", time.strptime(str(started)[:19], "%Y-%m-%dT%H:%M:%S")).lstrip("0")
    except ValueError:
        return str(started)
