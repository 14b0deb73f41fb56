"""`fedtilt run`: train every method of a spec on one federation, and compare their accuracy and fairness."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import Console, echo, escape
from fedtilt.cli.group_tables import group_legend, group_tables
from fedtilt.cli.options import (
    AsJson,
    Cluster,
    DataDir,
    Device,
    Log,
    Out,
    Quiet,
    Seed,
    Seeds,
    Settings,
    Verbose,
    overrides_of,
)
from fedtilt.cli.progress import show_progress
from fedtilt.cli.run_folders import new_folder, print_folder, resumable, write_report
from fedtilt.cli.spec_argument import SpecArgument
from fedtilt.cli.tables import clients_without_test_data, comparison_table, legend
from fedtilt.evaluation.results import Result, over_seeds
from fedtilt.runs.callback import Callback
from fedtilt.runs.spec_run import run_spec
from fedtilt.runs.trackers import trackers_of
from fedtilt.spec import Spec, load


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
    with (
        resumable(folder, progress),
        show_progress(progress, seeds=spec.seeds, quiet=silent, verbose=verbose) as display,
    ):
        results = train([display])
    table = over_seeds(results)
    page = write_report(folder)
    if as_json:
        echo(json.dumps(table | {"folder": str(folder)}, indent=2))
        return
    console = Console()
    if not quiet:
        console.print()
        first = next(iter(results[spec.seed].values()))
        rounds = first.history[-1][0]  # fewer than planned with a budget
        console.print(_headline(spec, len(first.client_names), rounds, time.monotonic() - start_time))
        names = first.group_names[first.group]
        console.print(comparison_table(table, results, first.client_names, names, console.width))
        console.print(legend(results))
        for rows in group_tables(table, console.width):
            console.print(rows)
        if text := group_legend(table):
            console.print(text)
        if line := clients_without_test_data(results, first.client_names):
            console.print(line)
        console.print()
    print_folder(console, folder, None if quiet else page)


def _headline(spec: Spec, clients: int, rounds: int, seconds: float) -> str:
    o = spec.outliers
    drawn = "every round" if o.redraw == "round" else "drawn once"
    outliers = "no outliers" if o.kind == "none" else f"{o.rate:.0%} {o.kind} {drawn}"
    if o.kind != "none" and o.clients < 1:
        outliers += f" on {o.clients:.0%} of the clients"
    length = "1 round" if rounds == 1 else f"{rounds} rounds"
    data = escape(Path(spec.data.path).name if spec.data.path else spec.data.name)
    return f"[bold]{data}[/], {clients} clients, {outliers}, {length} [dim]({seconds:.1f} s)[/]"
