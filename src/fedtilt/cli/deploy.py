"""`fedtilt deploy`: the same method on a real Flower federation, from a new project to a local cluster."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtilt.cli import deploy_machines
from fedtilt.cli.console import Console, echo
from fedtilt.cli.run import write_report
from fedtilt.cli.tables import worst_client_and_class
from fedtilt.errors import InputError
from fedtilt.locks import locked

if TYPE_CHECKING:
    from fedtilt.evaluation.results import MethodResult
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.task import ResolvedTask

app = typer.Typer(no_args_is_help=True, help="Train on a real Flower federation.")

Project = Annotated[Path, typer.Argument(metavar="[DIR]", help="The project's folder.")]


def _cluster_home(project: Path) -> Path:
    """The folder of a project's local cluster."""
    return project / ".fedtilt"


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
    cluster = LocalCluster(home=_cluster_home(project), tls=not insecure, sites=sites)
    node_configs = _node_configs(node_config or [], sites)
    for site, table in enumerate(site_tables(project)[:sites]):
        node_configs.setdefault(site, {}).setdefault("data", str(table))
    with Console(stderr=True).status(f"starting a SuperLink and {_plural(sites, 'SuperNode')}"):
        cluster.up(node_config=node_configs, notice=lambda text: echo(text, err=True))
    security = "without TLS" if insecure else "over TLS, with registered keys"
    verb = "is" if sites == 1 else "are"
    echo(f"up     {_plural(sites, 'site')} {verb} connected to 127.0.0.1:{cluster.port} {security}")
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


