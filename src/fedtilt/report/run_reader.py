"""Read a run folder into plain values; nothing is trained, and the data set is not needed.

seed-0/federation.json, where there is one, names the clients and classes and lists who carries outliers:
{"clients": ["north", …], "classes": ["cat", …], "has_outliers": [3, 7]}; otherwise they go by their numbers.
"""

import json
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts
from fedtilt.evaluation.results import Summary, evaluated_counts
from fedtilt.files import read_json
from fedtilt.storage.run_folder import History, RunFolder


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one seed of a run has found so far."""

    seed: int
    history: History  # method → (round, metrics) of every judged round, the same rounds for every method
    counts: Mapping[str, Counts]  # of the last judged round
    total: Tensor  # (N, K) test samples
    has_outliers: Tensor | None  # (N,) bool: who carries outliers; None where it is not known
    client_names: tuple[str, ...]
    class_names: tuple[str, ...]

    @cached_property
    def round(self) -> int:
        """The last judged round."""
        return next(iter(self.history.values()))[-1][0]

    def last(self, method: str) -> Summary:
        """The metrics after the last judged round."""
        return self.history[method][-1][1]

    def correct(self, method: str) -> Tensor:
        """Right answers (N, K) of the models that count."""
        return evaluated_counts(self.counts[method])


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder: what was asked, where it ran, and what every seed found."""

    folder: Path
    name: str
    started: str
    environment: Mapping[str, Any]
    fingerprint: Mapping[str, Any]  # settings of the first seed: methods, train, data, outliers, clients, model
    spec: str | None  # spec.toml; None for a run started from Python
    seeds: tuple[int, ...]  # all that were asked for
    parts: tuple[Part, ...]  # those with a judged round
    search: Mapping[str, Any] | None = None  # whose settings were searched, and which was chosen, once it is

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order of the run; of a search, without the settings that were not chosen."""
        passed = {} if self.search is None else self.search["settings"].keys()
        kept = () if self.search is None else (self.search["method"], self.search.get("chosen"))
        return tuple(name for name in self.fingerprint["methods"] if name not in passed or name in kept)

    @property
    def rounds(self) -> int:
        """How many rounds were asked for."""
        return int(self.fingerprint["train"]["rounds"])

    @property
    def round(self) -> int:
        """The round the methods are compared at: the last that any seed has reached."""
        return max(part.round for part in self.parts)

    @property
    def compared(self) -> tuple[Part, ...]:
        """The seeds that have reached that round."""
        return tuple(part for part in self.parts if part.round == self.round)

    @property
    def finished(self) -> bool:
        """Whether every seed has gone through all its rounds."""
        return len(self.compared) == len(self.seeds) and self.round >= self.rounds


def _search(folder: Path, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a search found, or what it is after while it runs; None for any other run."""
    if "tuning" not in record:
        return None
    results = folder / "results.json"
    found = read_json(results).get("tuning") if results.exists() else None
    return dict(found or record["tuning"])


def read_run(folder: Path) -> Run:
    """A run folder as it is now, finished or not; a damaged file is named."""
    if not (folder / "run.json").exists():
        raise InputError(f"{folder} is not a run folder: it has no run.json")
    record = read_json(folder / "run.json")
    try:
        started, environment, asked = record["started"], dict(record["environment"]), set(record["seeds"])
        asked |= {int(path.name[5:]) for path in folder.glob("seed-*") if path.name[5:].isdigit()}
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"{folder / 'run.json'} is damaged ({error!r})") from error
    homes = {seed: folder / f"seed-{seed}" for seed in sorted(asked)}
    jobs = {seed: _job(home) for seed, home in homes.items() if (home / "fingerprint.json").exists()}
    parts = [part for seed, job in jobs.items() if (part := _part(homes[seed], seed, job)) is not None]
    if not parts:
        again = f"fedtilt resume {shlex.quote(str(folder))}"
        way = again if (folder / "spec.toml").exists() else "fedtilt.run and the same arguments"
        raise InputError(f"{folder} has no judged round yet; go on with: {way}")
    return Run(
        folder=folder,
        name=folder.resolve().name,
        started=_readable(started),
        environment=environment,
        fingerprint=jobs[parts[0].seed],
        spec=_text(folder / "spec.toml"),
        seeds=tuple(homes),
        parts=tuple(parts),
        search=_search(folder, record),
    )


