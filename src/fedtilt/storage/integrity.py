"""Check every file of a run folder, and say what damage costs. Nothing is changed."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import read_html, read_json, read_tensors, read_toml
from fedtilt.storage.evaluations import Evaluations
from fedtilt.storage.fingerprint import read_fingerprint
from fedtilt.storage.provenance import read_record
from fedtilt.storage.run_folder import RunFolder, baselines_folder

_NEEDED = "no resume and no report until it is restored"
_WRITTEN_AGAIN = "nothing: resuming writes it again"
_EVALUATION = "its round in the curves; the last is trained again"
_FROM_SPEC = {"federation.json", "model.json", "backend.json", "thresholds.json", "results.json"}


@dataclass
class Check:
    """The files of one kind in a run folder."""

    kind: str
    costs: str  # what damage costs
    checked: int = 0  # files, lines or states
    damaged: list[str] = field(default_factory=list)  # a sentence each, which names the file

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a file that is read in a `with` block, and note the error if it is damaged."""
        self.checked += 1
        try:
            yield
        except InputError as error:
            self.damaged.append(str(error))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"kind": self.kind, "checked": self.checked, "damaged": self.damaged, "costs": self.costs}


def check_run(folder: Path) -> list[Check]:
    """Read everything that fedtilt reads in a run folder; one `Check` per kind of file that the folder has."""
    checks: dict[str, Check] = {}

    def check(kind: str, costs: str) -> Check:
        return checks.setdefault(kind, Check(kind, costs))

    with check("settings and records", _NEEDED).counted():
        read_record(folder)
    if (folder / "spec.toml").exists():
        with check("settings and records", _NEEDED).counted():
            read_toml(folder / "spec.toml")
    for page in sorted(folder.glob("*.html")):
        with check("pages", "nothing: fedtilt report writes it again").counted():
            read_html(page)
    _check_json(folder, check)
    for seed in sorted(folder.glob("seed-*")):
        if seed.is_dir():
            _check_json(seed, check)
            _check_seed(seed, check)
    return list(checks.values())


def _check_json(folder: Path, check: Callable[[str, str], Check]) -> None:
    for path in sorted(folder.glob("*.json")):
        if path.name in ("run.json", "fingerprint.json"):
            continue
        kind = ("names and results", _WRITTEN_AGAIN) if path.name in _FROM_SPEC else ("settings and records", _NEEDED)
        with check(*kind).counted():
            read_json(path)


def _check_seed(folder: Path, check: Callable[[str, str], Check]) -> None:
    run_folder, methods = RunFolder(folder), list[str]()
    with check("settings and records", _NEEDED).counted():
        methods += read_fingerprint(folder / "fingerprint.json")["methods"]
    for path in sorted(folder.glob("*.safetensors")):
        with check("constants and predictions", _WRITTEN_AGAIN).counted():
            read_tensors(path)
    if (baselines := baselines_folder(folder)).exists():
        again = check("baselines", _WRITTEN_AGAIN)
        _check_evaluations(Evaluations(baselines), (), again, again)
        for path in sorted(baselines.glob("*.safetensors")):
            with again.counted():
                read_tensors(path)
    metrics, counts = check("lines of metrics", _EVALUATION), check("counts", _EVALUATION)
    _check_evaluations(run_folder.evaluations, methods, metrics, counts)
    for round in run_folder.checkpoints.rounds():
        with check("checkpoints", "rounds since the one before, trained again").counted():
            state = run_folder.checkpoints.read(round)
            states = check("states of clients", "that client starts again from the shared model")
            states.checked += len(state.client_states)
            for (method, client), path in state.client_states.damaged().items():
                name = run_folder.client_name(client)
                states.damaged.append(
                    f"{path} is damaged: client {name} of {method} in the checkpoint of round {round}"
                )


def _check_evaluations(evaluations: Evaluations, methods: Sequence[str], metrics: Check, counts: Check) -> None:
    lines = evaluations.read_lines()
    metrics.checked += sum(map(len, lines.rounds.values())) + len(lines.damaged)
    metrics.damaged += lines.damaged or evaluations.problems(lines, methods).values()
    for round in evaluations.counted_rounds():
        with counts.counted():
            evaluations.counts(round)