@app.command()
def run(
    project: Project = Path("."),
    method: Annotated[str, typer.Option(metavar="NAME", help="The method of spec.toml, if it has several.")] = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as train.rounds=5.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The server's run folder.")] = None,
    quorum: Annotated[
        float | None,
        typer.Option(help="Share of a round's sites whose models must arrive; without it, all sites must also join."),
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds a site has for a round.")] = None,
) -> None:
    """Train the project on its local cluster; a stopped run resumes where it stopped."""
    from fedtilt.flower import RoundPolicy, Task
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.deploy.project import check_project, default_run_config

    check_project(project)
    cluster = LocalCluster.load(_cluster_home(project))
    if problem := cluster.problem():
        raise InputError(problem)
    config: dict[str, object] = {"method": method, "set": "\n".join(settings or [])}
    config |= {key: value for key, value in (("quorum", quorum), ("deadline", deadline)) if value is not None}
    if quorum is None and default_run_config(project).get("join-quorum") == 0:
        config["join-quorum"] = 1.0  # all sites are on this machine: one that cannot join is an error to fix
    RoundPolicy.from_config(config)
    task = Task(spec=project / "spec.toml").resolve(config)
    folder = (out or cluster.home / "link" / "runs" / f"{task.spec.name}-{task.method.name}").resolve()
    with cluster.training():
        with locked(folder, busy=f"a run still trains in {folder}; wait for it, or choose another folder with --out"):
            progress = _Progress(cluster, folder, task.spec.seed, task.spec.train.rounds)
        number = cluster.submit(project, config | {"out": str(folder)})
        try:
            status = cluster.wait_for_run(number, is_done=progress.update)
        except KeyboardInterrupt:
            echo(f"run {number} continues; see fedtilt deploy status {project}", err=True)
            raise typer.Exit(130) from None
    progress.update()
    if status != "finished:completed":
        raise InputError(progress.failure_message(status))
    if progress.was_finished:
        echo(f"finished     {folder} was already finished; for a new run choose another folder with --out")
    _print_result(folder, task, cluster)


class _Progress:
    """Prints a line for every new round that the server records, and once the log file of a site that is lost."""

    def __init__(self, cluster: "LocalCluster", folder: Path, seed: int, rounds: int) -> None:
        self._cluster, self._folder, self._rounds = cluster, folder, rounds
        self._participation_file = folder / f"seed-{seed}" / "participation.json"
        self._start_time = time.time()
        self._logs_printed: set[int] = set()  # sites
        self._rounds_before = set(self._recorded_rounds())
        self._rounds_printed = set(self._rounds_before)
        self._had_results = (folder / "results.json").exists()

    def _recorded_rounds(self) -> dict[str, Any]:
        rounds: dict[str, Any] = _read_json(self._participation_file).get("rounds", {})
        return rounds

    def update(self) -> bool:
        """Print new rounds; whether the run has recorded how it ended."""
        for number, entry in self._recorded_rounds().items():
            if number not in self._rounds_printed:
                self._rounds_printed.add(number)
                lost = {int(site): reason for site, reason in (entry["rejected"] | entry["missing"]).items()}
                reasons = "; ".join(f"site {site} {reason}" for site, reason in sorted(lost.items()))
                sites = _plural(len(entry["accepted"]), "site")
                echo(f"round {number}/{self._rounds}: {sites}{f' ({reasons})' if reasons else ''}", err=True)
                for site in sorted(lost.keys() - self._logs_printed):
                    echo(f"log of site {site}: {self._cluster.log_file(site)}", err=True)
                self._logs_printed |= lost.keys()
        return self._is_new("results.json") or self._is_new("stopped.json")

    def _is_new(self, name: str) -> bool:
        path = self._folder / name
        return path.exists() and path.stat().st_mtime >= self._start_time

    @property
    def was_finished(self) -> bool:
        """Whether the run was finished before, so that no round was trained now."""
        return self._had_results and self._rounds_printed == self._rounds_before

    def failure_message(self, status: str) -> str:
        """Why the run is not finished, and which log to read."""
        from fedtilt.flower.deploy.flwr_cli import status_text

        stopped = _read_json(self._folder / "stopped.json") if self._is_new("stopped.json") else {}
        if "reason" not in stopped:
            return f"the run in {self._folder} is {status_text(status)}; see {self._cluster.server_log_file}"
        if not (missing := stopped.get("sites")):
            return f"the run stopped: {stopped['reason']}"
        logs = ", ".join(str(self._cluster.log_file(site)) for site in missing)
        return f"the run stopped: {stopped['reason']}, or accept fewer sites with --quorum; see {logs}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):  # not written yet
        return {}
    return values


def _print_result(folder: Path, task: "ResolvedTask", cluster: "LocalCluster") -> None:
    from fedtilt.storage.provenance import seed_folder

    method, seed = task.method.name, seed_folder(folder, task.spec.seed)
    metrics = json.loads((folder / "results.json").read_text())["methods"][method]
    round, result = _last_evaluation(seed, task)
    is_evaluated = (result.total.sum(1) > 0).tolist()
    titles = {
        "accuracy": "accuracy",
        "client_fairness": "client fairness",
        "client_data_fairness_mean": "client data fairness",
        "worst": "worst 10 %",
    }
    if sum(is_evaluated) == 1:
        del titles["client_fairness"]  # the spread over one site is always 0
    text = "  ".join(f"{title} {metrics[key]['mean']:.2f}" for key, title in titles.items())
    missing = [name for name, evaluated in zip(result.client_names, is_evaluated, strict=True) if not evaluated]
    without = f"without site{'' if len(missing) == 1 else 's'} {', '.join(missing)}"
    echo(text + (f"  ({sum(is_evaluated)} of {len(is_evaluated)} sites evaluated, {without})" if missing else ""))
    _print_failures(result, _read_json(seed / "federation.json")["classes"], sum(is_evaluated))
    history = _read_json(seed / "history.json")["history"]
    for path in sorted(cluster.home.glob(f"site-*/state/*/{method}/seed-*/site-*/report.json")):
        report = _read_json(path)
        if (report.get("history"), report.get("round")) == (history, round):  # of this run, not of an earlier one
            echo(f"site report  {path.with_suffix('.txt')}")
    echo(f"run folder   {folder}")
    echo(f"report       {write_report(folder)}")


def _last_evaluation(folder: Path, task: "ResolvedTask") -> tuple[int, "MethodResult"]:
    """The last evaluated round, and its result."""
    from torch import nn

    from fedtilt.evaluation.results import MethodResult, evaluated_counts
    from fedtilt.parts import Parts
    from fedtilt.storage.run_folder import RunFolder

    run_folder = RunFolder(folder)
    state = run_folder.latest()
    assert state is not None
    counts, total = run_folder.counts(state.round)
    result = MethodResult(
        method=task.method,
        history=[],
        correct=evaluated_counts(counts[task.method.name]),
        total=total,
        client_names=tuple(_read_json(folder / "federation.json")["clients"]),
        _net=nn.Identity(),  # only the counts are used
        _parts=Parts.plain(state.shared[task.method.name]),
        _server=state.server[task.method.name],
    )
    return state.round, result


def _print_failures(result: "MethodResult", class_names: Sequence[str], evaluated: int) -> None:
    """The site and the class with the lowest accuracy; no site of only one, no class if a site withholds them."""
    site, class_ = worst_client_and_class({0: result}, result.client_names, class_names)
    worst = ([f"site {site}"] if evaluated > 1 else []) + ([f"class {class_}"] if len(class_names) > 1 else [])
    if worst:
        Console(highlight=False, soft_wrap=True).print(f"fails most   {', '.join(worst)}")


@app.command()
def status(project: Project = Path(".")) -> None:
    """Show the sites, processes and runs of the local cluster."""
    from fedtilt.flower.deploy.flwr_cli import status_text
    from fedtilt.flower.deploy.local_cluster import LocalCluster

    cluster = LocalCluster.load(_cluster_home(project))
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

    pids = LocalCluster.load(_cluster_home(project)).down()
    echo(f"down: stopped {_plural(len(pids), 'process')}" if pids else "down: no process was running")


for _command in (deploy_machines.server, deploy_machines.site, deploy_machines.register):
    app.command()(_command)
