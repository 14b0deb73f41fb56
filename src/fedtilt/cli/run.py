"""`fedtilt run`: train every method of a spec on one federation and show how accurate and fair each is."""

import importlib.util
import json
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedtilt.cli.tables import comparison, legend, tell_tuning, unjudged
from fedtilt.cli.watch import Watch, watching
from fedtilt.evaluation.results import Result, over_seeds
from fedtilt.files import read_json, write_json
from fedtilt.runs.spec_run import run_spec
from fedtilt.runs.tune import Tuning
from fedtilt.spec import Spec, builtin_names, federation_of, load

SpecArgument = Annotated[
    str, typer.Argument(metavar="[SPEC]", help=f"A TOML file, or a built-in spec: {', '.join(builtin_names())}.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as train.rounds=5.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table, only the run folder.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line for every round.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]


Out = Annotated[Path | None, typer.Option("--out", help="The run folder; a new one under runs/ by default.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="Where data sets lie (else FEDTILT_DATA).")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Seed = Annotated[int | None, typer.Option(help="The first seed.")]
Seeds = Annotated[int | None, typer.Option(help="How many seeds, for error bars.")]


def run(
    spec: SpecArgument = "digits",
    settings: Settings = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Only these methods of the spec (or a preset).")
    ] = None,
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = None,
    seed: Seed = None,
    seeds: Seeds = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Train every method of a spec on one federation; print a table and the run folder.

    Without a spec: FedAvg, Ditto and FedTilt on 20 clients whose labels are partly wrong, in seconds.
    """
    overrides = overrides_of(settings, data_dir)
    chosen = load(spec, overrides=overrides, methods=method or [], seed=seed, seeds=seeds, device=device)
    folder = out or new_folder(chosen.name)
    show(chosen, folder, lambda w: run_spec(chosen, folder, on_seed=w.on_seed, on_round=w.on_round, notice=w.notice),
         quiet=quiet, verbose=verbose, as_json=as_json)  # fmt: skip


def overrides_of(settings: list[str] | None, data_dir: Path | None) -> list[str]:
    """What the options override in a spec."""
    return [*(settings or []), *([] if data_dir is None else [f"data.folder={data_dir}"])]


def new_folder(name: str) -> Path:
    """A folder under runs/ that is not there yet."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, again = base, 2
    while folder.exists():
        folder, again = base.with_name(f"{base.name}-{again}"), again + 1
    return folder


def show(
    spec: Spec, folder: Path, job: Callable[[Watch], dict[int, Result]], *, quiet: bool, verbose: bool, as_json: bool
) -> None:
    """Run a job under a display, then print what it found; Ctrl-C says how to go on."""
    progress = Console(stderr=True)
    begun = time.monotonic()
    try:
        with watching(progress, spec.train.rounds, spec.seeds, quiet=quiet or as_json, verbose=verbose) as watch:
            results = job(watch)
    except KeyboardInterrupt:
        begun_at_all = (folder / "spec.toml").exists()
        how = f"go on with: fedtilt resume {shlex.quote(str(folder))}" if begun_at_all else "nothing was begun"
        progress.print(f"stopped; {how}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    table = over_seeds(results)
    record = read_json(folder / "run.json")
    if "tuning" in record:
        table["tuning"] = Tuning.from_json(record["tuning"]).recommendation(table)
        write_json(folder / "results.json", table)
    page = report_of(folder)
    if as_json:
        print(json.dumps(table | {"folder": str(folder)}, indent=2))
        return
    console = Console()
    if not quiet:
        federation = federation_of(spec, spec.seed)
        console.print()
        console.print(_headline(spec, federation.clients, time.monotonic() - begun))
        if "tuning" in table:
            table = tell_tuning(console, table, int(federation.class_counts("validation").sum()) * spec.seeds)
            results = {seed: result.only(table["methods"]) for seed, result in results.items()}
        console.print(comparison(table, results, federation.client_names, federation.class_names, console.width))
        console.print(legend(results))
        if missing := unjudged(results, federation.client_names):
            console.print(missing)
        console.print()
    console.print(f"run folder: {folder}", highlight=False, soft_wrap=True, markup=False)
    if not quiet:
        console.print(f"report:     {page}", highlight=False, soft_wrap=True, markup=False)


def report_of(folder: Path) -> str:
    """Write the HTML page of a run, where the extra for it is installed; where it is, or how to get it."""
    if importlib.util.find_spec("plotly") is None:
        return 'pip install "fedtilt[report]", then fedtilt report ' + str(folder)
    from fedtilt.report import write
    from fedtilt.reproduction.published import published_for

    return str(write([folder], folder / "report.html", published=published_for(folder)))


def _headline(spec: Spec, clients: int, seconds: float) -> str:
    outliers = "clean" if spec.outliers.kind == "none" else f"{spec.outliers.rate:.0%} {spec.outliers.kind} every round"
    if spec.outliers.kind != "none" and spec.outliers.clients < 1:
        outliers += f" at {spec.outliers.clients:.0%} of them"
    rounds = "1 round" if spec.train.rounds == 1 else f"{spec.train.rounds} rounds"
    data = escape(Path(spec.data.file).name if spec.data.file else spec.data.name)
    return f"[bold]{data}[/], {clients} clients, {outliers}, {rounds} [dim]({seconds:.1f} s)[/]"
