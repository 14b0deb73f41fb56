"""`fedtilt resume`: resume a run, with bit-identical results."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from fedtilt.cli.console import Console, print_lines
from fedtilt.cli.options import AsJson, Log, Quiet, RunFolder, Verbose
from fedtilt.cli.run import print_run, train_and_print
from fedtilt.cli.tune import print_tuning
from fedtilt.errors import InputError
from fedtilt.files import read_json

if TYPE_CHECKING:
    from fedtilt.runs.callback import Callback
    from fedtilt.tuning.result import Tuning


def resume(
    folder: RunFolder,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Continue to this round, even beyond the end of the run (default: as planned)."),
    ] = None,
    log: Log = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="auto|HOST:PORT|none",
            help="Continue on this Ray cluster, or with none on this machine (default: as the run was started).",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Resume a run where it stopped, and print its table; the results are bit-identical.

    With --rounds, the results are those of a run with that number of rounds. An error if the schedule of the learning
    rates depends on the length (cosine). The interval between evaluations stays as it was.
    """
    from fedtilt.runs.spec_run import cluster_overrides, spec_of
    from fedtilt.runs.spec_run import resume as resume_run
    from fedtilt.runs.trackers import trackers_of
    from fedtilt.tuning.tune import resume_tuning

    spec = spec_of(folder)
    is_search = "tuning" in read_json(folder / "run.json")
    if is_search and rounds:
        raise InputError(f"--rounds has no effect: {folder} is a search; use it when you run the recommended spec")
    if rounds not in (None, spec.train.rounds):
        spec = spec_of(folder, f"train.rounds={rounds}")
    elif (folder / "results.json").exists() and not (quiet or as_json):
        print_lines(Console(stderr=True), f"note: {folder} is finished; these are its results")
    trackers = trackers_of(log or [])

    def train(callbacks: "Sequence[Callback]") -> object:
        return resume_run(folder, rounds, cluster=cluster, callbacks=[*trackers, *callbacks])

    def search(callbacks: "Sequence[Callback]") -> "Tuning":
        return resume_tuning(folder, spec_of(folder, *cluster_overrides(cluster)), callbacks=[*trackers, *callbacks])

    if is_search:
        train_and_print(folder, search, print_tuning, quiet=quiet, verbose=verbose, as_json=as_json)
    else:
        train_and_print(folder, train, print_run, seeds=spec.seeds, quiet=quiet, verbose=verbose, as_json=as_json)
