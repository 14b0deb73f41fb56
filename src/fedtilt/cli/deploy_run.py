"""`fedtilt deploy run`: train a project on its local cluster, and print the result."""

from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import echo
from fedtilt.cli.deploy_progress import RunProgress
from fedtilt.cli.deploy_project import Project, cluster_home
from fedtilt.cli.options import Log, Settings
from fedtilt.errors import InputError
from fedtilt.locks import locked


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
    from fedtilt.cli.deploy_result import print_result
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
            folder_log = FolderLog(folder, task.spec.seed, task.spec.train.rounds, trackers, back_to)
            progress = RunProgress(cluster, folder, task.spec.seed, task.spec.train.rounds, folder_log, back_to)
        number = cluster.submit(project, config | {"out": str(folder)})
        try:
            with folder_log:
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
    print_result(folder, task, cluster)
