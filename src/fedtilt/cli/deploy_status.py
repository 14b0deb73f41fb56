"""`fedtilt deploy status`: what runs, how far each run is, and when each site was last there."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtilt.cli.console import echo
from fedtilt.cli.deploy_run import Project, cluster_home

if TYPE_CHECKING:
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.deploy.run_status import RunStatus

_WATCH_SECONDS = 5


def status(
    project: Project = Path("."),
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every few seconds until the run ends.")] = False,
) -> None:
    """Show the sites, processes and runs of the local cluster; or the runs in the folder of a real server.

    Of a run: the round, the time that is left, the last metrics, the last round of each site, and the rounds that it
    can go back to.
    """
    while True:
        is_training = _print_status(project)
        if not watch or not is_training:
            return
        time.sleep(_WATCH_SECONDS)
        echo("")


def _print_status(project: Path) -> bool:
    """Print everything once; whether a run trains."""
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.deploy.run_status import run_status
    from fedtilt.flower.run_folder import kept_rounds

    home = cluster_home(project)
    if not (home / "cluster.json").exists() and (project / "runs").is_dir():  # of `fedtilt deploy server`
        folders, is_up = project / "runs", True
    else:
        cluster = LocalCluster.load(home)
        folders, is_up = cluster.runs_folder, _print_processes(cluster)
    is_training = False
    for folder in sorted(folders.glob("*/")):
        if (found := run_status(folder)) is None:
            continue
        echo("\n  ".join(run_lines(found)))
        if rounds := kept_rounds(folder):
            echo(f"  --back-to can be {rounds}")
        is_training |= is_up and not found.is_finished and found.stopped is None
    return is_training


def run_lines(run: "RunStatus") -> list[str]:
    """A run in a few lines: its state, its last metrics, and each of its sites."""
    state = f"round {run.round} of {run.rounds}"
    if run.is_finished:
        state += ", finished"
    elif run.stopped is not None:
        state += f", stopped: {run.stopped}"
    else:
        left = "" if run.seconds_left is None else f", about {_duration(run.seconds_left)} left"
        state += f"{left}, last recorded {_duration(run.idle_seconds)} ago"
    lines = [f"{run.name}: {state}"]
    if run.metrics is not None:
        round, metrics = run.metrics
        shown = {key: metrics[key] for key in ("accuracy", "mae", "client_fairness", "worst") if key in metrics}
        text = "  ".join(f"{key.replace('_', ' ')} {value:.2f}" for key, value in shown.items())
        lines.append(f"after round {round}: {text}")
    return lines + [f"site {site}: {text}" for site, text in run.sites.items()]


def _print_processes(cluster: "LocalCluster") -> bool:
    """Print the processes of a cluster; whether it can train."""
    from fedtilt.flower.deploy.programs import status_text

    pids = cluster.running()
    if not pids:
        echo("down: no process is running")
        return False
    processes = f"processes: {' '.join(map(str, pids))}"
    if problem := cluster.problem():
        echo(f"broken: {problem}")
        echo(processes)
        return False
    echo(f"up: {cluster.connected_sites()} of {cluster.sites} sites are connected to 127.0.0.1:{cluster.port}")
    for site in cluster.stopped_sites():
        echo(f"site {site} has stopped; see {cluster.log_file(site)}")
    echo(processes)
    for entry in cluster.runs():
        echo(f"run {entry['run-id']}: {status_text(entry['status'])}")
    return True


def _duration(seconds: float) -> str:
    """A time in one word.

    >>> _duration(45), _duration(250), _duration(9000)
    ('45 s', '4 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
