"""Train a project on its local cluster, show its rounds, and print the result."""

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from fedtilt.cli.console import Console, echo, escape, plural
from fedtilt.cli.progress import ProgressDisplay
from fedtilt.cli.run import write_report
from fedtilt.cli.tables import group_tables, worst_texts
from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import BEYOND_CHANCE
from fedtilt.flower import RoundPolicy, Task
from fedtilt.flower.deploy.local_cluster import LocalCluster, cluster_home
from fedtilt.flower.deploy.programs import status_text
from fedtilt.flower.deploy.project import default_run_config
from fedtilt.flower.run_status import early_end
from fedtilt.locks import locked
from fedtilt.report.compare import comparison_table, overview_metrics
from fedtilt.report.notes import model_notes
from fedtilt.report.run_reader import read_run
from fedtilt.report.summary import certificates
from fedtilt.runs.trackers import FolderLog, trackers_of

_LOG_LINES = 12  # of a run that failed without a reason in its folder


def train(project: Path, config: dict[str, Any], out: Path | None, log: Sequence[str]) -> None:
    """Submit a run with these settings to the project's cluster, show it to its end, and print its result."""
    trackers = trackers_of(log)
    cluster = LocalCluster.load(cluster_home(project))
    if problem := cluster.problem():
        raise InputError(problem)
    defaults, back_to = default_run_config(project), config.get("back-to")
    for key, default in (("back-to", "-1"), ("root", '""')):
        if key in config and key not in defaults:
            line = f"{key} = {default}"
            raise InputError(f"{project / 'pyproject.toml'} has no {key}; add {line} to [tool.flwr.app.config]")
    if "quorum" not in config and defaults.get("join-quorum") == 0:
        config["join-quorum"] = 1.0  # all sites are on this machine: one that cannot join is an error to fix
    RoundPolicy.from_config(config)
    task = Task(spec=project / "spec.toml").resolve(config)
    folder = (out or cluster.runs_folder / f"{task.spec.name}-{task.method.name}").resolve()
    with cluster.training():
        with locked(folder, busy=f"a run still trains in {folder}; wait for it, or choose another folder with --out"):
            folder_log = FolderLog(folder, task.spec.seed, task.spec.train.rounds, trackers, back_to)
            progress = RunProgress(cluster, folder, task.spec.seed, task.spec.train.rounds, folder_log, back_to)
        number = cluster.submit(project, config | {"out": str(folder)})
        try:
            with folder_log, progress.display.running():
                status = cluster.wait_for_run(number, is_done=progress.update)
                progress.update()
                if status != "finished:completed":
                    raise InputError(progress.failure_message(number, status))
        except KeyboardInterrupt:
            unlogged = ", and is no longer logged" if trackers else ""
            echo(f"run {number} continues{unlogged}; see fedtilt deploy status {project}", err=True)
            raise typer.Exit(130) from None
    if progress.was_finished:
        echo(f"finished     {folder} was already finished; for a new run choose another folder with --out")
    if reason := early_end(folder / f"seed-{task.spec.seed}"):
        echo(f"ended{reason}")
    _print_result(folder, task.method.name, cluster)


class RunProgress:
    """Shows every new round that the server records, and once the log file of a site that is lost."""

    def __init__(
        self, cluster: LocalCluster, folder: Path, seed: int, rounds: int, log: FolderLog, back_to: int | None
    ) -> None:
        self._cluster, self._folder, self._rounds, self._back_to, self._log = cluster, folder, rounds, back_to, log
        self.display = ProgressDisplay(Console(stderr=True), verbose=True)
        self._seed_folder = folder / f"seed-{seed}"
        self._start_time = time.time()
        self._logs_printed: set[int] = set()  # sites
        self._history_before = self._history()
        self._rounds_before = set(self._recorded_rounds())
        self._rounds_printed = set(self._rounds_before)
        self._jumps_printed = set(self._rounds_before)  # rounds
        self._had_results = (folder / "results.json").exists()

    def _history(self) -> object:
        return _read_if_written(self._seed_folder / "history.json").get("history")

    def _recorded_rounds(self) -> dict[str, Any]:
        rounds: dict[str, Any] = _read_if_written(self._seed_folder / "participation.json").get("rounds", {})
        if self._back_to is not None and self._history() == self._history_before:  # the server has not gone back yet
            rounds = {number: entry for number, entry in rounds.items() if int(number) <= self._back_to}
        return rounds

    def update(self) -> bool:
        """Print and log new rounds; whether the run has recorded how it ended."""
        recorded = self._recorded_rounds()
        self._log.update({int(number) for number in recorded})
        for number, entry in recorded.items():
            if number not in self._rounds_printed:
                self._rounds_printed.add(number)
                lost = {int(site): reason for site, reason in (entry["rejected"] | entry["missing"]).items()}
                reasons = "; ".join(f"site {site} {reason}" for site, reason in sorted(lost.items()))
                sites = plural(len(entry["accepted"]), "site")
                latest = f"{sites}{f' ({reasons})' if reasons else ''}"
                self.display.update(int(number), self._rounds, f"round {number}/{self._rounds}", latest)
                for site in sorted(lost.keys() - self._logs_printed):
                    self.display.print(f"log of site {site}: {self._cluster.log_file(site)}")
                self._logs_printed |= lost.keys()
            if "jump" in entry and number not in self._jumps_printed:
                self._jumps_printed.add(number)
                self.display.print(f"round {number}: {entry['jump']}")
        return self._is_new("results.json") or self._is_new("stopped.json")

    def _is_new(self, name: str) -> bool:
        path = self._folder / name
        return path.exists() and path.stat().st_mtime >= self._start_time

    @property
    def was_finished(self) -> bool:
        """Whether the run was finished before, so that no round was trained now."""
        return self._had_results and self._rounds_printed == self._rounds_before

    def failure_message(self, run: int, status: str) -> str:
        """Why a run is not finished, and which log to read; without a recorded reason, print the end of its log."""
        stopped = _read_if_written(self._folder / "stopped.json") if self._is_new("stopped.json") else {}
        if "reason" not in stopped:
            lines, reason = last_error(self._cluster.run_log(run))
            echo("\n".join(lines), err=True)
            reason = f": {reason}" if reason else ""
            return f"the run in {self._folder} is {status_text(status)}{reason}; see {self._cluster.server_log_file}"
        if not (missing := stopped.get("sites")):
            return f"the run stopped: {stopped['reason']}"
        logs = ", ".join(str(self._cluster.log_file(site)) for site in missing)
        return f"the run stopped: {stopped['reason']}, or accept fewer sites with --quorum; see {logs}"


