"""`fedtilt deploy`: the same method on a real Flower federation, from a new project to a trial on this machine."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedtilt.cli.run import report_of
from fedtilt.cli.tables import failures
from fedtilt.errors import InputError

if TYPE_CHECKING:
    from fedtilt.evaluation.results import MethodResult
    from fedtilt.flower.deploy.local_cluster import Trial
    from fedtilt.flower.task import Job

app = typer.Typer(no_args_is_help=True, help="Train on a real Flower federation.")

Project = Annotated[Path, typer.Argument(metavar="[DIR]", help="The project's folder.")]


def _home(project: Path) -> Path:
    """Where a project's trial on this machine lies."""
    return project / ".fedtilt"


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    sites: Annotated[int, typer.Option(help="How many sites the federation has.")] = 2,
) -> None:
    """Write a small Flower project for your own data and model."""
    from fedtilt.flower.deploy.project import write_project

    write_project(folder, sites)
    typer.echo(f"wrote  {folder}: your data and model go into {folder / 'federation/task.py'}, the rest into spec.toml")
    typer.echo(f"next   fedtilt deploy up {folder}")


@app.command()
def up(
    project: Project = Path("."),
    node_config: Annotated[
        list[str] | None,
        typer.Option(metavar="SITE:KEY=VALUE", help="More for a site's --node-config, such as 0:data='\"/a.csv\"'."),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys.")] = False,
) -> None:
    """Start a SuperLink and a SuperNode for every site on this machine, over TLS and with registered keys."""
    from fedtilt.flower.deploy.local_cluster import Trial
    from fedtilt.flower.deploy.project import check_project
    from fedtilt.spec import load

    check_project(project)
    sites = load(project / "spec.toml").clients.count
    trial = Trial(home=_home(project), tls=not insecure, sites=sites)
    with Console(stderr=True).status(f"starting a SuperLink and {_many(sites, 'SuperNode')}"):
        trial.up(node_config=_node_configs(node_config or []))
    how = "without TLS" if insecure else "over TLS, with registered keys"
    typer.echo(
        f"up     {_many(sites, 'site')} {'is' if sites == 1 else 'are'} connected to 127.0.0.1:{trial.port} {how}"
    )
    typer.echo(f"next   fedtilt deploy run {project}")


def _node_configs(given: Sequence[str]) -> dict[int, dict[str, object]]:
    import tomllib

    configs: dict[int, dict[str, object]] = {}
    for text in given:
        site, colon, setting = text.partition(":")
        try:
            values = tomllib.loads(setting)
        except tomllib.TOMLDecodeError:
            values = {}
        if not colon or not site.strip().isdigit() or not values:
            raise InputError(f"--node-config {text!r} is not SITE:KEY=VALUE; write for example 0:data='\"/a.csv\"'")
        configs.setdefault(int(site), {}).update(values)
    return configs


@app.command()
def run(
    project: Project = Path("."),
    method: Annotated[str, typer.Option(metavar="NAME", help="Which method of spec.toml, if it has several.")] = "",
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
    """Train the project on the sites that are up; a run that was stopped goes on where it stopped."""
    from fedtilt.flower import Rules, Task
    from fedtilt.flower.deploy.local_cluster import Trial
    from fedtilt.flower.deploy.project import check_project, run_settings

    check_project(project)
    trial = _running(Trial.find(_home(project)))
    config: dict[str, object] = {"method": method, "set": "\n".join(settings or [])}
    config |= {key: given for key, given in (("quorum", quorum), ("deadline", deadline)) if given is not None}
    if quorum is None and run_settings(project).get("join-quorum") == 0:
        config["join-quorum"] = 1.0  # all sites are this machine's: one that cannot join is a mistake to mend
    Rules.read(config)
    job = Task(spec=project / "spec.toml").job(config)
    folder = (out or trial.home / "link" / "runs" / f"{job.spec.name}-{job.method.name}").resolve()
    watch = _Watch(trial, folder, job.spec.seed, job.spec.train.rounds)
    number = trial.submit(project, config | {"out": str(folder)})
    try:
        status = trial.wait_run(number, sign=watch.look)
    except KeyboardInterrupt:
        typer.echo(f"run {number} goes on; see fedtilt deploy status {project}", err=True)
        raise typer.Exit(130) from None
    watch.look()
    if status != "finished:completed":
        raise InputError(watch.why_not(status))
    if watch.was_finished:
        typer.echo(f"finished     {folder} was trained to the end before; for a new run name another folder with --out")
    _show(folder, job, trial)


def _running(trial: "Trial") -> "Trial":
    if not trial.alive():
        raise InputError(f"the trial in {trial.home} is down; start it with fedtilt deploy up")
    return trial


class _Watch:
    """Prints a line for every round that the server writes down from now on, and once where a lost site's log is."""

    def __init__(self, trial: "Trial", folder: Path, seed: int, rounds: int) -> None:
        self._trial, self._folder, self._rounds = trial, folder, rounds
        self._faults = folder / f"seed-{seed}" / "faults.json"
        self._begun, self._shown = time.time(), set[int]()
        self._before = set(_read(self._faults).get("rounds", {}))
        self._seen, self._results = set(self._before), (folder / "results.json").exists()

    def look(self) -> bool:
        """Print what is new; whether the run has written how it ended."""
        for number, entry in _read(self._faults).get("rounds", {}).items():
            if number not in self._seen:
                self._seen.add(number)
                lost = {int(site): why for site, why in (entry["refused"] | entry["silent"]).items()}
                note = "; ".join(f"site {site} {why}" for site, why in sorted(lost.items()))
                sites = _many(len(entry["entered"]), "site")
                typer.echo(f"round {number}/{self._rounds}: {sites}{f' ({note})' if note else ''}", err=True)
                for site in sorted(lost.keys() - self._shown):
                    typer.echo(f"log of site {site}: {self._trial.log(site)}", err=True)
                self._shown |= lost.keys()
        return self._is_new("results.json") or self._is_new("stopped.json")

    def _is_new(self, name: str) -> bool:
        path = self._folder / name
        return path.exists() and path.stat().st_mtime >= self._begun

    @property
    def was_finished(self) -> bool:
        """Whether the results were there before and no round has come since."""
        return self._results and self._seen == self._before

    def why_not(self, status: str) -> str:
        """Why the run is not finished, in one sentence, and where to look."""
        from fedtilt.flower.deploy.local_cluster import in_words

        stopped = _read(self._folder / "stopped.json") if self._is_new("stopped.json") else {}
        if "why" not in stopped:
            return f"the run in {self._folder} is {in_words(status)}; see {self._trial.home / 'link/log.txt'}"
        why = str(stopped["why"])
        if not (lost := stopped.get("sites")):
            return f"the run stopped: {why}"
        logs = ", ".join(str(self._trial.log(site)) for site in lost)
        return f"the run stopped: {why}, or let fewer do with --quorum; see {logs}"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}{'es' if thing.endswith('s') else 's'}"


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):  # not written yet
        return {}
    return found


