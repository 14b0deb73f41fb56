"""`fedtilt resume`: resume a run, with bit-identical results."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedtilt.cli.progress import RunCallbacks
from fedtilt.cli.run import AsJson, Quiet, Verbose, run_and_print
from fedtilt.cli.tune import search_with_progress
from fedtilt.evaluation.results import Result
from fedtilt.files import read_json
from fedtilt.runs.spec_run import resume as resume_run
from fedtilt.runs.spec_run import spec_of
from fedtilt.runs.tune import Tuning


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Resume a run where it stopped, and print its table; the results are bit-identical."""
    spec = spec_of(folder)
    if (folder / "results.json").exists() and not (quiet or as_json):
        Console(stderr=True, soft_wrap=True).print(f"note: {folder} is finished; these are its results", markup=False)
    record = read_json(folder / "run.json")

    def train(callbacks: RunCallbacks) -> dict[int, Result]:
        if "tuning" in record:
            return search_with_progress(spec, Tuning.from_json(record["tuning"]), folder, callbacks, resuming=True)
        return resume_run(folder, **callbacks._asdict())

    run_and_print(spec, folder, train, quiet=quiet, verbose=verbose, as_json=as_json)