def last_error(log: str) -> tuple[list[str], str]:
    """The last lines of a log up to the last exception, and that exception in one line.

    >>> last_error("round 1\\nTraceback (most recent call last):\\n  File ...\\nKeyError: 'age'\\nExit Code: 1")
    (['round 1', 'Traceback (most recent call last):', '  File ...', "KeyError: 'age'"], "KeyError: 'age'")
    """
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", log).splitlines() if line.strip()]
    start = max((n for n, line in enumerate(lines) if line.startswith("Traceback ")), default=None)
    if start is None:
        return lines[-_LOG_LINES:], ""
    end = next((n for n, line in enumerate(lines) if n > start and not line.startswith(" ")), len(lines) - 1)
    return lines[: end + 1][-_LOG_LINES:], re.sub(r"^fedtilt\.[\w.]+: ", "", lines[end])


def _read_if_written(path: Path) -> dict[str, Any]:
    """The values in a JSON file that another process writes; none if there is no such file yet."""
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):  # not written yet
        return {}
    return values


def _print_result(folder: Path, method: str, cluster: LocalCluster) -> None:
    """Print the metrics of the last evaluation, where it fails most, and the files to read; write the report."""
    run, console = read_run(folder), Console(highlight=False, soft_wrap=True)
    seed_run, row = run.compared[0], comparison_table(run, "evaluated")[method]
    seed = folder / f"seed-{seed_run.seed}"
    is_evaluated = seed_run.total.sum(1) > 0
    evaluated = int(is_evaluated.sum())
    # the spread over one site is always 0
    metrics = [m for m in overview_metrics(run) if evaluated > 1 or m.key not in ("client_fairness", BEYOND_CHANCE)]
    text = "  ".join(f"{metric.title} {row[metric.key].mean:.2f}" for metric in metrics)
    missing = [name for name, has_data in zip(seed_run.client_names, is_evaluated, strict=True) if not has_data]
    without = f"without site{'' if len(missing) == 1 else 's'} {', '.join(missing)}"
    echo(text + (f"  ({evaluated} of {len(is_evaluated)} sites evaluated, {without})" if missing else ""))
    site, group = worst_texts(run, method)
    worst = [f"site {site}"] * bool(site and evaluated > 1)
    worst += [f"{escape(run.group)} {group}"] * bool(group and len(seed_run.class_names) > 1)  # else withheld
    if worst:
        console.print(f"fails most   {', '.join(worst)}")
    if certificate := certificates(run):
        console.print(f"certificate  {escape(certificate)}")
    for note in model_notes(run):
        console.print(f"note         {escape(note.text)}")
    for table in group_tables(run, console.width):
        Console().print(table)
    if (seed / "declared.json").exists():
        echo(f"declared by sites beside their counts: {seed / 'declared.json'}")
    history = _read_if_written(seed / "history.json").get("history")
    for path in sorted(cluster.home.glob(f"site-*/state/*/{method}/seed-*/site-*/report.json")):
        report = _read_if_written(path)
        if (report.get("history"), report.get("round")) == (history, seed_run.round):  # of this run, not an earlier one
            echo(f"site report  {path.with_suffix('.txt')}")
    echo(f"run folder   {folder}")
    echo(f"report       {write_report(folder)}")
