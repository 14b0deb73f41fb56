"""`fedtilt deploy`: the same method on a real Flower federation, from a new project to a local cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtilt.cli import deploy_machines, deploy_run
from fedtilt.cli.console import Console, echo
from fedtilt.cli.deploy_project import Project, cluster_home, plural
from fedtilt.errors import InputError

if TYPE_CHECKING:
    from fedtilt.flower.deploy.local_cluster import LocalCluster

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Train the same spec on a real Flower federation.")


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sites: Annotated[int, typer.Option(help="The number of sites.")] = 2,
) -> None:
    """Write a small Flower project for your data and model."""
    from fedtilt.flower.deploy.project import write_project

    write_project(folder, sites)
    echo(f"wrote  {folder}: name your target column and the model in {folder / 'spec.toml'}; README.md says more")
    echo(f"next   fedtilt deploy up {folder}")


@app.command()
def up(
    project: Project = Path("."),
    node_config: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE:KEY=VALUE", help="Add to a site's --node-config, such as 0:data='\"/a.csv\"'."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys.")] = False,
) -> None:
    """Start a local cluster: a SuperLink and a SuperNode per site on this machine, over TLS, with registered keys.

    The tables in DIR/data, by name, are those of site 0, site 1, …, unless --node-config gives a site other data.
    """
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.deploy.project import check_project, site_tables
    from fedtilt.spec import load

    check_project(project)
    sites = load(project / "spec.toml").clients.count
    cluster = LocalCluster(home=cluster_home(project), tls=not insecure, sites=sites)
    node_configs = _node_configs(node_config or [], sites)
    for site, table in enumerate(site_tables(project)[:sites]):
        node_configs.setdefault(site, {}).setdefault("data", str(table))
    with Console(stderr=True).status(f"starting a SuperLink and {plural(sites, 'SuperNode')}"):
        cluster.up(node_config=node_configs, notice=lambda text: echo(text, err=True))
    security = "without TLS" if insecure else "over TLS, with registered keys"
    verb = "is" if sites == 1 else "are"
    echo(f"up     {plural(sites, 'site')} {verb} connected to 127.0.0.1:{cluster.port} {security}")
    echo(f"next   fedtilt deploy run {project}")


def _node_configs(options: Sequence[str], sites: int) -> dict[int, dict[str, object]]:
    import tomllib

    configs: dict[int, dict[str, object]] = {}
    for option in options:
        site, colon, setting = option.partition(":")
        try:
            values = tomllib.loads(setting)
        except tomllib.TOMLDecodeError:
            values = {}
        if not colon or not site.strip().isdigit() or not values:
            raise InputError(f"--node-config {option!r} is not SITE:KEY=VALUE; write for example 0:data='\"/a.csv\"'")
        if int(site) >= sites:
            raise InputError(f"--node-config {option!r} is for site {site}, and the sites are 0 to {sites - 1}")
        configs.setdefault(int(site), {}).update(values)
    return configs


app.command()(deploy_run.run)


@app.command()
def status(project: Project = Path(".")) -> None:
    """Show the sites, processes and runs of the local cluster, and the rounds that a run can go back to."""
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.run_folder import kept_rounds

    cluster = LocalCluster.load(cluster_home(project))
    _print_processes(cluster)
    for folder in sorted(cluster.runs_folder.glob("*/")):
        if rounds := kept_rounds(folder):
            echo(f"{folder.name}: --back-to can be {rounds}")


def _print_processes(cluster: "LocalCluster") -> None:
    from fedtilt.flower.deploy.programs import status_text

    pids = cluster.running()
    if not pids:
        echo("down: no process is running")
        return
    processes = f"processes: {' '.join(map(str, pids))}"
    if problem := cluster.problem():
        echo(f"broken: {problem}")
        echo(processes)
        return
    echo(f"up: {cluster.connected_sites()} of {cluster.sites} sites are connected to 127.0.0.1:{cluster.port}")
    for site in cluster.stopped_sites():
        echo(f"site {site} has stopped; see {cluster.log_file(site)}")
    echo(processes)
    for entry in cluster.runs():
        echo(f"run {entry['run-id']}: {status_text(entry['status'])}")


@app.command()
def down(project: Project = Path(".")) -> None:
    """Stop every process that `up` started; runs and personal models stay."""
    from fedtilt.flower.deploy.local_cluster import LocalCluster

    pids = LocalCluster.load(cluster_home(project)).down()
    echo(f"down: stopped {plural(len(pids), 'process')}" if pids else "down: no process was running")


for _command in (deploy_machines.server, deploy_machines.site, deploy_machines.register):
    app.command()(_command)
