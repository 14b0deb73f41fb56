"""What runs on a cluster or server, how far each run is, and when each site was last there: as lines, or as a page."""

import secrets
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fedtilt.cli.console import echo
from fedtilt.flower.deploy.local_cluster import LocalCluster, cluster_home
from fedtilt.flower.deploy.programs import status_text
from fedtilt.flower.run_status import kept_rounds, run_statuses

_REFRESH_SECONDS = 5
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta http-equiv="refresh" content="{seconds}"><style>body {{ font: 16px sans-serif; margin: 2em }}</style></head>
<body><h1>{title}</h1>{runs}</body></html>
"""


# -- on the terminal ---------------------------------------------------------------------------------------------------


def print_status(project: Path) -> bool:
    """Print everything once; whether a run trains, or a cluster waits for its first one."""
    home, submitted = cluster_home(project), None
    is_server = not (home / "cluster.json").exists() and (project / "runs").is_dir()  # of `fedtilt deploy server`
    if is_server:
        runs = project / "runs"
    else:
        cluster = LocalCluster.load(home)
        runs, submitted = cluster.runs_folder, _print_processes(cluster)
    is_training, statuses = False, list(run_statuses(runs))
    if not statuses and (is_server or submitted is not None):
        echo(f"no run of a federation in {runs} yet")
    for folder, status in statuses:
        echo("\n  ".join(status.lines))
        if rounds := kept_rounds(folder):
            echo(f"  --back-to can be {rounds}")
        is_training |= not status.has_ended
    if is_server:
        return is_training
    # Flower knows a run before it has a folder, and that it ended without a word
    return submitted is not None and (not submitted or any(not status.startswith("finished") for status in submitted))


def _print_processes(cluster: LocalCluster) -> list[str] | None:
    """Print the processes of a cluster; Flower's status of each of its runs, or None if it cannot train."""
    pids = cluster.running()
    if not pids:
        echo("down: no process is running")
        return None
    problem, processes = cluster.problem(), f"processes: {' '.join(map(str, pids))}"
    if problem:
        echo(f"broken: {problem}\n{processes}")
        return None
    stopped = cluster.stopped_sites()  # the SuperLink may count them for a while
    connected = min(cluster.connected_sites(), cluster.sites - len(stopped))
    echo(f"up: {connected} of {cluster.sites} sites are connected to 127.0.0.1:{cluster.port}")
    for site in stopped:
        echo(f"site {site} has stopped; see {cluster.log_file(site)}")
    echo(processes)
    submitted = cluster.runs()
    for entry in submitted:
        echo(f"run {entry['run-id']}: {status_text(entry['status'])}")
    return [entry["status"] for entry in submitted]


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
