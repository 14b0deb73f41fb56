"""`fedtilt deploy`: the same method on a real Flower federation, from a new project to a local cluster."""

import contextlib
import os
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedtilt.cli.console import Console, echo, plural
from fedtilt.cli.options import Log, Settings
from fedtilt.errors import InputError

_WATCH_SECONDS = 5
Project = Annotated[Path, typer.Argument(metavar="[DIR]", help="The project's folder.")]
Method = Annotated[str, typer.Option(metavar="NAME", help="The method of spec.toml, if it has several.")]
Home = Annotated[Path, typer.Argument(metavar="HOME", help="The folder of the server or site: /var/lib/fedtilt, say.")]
SiteNumber = Annotated[int, typer.Option("--site", min=0, help="The site's number: 0, 1, …")]
AllowRoot = Annotated[
    bool,
    typer.Option("--allow-root", envvar="FEDTILT_ALLOW_ROOT", help="Run the project's code as root."),
]
app = typer.Typer(no_args_is_help=True, add_completion=False, help="Train the same spec on a real Flower federation.")


@app.callback()
def _needs_flower() -> None:  # not to list the commands
    from fedtilt.flower import check_installed

    check_installed()


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sites: Annotated[int, typer.Option(help="The number of sites; of two, nobody knows which one is wrong.")] = 3,
) -> None:
    """Write a small Flower project for your data and model."""
    from fedtilt.flower.deploy.project import write_project

    write_project(folder, sites)
    if sites == 2:
        echo("note   two sites have no majority: screening cannot tell which one is wrong, and bounds steps alone")
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
    site: Annotated[int | None, typer.Option(metavar="SITE", help="Restart this site of a running cluster.")] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Serve a page with the state of the runs, on this machine, until Ctrl-C.")
    ] = False,
    allow_root: AllowRoot = False,
) -> None:
    """Start a local cluster: a SuperLink and a SuperNode per site on this machine, over TLS, with registered keys.

    The tables in DIR/data, by name, are those of site 0, site 1, …, unless --node-config gives a site other data.
    """
    from fedtilt.cli.deploy_status import StatusServer
    from fedtilt.flower.deploy.local_cluster import LocalCluster, cluster_home
    from fedtilt.flower.deploy.project import check_project, site_tables
    from fedtilt.spec import load

    check_project(project)
    _check_user("up", allow_root)
    if site is not None:
        if page or insecure:
            option = "--page" if page else "--insecure"
            raise InputError(f"{option} is for a whole cluster; leave it out to restart a site")
        _restart_site(project, site, node_config or [])
        return
    sites = load(project / "spec.toml").clients.sites
    cluster = LocalCluster(home=cluster_home(project), tls=not insecure, sites=sites)
    cluster.node_config = _node_configs(node_config or [], sites)
    for number, table in enumerate(site_tables(project)[:sites]):
        cluster.node_config.setdefault(number, {}).setdefault("data", str(table))
    with Console(stderr=True).status(f"starting a SuperLink and {plural(sites, 'SuperNode')}"):
        cluster.up(notice=lambda text: echo(text, err=True))
    security = "without TLS" if insecure else "over TLS, with registered keys"
    verb = "is" if sites == 1 else "are"
    echo(f"up     {plural(sites, 'site')} {verb} connected to 127.0.0.1:{cluster.port} {security}")
    echo(f"next   fedtilt deploy run {project}")
    if page:
        with (
            StatusServer(project.resolve().name, cluster.runs_folder) as server,
            contextlib.suppress(KeyboardInterrupt),
        ):
            echo(f"page   {server.url} until Ctrl-C; the cluster then stays up")
            server.serve_forever()


def _restart_site(project: Path, site: int, node_config: Sequence[str]) -> None:
    from fedtilt.flower.deploy.local_cluster import LocalCluster, cluster_home

    cluster = LocalCluster.load(cluster_home(project))
    for number, config in _node_configs(node_config, cluster.sites).items():
        if number != site:
            raise InputError(f"--node-config is for site {number}, and only site {site} is restarted")
        cluster.node_config.setdefault(number, {}).update(config)
    with Console(stderr=True).status(f"restarting site {site}"):
        cluster.restart_site(site, notice=lambda text: echo(text, err=True))
    echo(f"up     site {site} is connected to 127.0.0.1:{cluster.port}")


def _check_user(command: str, allow_root: bool) -> None:
    """Raise InputError for root: whatever is wrong in a project or in Flower would have the whole machine."""
    if sys.platform == "win32":  # which has neither the signals nor the umask of its processes
        raise InputError(f"fedtilt deploy {command} does not run on Windows; use Linux, or WSL on this machine")
    if not allow_root and os.geteuid() == 0:
        raise InputError(
            f"fedtilt deploy {command} as root would run the project's code as root; run it as another user, such as "
            f"sudo -u fedtilt fedtilt deploy {command}, or add --allow-root"
        )


def _node_configs(options: Sequence[str], sites: int) -> dict[int, dict[str, Any]]:
    configs: dict[int, dict[str, Any]] = {}
    for option in options:
        site, colon, setting = option.partition(":")
        values = _settings([setting] if colon else [])
        if not site.strip().isdigit() or not values:
            raise InputError(f"--node-config {option!r} is not SITE:KEY=VALUE; write for example 0:data='\"/a.csv\"'")
        if int(site) >= sites:
            raise InputError(f"--node-config {option!r} is for site {site}, and the sites are 0 to {sites - 1}")
        configs.setdefault(int(site), {}).update(values)
    return configs


def _settings(options: Sequence[str] | None) -> dict[str, Any]:
    try:
        return tomllib.loads("\n".join(options or []))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"--node-config is not KEY=VALUE ({error}); write for example data='\"/a.csv\"'") from None


