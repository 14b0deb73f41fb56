"""`fedtilt tune`: train a method with many settings, and recommend one."""

import shlex
from collections.abc import Mapping, Sequence
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
    run_and_print,
)
from fedtilt.evaluation.results import Result
from fedtilt.evaluation.summary import Summary, summarise_all
from fedtilt.runs.callback import Callback, Callbacks
from fedtilt.runs.tune import VALIDATION_SHARE, Tuning, axes_of, check_validation, grid_of, search
from fedtilt.simulation import Round
from fedtilt.spec import Spec, load


def tune(
    spec: SpecArgument = "digits",
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V,V,…", help="The values of a setting (default: tau=0,1,10,50 and lam=-2,0,1,10)."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="The method (default: the first that has these settings).")
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
    """Search a method's settings: train every combination, choose on validation data, compare on test data.

    Validation data is a share of every client's training data. The other methods of the spec are trained too.
    """
    overrides = overrides_of(settings, data_dir)
    base = load(spec, overrides=overrides, seed=seed, seeds=seeds, device=device)
    grid, tuning = grid_of(base, method, axes_of(over or []))
    options = [part for text in overrides for part in ("--set", text)]
    for key, value in (("seed", seed), ("seeds", seeds), ("device", device)):
        options += [] if value is None else [f"--{key}", str(value)]
    tuning = tuning._replace(command=shlex.join(["fedtilt", "run", spec, *options]))
    check_validation(grid)
    folder = out or new_folder(f"{base.name}-tune")

    def train(callbacks: Sequence[Callback]) -> dict[int, Result]:
        if not base.clients.validation:
            share = f"{VALIDATION_SHARE:.0%} of every client's training data"
            Callbacks(callbacks).on_notice(f"clients.validation is 0; {share} is used for validation")
        return search_with_progress(grid, tuning, folder, callbacks)

    run_and_print(grid, folder, train, quiet=quiet, verbose=verbose, as_json=as_json)


def search_with_progress(
    grid: Spec, tuning: Tuning, folder: Path, callbacks: Sequence[Callback], *, resuming: bool = False
) -> dict[int, Result]:
    """Run or resume a search, and show its progress on validation data: test data is not used to choose."""
    return search(grid, tuning, folder, resuming=resuming, callbacks=[_OnValidation(callbacks)])


class _OnValidation(Callbacks):
    """Callbacks with the metrics on validation data."""

    def on_round(self, round: Round, metrics: Mapping[str, Summary] | None) -> None:
        no_outliers = torch.zeros(len(round.total), dtype=torch.bool)
        super().on_round(round, summarise_all(round.validation, round.validation_total, no_outliers))