def _show(folder: Path, job: "Job", trial: "Trial") -> None:
    from fedtilt.storage.provenance import seed_folder

    method, home = job.method.name, seed_folder(folder, job.spec.seed)
    values = json.loads((folder / "results.json").read_text())["methods"][method]
    round, result = _last_judged(home, job)
    evaluated = (result.total.sum(1) > 0).tolist()
    shown = {
        "accuracy": "accuracy",
        "client_fairness": "client fairness",
        "client_data_fairness_mean": "class fairness",
        "worst": "worst 10 %",
    }
    if sum(evaluated) == 1:
        del shown["client_fairness"]  # the spread over one site is 0 whatever it does
    metrics = "  ".join(f"{title} {values[key]['mean']:.2f}" for key, title in shown.items())
    lost = [name for name, told in zip(result.client_names, evaluated, strict=True) if not told]
    without = f"without site{'' if len(lost) == 1 else 's'} {', '.join(lost)}"
    typer.echo(metrics + (f"  ({sum(evaluated)} of {len(evaluated)} sites judged, {without})" if lost else ""))
    _tell_failures(result, _read(home / "federation.json")["classes"], sum(evaluated))
    history = _read(home / "history.json")["history"]
    for report in sorted(trial.home.glob(f"site-*/state/*/{method}/seed-*/site-*/report.json")):
        found = _read(report)
        if (found.get("history"), found.get("round")) == (history, round):  # of this run, not of one before
            typer.echo(f"site report  {report.with_suffix('.txt')}")
    typer.echo(f"run folder   {folder}")
    typer.echo(f"report       {report_of(folder)}")


