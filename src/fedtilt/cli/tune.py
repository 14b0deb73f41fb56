"""`fedtilt tune`: train a method with many settings together, and say which to take."""

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from fedtilt.cli.run import (
    AsJson,
    DataDir,
    Device,
    Out,
    Quiet,
    Seed,
    Seeds,
    Settings,
    SpecArgument,
    Verbose,
    new_folder,
    overrides_of,
    show,
)
from fedtilt.cli.watch import Watch
from fedtilt.evaluation.results import Result, Summary, summarised
from fedtilt.runs.tune import VALIDATION_SHARE, Tuning, axes_of, check_validation, grid_of, search
from fedtilt.simulation import Round
from fedtilt.spec import Spec, load


def tune(
    spec: SpecArgument = "digits",
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V,V,…", help="What to vary; tau=0,1,10,50 and lam=-2,0,1,10 by default."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="The method; the first that it fits, by default.")
    ] = None,
    settings: Settings = None,
    out: Out = None,
    data_dir: DataDir = None,
    device: Device = None,
    seed: Seed = None,
    seeds: Seeds = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Find a method's tilts: train every combination together, choose on validation data, compare on test data.

    Clients set some of their training samples aside to choose by; the other methods of the spec run beside.
    """
    overrides = overrides_of(settings, data_dir)
    base = load(spec, overrides=overrides, seed=seed, seeds=seeds, device=device)
    grid, tuning = grid_of(base, method, axes_of(over or []))
    given = [("--set", text) for text in overrides]
    given += [
        (f"--{key}", str(value))
        for key, value in (("seed", seed), ("seeds", seeds), ("device", device))
        if value is not None
    ]
    tuning = tuning._replace(command=shlex.join(["fedtilt", "run", spec, *(part for pair in given for part in pair)]))
    check_validation(grid)
    folder = out or new_folder(f"{base.name}-tune")

    def job(watch: Watch) -> dict[int, Result]:
        if not base.clients.validation:
            watch.notice(
                f"clients.validation is 0: {VALIDATION_SHARE:.0%} of every client's training samples are set aside"
            )
        return searched(grid, tuning, folder, watch)

    show(grid, folder, job, quiet=quiet, verbose=verbose, as_json=as_json)


def searched(grid: Spec, tuning: Tuning, folder: Path, watch: Watch, *, resuming: bool = False) -> dict[int, Result]:
    """A search under a display."""
    return search(
        grid, tuning, folder, resuming=resuming, on_seed=watch.on_seed, on_round=partial(_validated, watch),
        notice=watch.notice,
    )  # fmt: skip


def _validated(watch: Watch, r: Round, _: Mapping[str, Summary] | None) -> None:
    """Show the progress on validation data: test data is not for choosing."""
    nobody = torch.zeros(len(r.total), dtype=torch.bool)
    watch.on_round(r, summarised(r.validation, r.validation_total, nobody))
