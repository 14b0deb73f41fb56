"""What runs on a cluster or server, how far each run is, and when each site was last there: as lines, or as a page.

The status of a run is read from its files alone, without PyTorch, while the server writes them.
"""

import contextlib
import json
import secrets
import time
import tomllib
from collections.abc import Iterator, Mapping
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from fedtilt.cli.console import echo
from fedtilt.files import read_json, read_toml
from fedtilt.flower.deploy.local_cluster import LocalCluster, cluster_home
from fedtilt.flower.deploy.programs import status_text

_METRICS = ("accuracy", "mae", "client_fairness", "worst")
_REFRESH_SECONDS = 5
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="refresh" content="{seconds}"><style>body {{ font: 16px sans-serif; margin: 2em }}</style></head>
<body><h1>{title}</h1>{runs}</body></html>
"""


# -- one run -----------------------------------------------------------------------------------------------------------


class RunStatus(NamedTuple):
    """How far one run is."""

    lines: list[str]  # its round and the time that is left, its last metrics, and each of its sites
    has_ended: bool


def run_statuses(runs: Path, now: float | None = None) -> Iterator[tuple[Path, RunStatus]]:
    """The status of each run in a folder."""
    for folder in sorted(runs.glob("*/")):
        spec, seed = folder / "spec.toml", min(folder.glob("seed-*"), default=folder)
        if not spec.exists() or not (seed / "participation.json").exists():
            continue  # it is written just now
        rounds = int(tomllib.loads(read_toml(spec))["train"]["rounds"])
        recorded = {int(n): entry for n, entry in read_json(seed / "participation.json")["rounds"].items()}
        ended = _end(folder, seed)
        state = ended or _progress(seed, rounds, time.time() if now is None else now)
        first = f"{folder.name}: round {max(recorded, default=0)} of {rounds}, {state}"
        sites = [f"site {site}: {text}" for site, text in sorted(_sites(recorded).items())]
        yield folder, RunStatus([first, *_last_metrics(seed / "metrics.jsonl"), *sites], bool(ended))


def _end(folder: Path, seed: Path) -> str:
    """How a run ended; empty if it has not."""
    if (folder / "results.json").exists():
        return f"finished{early_end(seed)}"
    stopped = folder / "stopped.json"
    return f"stopped: {read_json(stopped)['reason']}" if stopped.exists() else ""


def early_end(seed: Path) -> str:
    """Why a run ended before its last round, after a colon; empty if it did not."""
    file = seed / "early_stop.json"
    return f": {read_json(file)['reason']}" if file.exists() else ""


def _progress(seed: Path, rounds: int, now: float) -> str:
    """The time that is left, from the first to the last checkpoint that are kept, and the age of the last."""
    times = {}
    for manifest in seed.glob("checkpoints/round-*/manifest.json"):
        with contextlib.suppress(OSError, ValueError):  # it is deleted just now
            times[int(manifest.parent.name.removeprefix("round-"))] = manifest.stat().st_mtime
    idle = f"last recorded {_duration(max(0.0, now - max(times.values(), default=0.0)))} ago"
    if len(times) < 2:
        return idle
    first, last = min(times), max(times)
    left = max(0.0, (times[last] - times[first]) / (last - first) * (rounds - last))
    return f"about {_duration(left)} left, {idle}"


def _duration(seconds: float) -> str:
    """A time in one word.

    >>> _duration(45), _duration(250), _duration(9000)
    ('45 s', '4 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _last_metrics(path: Path) -> list[str]:
    for line in reversed(path.read_text().splitlines() if path.exists() else []):
        with contextlib.suppress(ValueError):  # the last line may be written just now
            values: dict[str, Any] = json.loads(line)
            metrics = values.get("personal") or values["shared"]
            texts = [f"{key.replace('_', ' ')} {metrics[key]:.2f}" for key in _METRICS if metrics.get(key) is not None]
            return [f"after round {values['round']}: {'  '.join(texts)}"]
    return []


def _sites(recorded: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """In words, for each site that was selected: its last round, and what happened to it since."""
    texts: dict[int, str] = {}
    last_round: dict[int, int] = {}
    for number, entry in sorted(recorded.items()):
        for site in entry["accepted"]:
            last_round[site], texts[site] = number, f"round {number}"
        for site, reason in {**entry["missing"], **entry["rejected"]}.items():
            before = f"round {last_round[int(site)]}" if int(site) in last_round else "no round yet"
            texts[int(site)] = f"{before}; in round {number}: {reason}"
    return texts


# -- on the terminal ---------------------------------------------------------------------------------------------------


def print_status(project: Path) -> bool:
    """Print everything once; whether a run trains."""
    from fedtilt.flower.run_folder import kept_rounds

    home = cluster_home(project)
    if not (home / "cluster.json").exists() and (project / "runs").is_dir():  # of `fedtilt deploy server`
        runs, is_up = project / "runs", True
    else:
        cluster = LocalCluster.load(home)
        runs, is_up = cluster.runs_folder, _print_processes(cluster)
    is_training = False
    for folder, status in run_statuses(runs):
        echo("\n  ".join(status.lines))
        if rounds := kept_rounds(folder):
            echo(f"  --back-to can be {rounds}")
        is_training |= is_up and not status.has_ended
    return is_training


def _print_processes(cluster: LocalCluster) -> bool:
    """Print the processes of a cluster; whether it can train."""
    pids = cluster.running()
    if not pids:
        echo("down: no process is running")
        return False
    problem, processes = cluster.problem(), f"processes: {' '.join(map(str, pids))}"
    if problem:
        echo(f"broken: {problem}\n{processes}")
        return False
    echo(f"up: {cluster.connected_sites()} of {cluster.sites} sites are connected to 127.0.0.1:{cluster.port}")
    for site in cluster.stopped_sites():
        echo(f"site {site} has stopped; see {cluster.log_file(site)}")
    echo(processes)
    for entry in cluster.runs():
        echo(f"run {entry['run-id']}: {status_text(entry['status'])}")
    return True


# -- in a browser ------------------------------------------------------------------------------------------------------


class StatusServer(ThreadingHTTPServer):
    """Serves a page about the runs in a folder on a free port of 127.0.0.1; it loads itself again.

    Its address has a secret: other users of the machine reach the port.
    """

    def __init__(self, title: str, runs: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.title, self.runs = title, runs
        self.path = f"/{secrets.token_urlsafe(16)}"
        self.url = f"http://127.0.0.1:{self.server_port}{self.path}"

    def page(self) -> str:
        """The page as it is now."""
        blocks = []
        for _, status in run_statuses(self.runs):
            state, *lines = map(escape, status.lines)
            blocks.append(f"<h2>{state}</h2><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>")
        runs = "".join(blocks) or "<p>no run yet</p>"
        return _PAGE.format(title=escape(self.title), seconds=_REFRESH_SECONDS, runs=runs)


class _Handler(BaseHTTPRequestHandler):
    server: StatusServer

    def do_GET(self) -> None:
        """Send the page, to a browser that asks for this address by its number."""
        is_own = self.headers.get("Host") == f"127.0.0.1:{self.server.server_port}"  # no other site's name for it
        if not is_own or not secrets.compare_digest(self.path.encode(), self.server.path.encode()):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        body = self.server.page().encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing about requests."""
