"""What `fedtilt deploy run` prints while the server trains, and why a run is not finished."""

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtilt.cli.console import echo
from fedtilt.cli.deploy_project import plural

if TYPE_CHECKING:
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.runs.trackers import FolderLog

_LOG_LINES = 12  # of a run that failed without a reason in its folder


class RunProgress:
    """Prints a line for every new round that the server records, and once the log file of a site that is lost.

    Args:
        cluster: the local cluster
        folder: the run folder
        seed: of the run
        rounds: how many it has
        log: where the metrics of evaluated rounds go
        back_to: the round that the run goes back to; None: it goes on
    """

    def __init__(
        self, cluster: "LocalCluster", folder: Path, seed: int, rounds: int, log: "FolderLog",
        back_to: int | None = None,
    ) -> None:  # fmt: skip
        self._cluster, self._folder, self._rounds, self._back_to = cluster, folder, rounds, back_to
        self._log = log
        self._seed_folder = folder / f"seed-{seed}"
        self._start_time = time.time()
        self._logs_printed: set[int] = set()  # sites
        self._history_before = self._history()
        self._rounds_before = set(self._recorded_rounds())
        self._rounds_printed = set(self._rounds_before)
        self._jumps_printed = set(self._rounds_before)  # rounds
        self._had_results = (folder / "results.json").exists()

    def _history(self) -> object:
        return read_if_written(self._seed_folder / "history.json").get("history")

    def _recorded_rounds(self) -> dict[str, Any]:
        rounds: dict[str, Any] = read_if_written(self._seed_folder / "participation.json").get("rounds", {})
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
                echo(f"round {number}/{self._rounds}: {sites}{f' ({reasons})' if reasons else ''}", err=True)
                for site in sorted(lost.keys() - self._logs_printed):
                    echo(f"log of site {site}: {self._cluster.log_file(site)}", err=True)
                self._logs_printed |= lost.keys()
            if "jump" in entry and number not in self._jumps_printed:
                self._jumps_printed.add(number)
                echo(f"round {number}: {entry['jump']}", err=True)
        return self._is_new("results.json") or self._is_new("stopped.json")

    def _is_new(self, name: str) -> bool:
        path = self._folder / name
        return path.exists() and path.stat().st_mtime >= self._start_time

    @property
    def was_finished(self) -> bool:
        """Whether the run was finished before, so that no round was trained now."""
        return self._had_results and self._rounds_printed == self._rounds_before

    def failure_message(self, run: int, status: str) -> str:
        """Why the run is not finished, and which log to read.

        If its folder does not say why, the last lines that the server logged are printed.

        Args:
            run: the number of the run
            status: Flower's status of it
        """
        from fedtilt.flower.deploy.programs import status_text

        stopped = read_if_written(self._folder / "stopped.json") if self._is_new("stopped.json") else {}
        if "reason" not in stopped:
            lines, reason = last_error(self._cluster.run_log(run))
            for line in lines:
                echo(line, err=True)
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


def read_if_written(path: Path) -> dict[str, Any]:
    """The values in a JSON file that another process writes; none if there is no such file yet."""
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):  # not written yet
        return {}
    return values