@app.command()
def run(
    project: Project = Path("."),
    method: Method = "",
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
    root: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, metavar="FILE",
            help="Clean samples on the server, for an aggregator with a root set: a table like those of the sites.",
        ),
    ] = None,
    log: Log = None,
) -> None:  # fmt: skip
    """Train the project on its local cluster; a stopped run resumes where it stopped."""
    from fedtilt.cli.deploy_run import train
    from fedtilt.flower.deploy.project import check_project

    check_project(project)
    config: dict[str, object] = {"method": method, "set": "\n".join(settings or [])}
    options: dict[str, object] = {"quorum": quorum, "deadline": deadline, "back-to": back_to}
    options["root"] = None if root is None else str(root.resolve())
    train(project, config | {key: value for key, value in options.items() if value is not None}, out, log or [])


@app.command()
def status(
    project: Project = Path("."),
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every few seconds until the run ends.")] = False,
) -> None:
    """Show the sites, processes and runs of the local cluster; or the runs in the folder of a real server.

    Of a run: the round, the time that is left, the last metrics, the last round of each site, and the rounds that it
    can go back to.
    """
    from fedtilt.cli.deploy_status import print_status

    while print_status(project) and watch:
        time.sleep(_WATCH_SECONDS)
        echo("")


@app.command()
def down(project: Project = Path(".")) -> None:
    """Stop every process that `up` started; runs and personal models stay."""
    from fedtilt.flower.deploy.local_cluster import LocalCluster, cluster_home

    pids = LocalCluster.load(cluster_home(project)).down()
    echo(f"down: stopped {plural(len(pids), 'process')}" if pids else "down: no process was running")


# -- real machines -----------------------------------------------------------------------------------------------------


@app.command()
def server(
    home: Home,
    host: Annotated[list[str], typer.Option(help="A name or address by which the sites reach the server.")],
    port: Annotated[int, typer.Option(help="The port that the sites see.")] = 9092,
    superlink_port: Annotated[int, typer.Option(help="The SuperLink's port on this machine.")] = 9093,
    days: Annotated[int, typer.Option(help="How long the server's certificate is valid.")] = 365,
    allow_root: AllowRoot = False,
) -> None:
    """Write the server's certificates, systemd units and proxy configuration; again, to renew the certificate."""
    from fedtilt.flower.deploy.machines import write_server

    _check_user("server", allow_root)
    link, executor, proxy = write_server(home, host, port=port, superlink_port=superlink_port, days=days)
    echo(f"wrote  {home / 'certificates'}: ca.crt is for every site; the certificate is valid for {days} days")
    echo(f"wrote  {link}, {executor.name} and {proxy.name}")
    echo(f"next   sudo cp {link.parent}/*.service /etc/systemd/system/ && sudo systemctl daemon-reload")
    echo(f"       sudo systemctl enable --now {link.stem} {executor.stem}")
    echo(f"       sudo cp {proxy} /etc/nginx/conf.d/ && sudo systemctl reload nginx")
    echo(f"       fedtilt deploy register {home} --site 0 --key site.key.pub, for each site")


@app.command()
def site(
    home: Home,
    number: SiteNumber,
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server's address.")],
    ca: Annotated[Path, typer.Option(metavar="FILE", help="The server's ca.crt.")],
    node_config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Add to the SuperNode's --node-config, such as data='\"/a.csv\"'."),
    ] = None,
    allow_root: AllowRoot = False,
) -> None:
    """Write a site's key and systemd units on its machine; give only site.key.pub to the server."""
    from fedtilt.flower.deploy.machines import write_site

    _check_user("site", allow_root)
    node, executor = write_site(home, number, server, ca, node_config=_settings(node_config))
    echo(f"wrote  {home / 'site.key'}, which stays here, and site.key.pub for the server")
    echo(f"wrote  {node} and {executor.name}")
    echo(f"next   fedtilt deploy allow {home} PROJECT, for the project that this site may run")
    echo(f"       sudo cp {node.parent}/*.service /etc/systemd/system/ && sudo systemctl daemon-reload")
    echo(f"       sudo systemctl enable --now {node.stem} {executor.stem}, after the key is registered")


@app.command()
def register(
    home: Home,
    number: SiteNumber,
    key: Annotated[Path, typer.Option(metavar="FILE", help="The site's public key, site.key.pub.")],
) -> None:
    """Register a site's key on the server: only its owner can be this site."""
    from fedtilt.flower.deploy.machines import register_site

    path = register_site(home, number, key)
    echo(f"wrote  {path}: the owner of this key is site {number}, and no other")


@app.command()
def record(
    project: Project = Path("."),
    method: Method = "",
    node_config: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="What a site sends, such as declare-classes=false."),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="A new file; default: DIR/record-of-processing.md.")] = None,
) -> None:
    """Write a record of processing (GDPR, article 30): what the spec decides is filled in, the rest is marked."""
    from fedtilt.flower.deploy.record import MARK, record_of, write_record

    text = record_of(project, method, _settings(node_config))
    path = project / "record-of-processing.md" if to is None else to
    write_record(text, path)
    echo(f"wrote  {path}: {plural(text.count(f'| {MARK}'), 'row')} with {MARK} need people")


@app.command()
def digest(project: Project = Path(".")) -> None:
    """Print the digest of a project, which the operators of the sites allow."""
    from fedtilt.flower.deploy.allowed_apps import app_digest

    echo(app_digest(project))


@app.command()
def allow(
    home: Home,
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project's folder, or its digest.")],
) -> None:
    """Let a site run a project: its operator has read its code, and the site runs no other."""
    from fedtilt.flower.deploy import allowed_apps

    digest = allowed_apps.allow(home, project)
    echo(f"wrote  {home / allowed_apps.FILE_NAME}: this site runs {digest}")
