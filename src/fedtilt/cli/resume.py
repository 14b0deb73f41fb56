"""`fedtilt resume`: go on where a run stopped, to the same bits."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedtilt.cli.run import AsJson, Quiet, Verbose, show
from fedtilt.cli.tune import searched
from fedtilt.cli.watch import Watch
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
    """Go on where a run stopped, to the same bits, and print its table."""
    spec = spec_of(folder)
    if (folder / "results.json").exists() and not (quiet or as_json):
        Console(stderr=True, soft_wrap=True).print(f"note: {folder} is finished; this is what it found", markup=False)
    record = read_json(folder / "run.json")

    def job(watch: Watch) -> dict[int, Result]:
        if "tuning" in record:
            return searched(spec, Tuning.from_json(record["tuning"]), folder, watch, resuming=True)
        return resume_run(folder, on_seed=watch.on_seed, on_round=watch.on_round, notice=watch.notice)

    show(spec, folder, job, quiet=quiet, verbose=verbose, as_json=as_json)