def _job(home: Path) -> dict[str, Any]:
    job = read_json(home / "fingerprint.json")
    try:
        rounds, kind, methods = job["train"]["rounds"], job["outliers"]["kind"], dict(job["methods"])
        job["outliers"]["clients"], job["data"], job["clients"]
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"{home / 'fingerprint.json'} is damaged ({error!r})") from error
    if not isinstance(rounds, int) or not isinstance(kind, str) or not methods:
        raise InputError(f"{home / 'fingerprint.json'} is damaged: it names no rounds, outliers or methods")
    return dict(job)


def _part(home: Path, seed: int, job: Mapping[str, Any]) -> Part | None:
    history = _history(home / "metrics.jsonl", list(job["methods"]))
    if history is None:
        return None
    last = next(iter(history.values()))[-1][0]
    try:
        counts, total = RunFolder(home).counts(last)
        counts = {name: counts[name] for name in job["methods"]}
    except (KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the counts of round {last} in {home} are damaged ({error!r})") from error
    clients, classes, has_outliers = _federation(home / "federation.json", job, *total.shape)
    return Part(
        seed=seed, history=history, counts=counts, total=total, has_outliers=has_outliers,
        client_names=clients, class_names=classes,
    )  # fmt: skip


def _history(path: Path, methods: list[str]) -> History | None:
    """Every round that was judged for all methods; the line that was being written when a run was killed is left."""
    text = _text(path)
    lines = text.splitlines() if text else []
    rounds: dict[int, dict[str, Summary]] = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            rounds.setdefault(int(entry["round"]), {})[entry["method"]] = Summary.from_json(entry)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise InputError(f"{path} is damaged in line {number} ({error!r})") from error
    whole = sorted(number for number, found in rounds.items() if set(found) >= set(methods))
    return {name: [(number, rounds[number][name]) for number in whole] for name in methods} if whole else None


def _federation(
    path: Path, job: Mapping[str, Any], clients: int, classes: int
) -> tuple[tuple[str, ...], tuple[str, ...], Tensor | None]:
    """Names of clients and classes, and who carries outliers."""
    share = 0.0 if job["outliers"]["kind"] == "none" else float(job["outliers"]["clients"])
    has_outliers = torch.full((clients,), share == 1) if share in (0, 1) else None
    if not path.exists():
        return tuple(map(str, range(clients))), tuple(map(str, range(classes))), has_outliers
    record = read_json(path)
    try:
        names, labels = tuple(map(str, record["clients"])), tuple(map(str, record["classes"]))
        has_outliers = torch.zeros(clients, dtype=torch.bool)
        has_outliers[torch.tensor(record["has_outliers"], dtype=torch.long)] = True
    except (TypeError, KeyError, ValueError, IndexError, RuntimeError) as error:
        raise InputError(f"{path} is damaged ({error!r})") from error
    if (len(names), len(labels)) != (clients, classes):
        raise InputError(f"{path} names {len(names)} clients and {len(labels)} classes for {clients} and {classes}")
    return names, labels, has_outliers


def _text(path: Path) -> str | None:
    try:
        return path.read_text() if path.exists() else None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error})") from error


def _readable(started: str) -> str:
    """'2026-11-15T03:21:23+0000' as '15 November 2026, 03:21'."""
    try:
        return time.strftime("%d %B %Y, %H:%M", time.strptime(str(started)[:19], "%Y-%m-%dT%H:%M:%S")).lstrip("0")
    except ValueError:
        return str(started)
