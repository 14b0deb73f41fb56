"""`fedtilt deploy run`: train a project on its local cluster, show its rounds, and print the result."""

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtilt.cli.console import Console, echo, escape, plural
from fedtilt.cli.options import Log, Settings
from fedtilt.errors import InputError
from fedtilt.locks import locked

if TYPE_CHECKING:
    from fedtilt.cli.progress import ProgressDisplay
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.runs.trackers import FolderLog

_LOG_LINES = 12  # of a run that failed without a reason in its folder
Project = Annotated[Path, typer.Argument(metavar="[DIR]", help="The project's folder.")]


def cluster_home(project: Path) -> Path:
    """The folder of a project's local cluster."""
    return project / ".fedtilt"


def run(
    project: Project = Path("."),
    method: Annotated[str, typer.Option(metavar="NAME", help="The method of spec.toml, if it has several.")] = "",
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The server's run folder.")] = None,
    quorum: Annotated[
        float | None,
        typer.Option(help="Share of a round's sites whose models must arrive; without it, all sites must also join."),
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds a site has for a round.")] = None,
    back_to: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="ROUND",
            help="Undo the rounds after this one, on the server and on all sites; status shows which rounds are kept.",
        ),
    ] = None,
    log: Log = None,
) -> None:  # fmt: skip
    """Train the project on its local cluster; a stopped run resumes where it stopped."""
    from fedtilt.cli.progress import ProgressDisplay
    from fedtilt.flower import RoundPolicy, Task
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.deploy.project import check_project, default_run_config
    from fedtilt.runs.trackers import FolderLog, trackers_of

    check_project(project)
    trackers = trackers_of(log or [])
    cluster = LocalCluster.load(cluster_home(project))
    if problem := cluster.problem():
        raise InputError(problem)
    config: dict[str, object] = {"method": method, "set": "\n".join(settings or [])}
    options = {"quorum": quorum, "deadline": deadline, "back-to": back_to}
    config |= {key: value for key, value in options.items() if value is not None}
    defaults = default_run_config(project)
    if back_to is not None and "back-to" not in defaults:
        raise InputError(f"{project / 'pyproject.toml'} has no back-to; add back-to = -1 to [tool.flwr.app.config]")
    if quorum is None and defaults.get("join-quorum") == 0:
        config["join-quorum"] = 1.0  # all sites are on this machine: one that cannot join is an error to fix
    RoundPolicy.from_config(config)
    task = Task(spec=project / "spec.toml").resolve(config)
    folder = (out or cluster.runs_folder / f"{task.spec.name}-{task.method.name}").resolve()
    with cluster.training():
        with locked(folder, busy=f"a run still trains in {folder}; wait for it, or choose another folder with --out"):
            seed, rounds = task.spec.seed, task.spec.train.rounds
            folder_log = FolderLog(folder, seed, rounds, trackers, back_to)
            display = ProgressDisplay(Console(stderr=True), verbose=True)
            progress = RunProgress(cluster, folder, seed, rounds, log=folder_log, display=display, back_to=back_to)
        number = cluster.submit(project, config | {"out": str(folder)})
        try:
            with folder_log, display.running():
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
    _print_result(folder, task.method.name, cluster)


class RunProgress:
    """Shows every new round that the server records, and once the log file of a site that is lost.

    Args:
        cluster: the local cluster
        folder: the run folder
        seed: of the run
        rounds: the number of rounds
        log: where the metrics of evaluated rounds go
        display: shows the rounds
        back_to: the round that the run goes back to; None: it continues
    """

    def __init__(
        self, cluster: "LocalCluster", folder: Path, seed: int, rounds: int, *, log: "FolderLog",
        display: "ProgressDisplay", back_to: int | None = None,
    ) -> None:  # fmt: skip
        self._cluster, self._folder, self._rounds, self._back_to = cluster, folder, rounds, back_to
        self._log, self._display = log, display
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
                self._display.update(int(number), self._rounds, f"round {number}/{self._rounds}", latest)
                for site in sorted(lost.keys() - self._logs_printed):
                    self._display.print(f"log of site {site}: {self._cluster.log_file(site)}")
                self._logs_printed |= lost.keys()
            if "jump" in entry and number not in self._jumps_printed:
                self._jumps_printed.add(number)
                self._display.print(f"round {number}: {entry['jump']}")
        return self._is_new("results.json") or self._is_new("stopped.json")

    def _is_new(self, name: str) -> bool:
        path = self._folder / name
        return path.exists() and path.stat().st_mtime >= self._start_time

    @property
    def was_finished(self) -> bool:
        """Whether the run was finished before, so that no round was trained now."""
        return self._had_results and self._rounds_printed == self._rounds_before

    def failure_message(self, run: int, status: str) -> str:
        """Why the run is not finished, and which log to read; without a reason in its folder, print the end of the log.

        Args:
            run: the number of the run
            status: Flower's status of it
        """
        from fedtilt.flower.deploy.programs import status_text

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


def _print_result(folder: Path, method: str, cluster: "LocalCluster") -> None:
    """Print the metrics of the last evaluation, where it fails most, and the files to read; write the report."""
    from fedtilt.cli.run import write_report
    from fedtilt.cli.tables import group_tables, worst_texts
    from fedtilt.evaluation.metrics import BEYOND_CHANCE
    from fedtilt.report.compare import comparison_table, overview_metrics
    from fedtilt.report.run_reader import read_run
    from fedtilt.report.summary import certificates

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
