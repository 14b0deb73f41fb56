"""`fedtilt resume`: resume a run, with bit-identical results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import Console
from fedtilt.cli.options import AsJson, Log, Quiet, Verbose
from fedtilt.cli.run import run_and_print
from fedtilt.cli.tune import search_and_print
from fedtilt.errors import InputError
from fedtilt.evaluation.results import Result
from fedtilt.files import read_json
from fedtilt.runs.callback import Callback
from fedtilt.runs.spec_run import cluster_overrides, spec_of
from fedtilt.runs.spec_run import resume as resume_run
from fedtilt.runs.trackers import trackers_of
from fedtilt.tuning.tune import resume_tuning


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Go on to this round, beyond the end of the run too (default: as the run was planned)."
        ),
    ] = None,
    log: Log = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="auto|HOST:PORT|none",
            help="Go on on this Ray cluster, or with none on this machine (default: as the run was started).",
        ),
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Resume a run where it stopped, and print its table; the results are bit-identical.

    With --rounds, the results are those of a run of so many rounds. Refused if the schedule of the learning rates
    depends on the length (cosine). The interval between evaluations stays as it was.
    """
    spec = spec_of(folder)
    is_search = "tuning" in read_json(folder / "run.json")
    if is_search and rounds:
        raise InputError(
            f"--rounds has no effect: {folder} is a search; give it to fedtilt run with what it recommends"
        )
    if rounds not in (None, spec.train.rounds):
        spec = spec_of(folder, f"train.rounds={rounds}")
    elif (folder / "results.json").exists() and not (quiet or as_json):
        Console(stderr=True, soft_wrap=True).print(f"note: {folder} is finished; these are its results", markup=False)
    trackers = trackers_of(log or [])
    if is_search:
        spec = spec_of(folder, *cluster_overrides(cluster))
        search_and_print(
            lambda callbacks: resume_tuning(folder, spec, callbacks=[*trackers, *callbacks]), folder, quiet=quiet,
            verbose=verbose, as_json=as_json,
        )  # fmt: skip
        return

    def train(callbacks: Sequence[Callback]) -> dict[int, Result]:
        return resume_run(folder, rounds, cluster=cluster, callbacks=[*trackers, *callbacks])

    run_and_print(spec, folder, train, quiet=quiet, verbose=verbose, as_json=as_json)