def _last_judged(home: Path, job: "Job") -> tuple[int, "MethodResult"]:
    """The last round that the sites judged, and what they found."""
    from torch import nn

    from fedtilt.evaluation.results import MethodResult, evaluated_counts
    from fedtilt.storage.run_folder import RunFolder

    store = RunFolder(home)
    state = store.latest()
    assert state is not None
    counts, total = store.counts(state.round)
    result = MethodResult(
        method=job.method,
        history=[],
        correct=evaluated_counts(counts[job.method.name]),
        total=total,
        client_names=tuple(_read(home / "federation.json")["clients"]),
        _net=nn.Identity(),  # the counts are all that is asked for
        _shared=state.shared[job.method.name],
    )
    return state.round, result


def _tell_failures(result: "MethodResult", class_names: Sequence[str], evaluated: int) -> None:
    """Who fails most: of several sites, and of several classes unless a site withholds them."""
    site, label = failures({0: result}, result.client_names, class_names)
    told = ([f"site {site}"] if evaluated > 1 else []) + ([f"class {label}"] if len(class_names) > 1 else [])
    if told:
        Console(highlight=False, soft_wrap=True).print(f"fails most   {', '.join(told)}")


@app.command()
def status(project: Project = Path(".")) -> None:
    """Show what is running."""
    from fedtilt.flower.deploy.local_cluster import Trial, in_words

    trial = Trial.find(_home(project))
    alive = trial.alive()
    if not alive:
        typer.echo("down: no process is running")
        return
    typer.echo(f"up: {trial.online()} of {trial.sites} sites are connected to 127.0.0.1:{trial.port}")
    typer.echo(f"processes: {' '.join(map(str, alive))}")
    for one in trial.runs():
        typer.echo(f"run {one['run-id']}: {in_words(one['status'])}")


@app.command()
def down(project: Project = Path(".")) -> None:
    """Stop every process that `up` started; runs and personal models stay."""
    from fedtilt.flower.deploy.local_cluster import Trial

    ended = Trial.find(_home(project)).down()
    typer.echo(f"down: {_many(len(ended), 'process')} ended" if ended else "down: no process was running")


@app.command()
def certificate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where ca.crt and ca.key are, or will be.")],
    host: Annotated[list[str], typer.Option(help="A name or address by which sites reach the SuperLink.")],
    days: Annotated[int, typer.Option(help="How long the SuperLink's certificate is valid.")] = 365,
) -> None:
    """Make the SuperLink's certificate, and the authority that signs it where there is none yet."""
    from fedtilt.flower.deploy.certificates import make_authority, make_server_certificate

    if not (folder / "ca.crt").exists():
        make_authority(folder)
        typer.echo(f"wrote  {folder / 'ca.crt'} for every machine; keep ca.key to yourself")
    make_server_certificate(folder, host, days=days)
    typer.echo(f"wrote  {folder / 'server.crt'} and server.key for {', '.join(host)}, valid {days} days")


@app.command()
def key(path: Annotated[Path, typer.Argument(metavar="FILE", help="The private key to write.")]) -> None:
    """Make a SuperNode's key pair on its own machine; only FILE.pub is handed out."""
    from fedtilt.flower.deploy.certificates import make_site_key

    if path.exists():
        raise InputError(f"{path} is already there; a new key would lock its site out: name another file")
    make_site_key(path)
    typer.echo(f"wrote  {path}, which stays here, and {path}.pub for the server: flwr supernode register {path}.pub")
