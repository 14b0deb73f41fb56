"""`fedtilt run`: train every method of a spec on one federation, and compare their accuracy and fairness."""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from fedtilt.cli import options
from fedtilt.cli.console import Console, echo, escape, print_lines
from fedtilt.files import read_json

if TYPE_CHECKING:
    from fedtilt.runs.callback import Callback

_Trained = TypeVar("_Trained")


def run(
    spec: options.Spec = "digits",
    settings: options.Settings = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", metavar="NAME", help="Only this method, or a preset; repeatable."),
    ] = None,
    out: options.Out = None,
    data_dir: options.DataDir = None,
    device: options.Device = None,
    cluster: options.Cluster = None,
    seed: options.Seed = None,
    seeds: options.Seeds = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Collect what fedtilt audit needs to find wrong labels.")
    ] = False,
    log: options.Log = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
) -> None:
    """Train every method of a spec on one federation; print a table and the run folder.

    Without a spec: FedAvg, Ditto and FedTilt on 20 clients with 30 % wrong labels, in seconds.
    """
    from fedtilt.runs.spec_run import run_spec
    from fedtilt.runs.trackers import trackers_of
    from fedtilt.spec import load

    overrides = [*options.overrides_of(settings, data_dir, cluster), *(["train.audit=true"] if audit else [])]
    loaded = load(spec, overrides=overrides, methods=method or [], seed=seed, seeds=seeds, device=device)
    folder = out or new_folder(loaded.name)
    trackers = trackers_of(log or [])

    def train(callbacks: "Sequence[Callback]") -> object:
        return run_spec(loaded, folder, callbacks=[*trackers, *callbacks])

    train_and_print(folder, train, print_run, seeds=loaded.seeds, quiet=quiet, verbose=verbose, as_json=as_json)


def train_and_print(
    folder: Path,
    train: "Callable[[Sequence[Callback]], _Trained]",
    print_result: Callable[[Console, Path, _Trained, float], None],
    *,
    seeds: int = 1,
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Train while showing the progress, write the report and print the result; after Ctrl-C, print how to resume.

    `train` starts or resumes a run or a search in the folder; `print_result` gets what it returns, and the seconds.
    """
    from fedtilt.cli.progress import show_progress

    progress, start_time = Console(stderr=True), time.monotonic()
    with (
        resumable(folder, progress),
        show_progress(progress, seeds=seeds, quiet=quiet or as_json, verbose=verbose) as display,
    ):
        trained = train([display])
    page = write_report(folder)
    if as_json:
        echo(json.dumps(read_json(folder / "results.json") | {"folder": str(folder)}, indent=2))
        return
    console = Console()
    if not quiet:
        print_result(console, folder, trained, time.monotonic() - start_time)
    print_lines(console, f"run folder: {folder}", *([] if quiet else [f"report:     {page}"]))


def write_report(folder: Path) -> Path:
    """Write the report of a run or a search, with published numbers if there are any, and return its path."""
    from fedtilt import report
    from fedtilt.report.published import published_for

    return report.write([folder], folder / "report.html", published=[published_for(folder)])


def print_run(console: Console, folder: Path, trained: object, seconds: float) -> None:
    """Print the comparison of a run's methods."""
    from fedtilt.cli.tables import comparison_table, group_legend, group_tables, legend
    from fedtilt.report.run_reader import read_run
    from fedtilt.report.summary import facts, headline
    from fedtilt.report.verdict import thresholds, verdict

    run = read_run(folder)
    data, comma, rest = facts(run).partition(",")
    console.print(f"\n[bold]{escape(data)}[/]{escape(comma + rest)} [dim]({seconds:.1f} s)[/]")
    if len(run.methods) > 1:
        console.print(escape(headline(run)))
    console.print(comparison_table(run, console.width))
    if sentences := [*verdict(run), *thresholds(run)]:
        print_lines(console, *sentences, "")
    console.print(legend(run))
    if tables := group_tables(run, console.width):
        console.print(*tables, group_legend(run), sep="\n")
    console.print()


def new_folder(name: str) -> Path:
    """A folder in runs/ that does not exist yet."""
    base = Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 2
    while folder.exists():
        folder, number = base.with_name(f"{base.name}-{number}"), number + 1
    return folder


@contextmanager
def resumable(folder: Path, console: Console) -> Iterator[None]:
    """After Ctrl-C, print how to resume what the folder has."""
    try:
        yield
    except KeyboardInterrupt:
        started = (folder / "spec.toml").exists()
        remedy = f"resume with: fedtilt resume {shlex.quote(str(folder))}" if started else "nothing was trained"
        print_lines(console, f"stopped; {remedy}")
        raise typer.Exit(130) from None
