"""`fedtilt run`: train every method of a spec on one federation, and compare their accuracy and fairness."""

import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import Console, echo, escape
from fedtilt.cli.data import DataDir
from fedtilt.cli.group_tables import group_legend, group_tables
from fedtilt.cli.progress import show_progress
from fedtilt.cli.tables import clients_without_test_data, comparison_table, legend
from fedtilt.evaluation.groups import group_names
from fedtilt.evaluation.over_seeds import over_seeds
from fedtilt.evaluation.results import Result
from fedtilt.runs.callback import Callback
from fedtilt.runs.spec_run import run_spec
from fedtilt.runs.trackers import trackers_of
from fedtilt.spec import Spec, builtin_names, federation_of, load

SpecArgument = Annotated[
    str, typer.Argument(metavar="[SPEC]", help=f"A TOML file, or a built-in spec: {', '.join(builtin_names())}.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as train.rounds=5.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the run folder.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print a line for every round, and which backend trains.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]


Out = Annotated[Path | None, typer.Option("--out", help="The run folder (default: a new folder in runs/).")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:all (all GPUs of this machine).")]
Seed = Annotated[int | None, typer.Option(help="The first seed.")]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="auto|HOST:PORT", help="Train on a Ray cluster: auto, or host:port of its head node."),
]
Seeds = Annotated[int | None, typer.Option(help="The number of seeds; results are mean ± std.")]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="TRACKER:PLACE",
        help="Log every round to tensorboard:FOLDER, mlflow:FOLDER, mlflow:URI or wandb:PROJECT; repeatable.",
    ),
]


def run(
    spec: SpecArgument = "digits",
    settings: Settings = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="NAME", help="Only this method, or a preset; repeatable."),
    ] = None,
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = None,
    cluster: Cluster = None,
    seed: Seed = None,
    seeds: Seeds = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Collect what fedtilt audit needs to find wrong labels.")
    ] = False,
    log: Log = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Train every method of a spec on one federation; print a table and the run folder.

    Without a spec: FedAvg, Ditto and FedTilt on 20 clients with 30 % wrong labels, in seconds.
    """
    overrides = [*overrides_of(settings, data_dir, cluster), *(["train.audit=true"] if audit else [])]
    loaded = load(spec, overrides=overrides, methods=method or [], seed=seed, seeds=seeds, device=device)
    folder = out or new_folder(loaded.name)
    trackers = trackers_of(log or [])

    def train(callbacks: Sequence[Callback]) -> dict[int, Result]:
        return run_spec(loaded, folder, callbacks=[*trackers, *callbacks])

    run_and_print(loaded, folder, train, quiet=quiet, verbose=verbose, as_json=as_json)


def overrides_of(settings: list[str] | None, data_dir: Path | None, cluster: str | None = None) -> list[str]:
    """The overrides of the spec from --set, --data-dir and --cluster."""
    options = {"data.folder": data_dir, "train.cluster": cluster}
    return [*(settings or []), *(f"{key}={value}" for key, value in options.items() if value is not None)]


def new_folder(name: str) -> Path:
    """A folder in runs/ that does not exist yet."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


def run_and_print(
    spec: Spec,
    folder: Path,
    train: Callable[[Sequence[Callback]], dict[int, Result]],
    *,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Train while showing the progress, then print the results; after Ctrl-C, print how to resume.

    Args:
        spec: the spec of the run
        folder: the run folder
        train: runs or resumes the spec, and returns the results of every seed
        quiet: print only the run folder
        verbose: print a line for every round
        as_json: print the results as JSON
    """
    progress = Console(stderr=True)
    start_time = time.monotonic()
    silent = quiet or as_json
    try:
        with show_progress(progress, seeds=spec.seeds, quiet=silent, verbose=verbose) as display:
            results = train([display])
    except KeyboardInterrupt:
        started = (folder / "spec.toml").exists()
        remedy = f"resume with: fedtilt resume {shlex.quote(str(folder))}" if started else "nothing was trained"
        progress.print(f"stopped; {remedy}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    table = over_seeds(results)
    page = write_report(folder)
    if as_json:
        echo(json.dumps(table | {"folder": str(folder)}, indent=2))
        return
    console = Console()
    if not quiet:
        federation = federation_of(spec, spec.seed)
        console.print()
        rounds = next(iter(next(iter(results.values())).values())).history[-1][0]  # fewer than planned with a budget
        console.print(_headline(spec, federation.clients, rounds, time.monotonic() - start_time))
        names = group_names(federation)[federation.group]
        console.print(comparison_table(table, results, federation.client_names, names, console.width))
        console.print(legend(results))
        for rows in group_tables(table, console.width):
            console.print(rows)
        if text := group_legend(table):
            console.print(text)
        if line := clients_without_test_data(results, federation.client_names):
            console.print(line)
        console.print()
    console.print(f"run folder: {folder}", highlight=False, soft_wrap=True, markup=False)
    if not quiet:
        console.print(f"report:     {page}", highlight=False, soft_wrap=True, markup=False)


def write_report(folder: Path) -> str:
    """Write the report of a run and return its path."""
    from fedtilt.report import write
    from fedtilt.reproduction.published import published_for

    return str(write([folder], folder / "report.html", published=published_for(folder)))


def _headline(spec: Spec, clients: int, rounds: int, seconds: float) -> str:
    o = spec.outliers
    drawn = "every round" if o.redraw == "round" else "drawn once"
    outliers = "no outliers" if o.kind == "none" else f"{o.rate:.0%} {o.kind} {drawn}"
    if o.kind != "none" and o.clients < 1:
        outliers += f" on {o.clients:.0%} of the clients"
    length = "1 round" if rounds == 1 else f"{rounds} rounds"
    data = escape(Path(spec.data.path).name if spec.data.path else spec.data.name)
    return f"[bold]{data}[/], {clients} clients, {outliers}, {length} [dim]({seconds:.1f} s)[/]"
