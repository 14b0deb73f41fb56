"""`fedtilt tune`: search a method's settings on validation data, and recommend one."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import Console, echo
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
from fedtilt.cli.tuning_tables import print_tuning
from fedtilt.runs.callback import Callback
from fedtilt.runs.trackers import trackers_of
from fedtilt.spec import load
from fedtilt.tuning.axes import parse_axes
from fedtilt.tuning.objectives import parse_bounds
from fedtilt.tuning.result import Tuning
from fedtilt.tuning.tune import TRIALS, tune_spec


def tune(
    spec: SpecArgument = "digits",
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="A setting and its values: a list such as lam=-2,0,1 or aggregator=tilted,median, or a range such as "
            "lr=0.001..0.1; repeatable (default: tau=0,1,10,50 and lam=-2,0,1,10).",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="OBJECTIVE",
            help="What to improve: accuracy (mae for numbers), worst, client_fairness, class_fairness or group:COLUMN.",
        ),
    ] = None,
    at_least: Annotated[
        list[str] | None,
        typer.Option(metavar="OBJECTIVE=NUMBER", help="What the setting has to reach, such as accuracy=0.9."),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option(metavar="OBJECTIVE=NUMBER", help="What it may not exceed, such as client_fairness=5."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="The method (default: the first that has these settings).")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="The most settings; a larger grid is sampled.")] = TRIALS,
    halving: Annotated[bool, typer.Option(help="Whether weak settings are stopped early.")] = True,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop after this time, such as 5m, with what there is.")
    ] = None,
    settings: Settings = None,
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = None,
    cluster: Cluster = None,
    seed: Seed = None,
    seeds: Seeds = None,
    log: Log = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Search a method's settings on validation data, and recommend one, or to keep the one you have.

    Settings train together, and weak ones are stopped early. The recommended spec is written into the run folder.
    Validation data is a share of every client's training data; test data is not used to choose.
    """
    base = load(spec, overrides=overrides_of(settings, data_dir, cluster), seed=seed, seeds=seeds, device=device)
    folder = out or new_folder(f"{base.name}-tune")
    trackers = trackers_of(log or [])

    def search(callbacks: Sequence[Callback]) -> Tuning:
        return tune_spec(
            base, folder, over=parse_axes(over or []), by=by, at_least=parse_bounds(at_least or [], "--at-least"),
            at_most=parse_bounds(at_most or [], "--at-most"), method=method, trials=trials, halving=halving,
            budget=budget, callbacks=[*trackers, *callbacks],
        )  # fmt: skip

    search_and_print(search, folder, quiet=quiet, verbose=verbose, as_json=as_json)


def search_and_print(
    search: Callable[[Sequence[Callback]], Tuning], folder: Path, *, quiet: bool, verbose: bool, as_json: bool
) -> None:
    """Search while showing the progress, then print the recommendation; after Ctrl-C, print how to resume.

    Args:
        search: starts or resumes the search
        folder: its folder
        quiet: print only the folder
        verbose: print a line for every round
        as_json: print the result as JSON
    """
    progress = Console(stderr=True)
    with (
        resumable(folder, progress),
        show_progress(progress, quiet=quiet or as_json, verbose=verbose) as display,
    ):
        tuning = search([display])
    page = write_report(folder)
    if as_json:
        echo(json.dumps({"tuning": tuning.to_json(), "folder": str(folder)}, indent=2))
        return
    console = Console()
    if not quiet:
        print_tuning(console, tuning, folder)
    print_folder(console, folder, None if quiet else page)
