"""Run or resume a spec: one seed after another, in one run folder."""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtilt.engine.prepare import check_effects
from fedtilt.errors import InputError
from fedtilt.evaluation.results import Result, over_seeds
from fedtilt.files import write_json, write_toml
from fedtilt.locks import locked
from fedtilt.runs.callback import Callback, Callbacks
from fedtilt.runs.cluster_seeds import train_seeds_on_cluster
from fedtilt.runs.notebook import with_notebook_progress
from fedtilt.runs.run import check_cluster_of_new_run, check_out_folder, compare_environment
from fedtilt.runs.seed_run import cluster_overrides, prepare_seed, spec_of, train_seed
from fedtilt.storage.provenance import read_record, record_environment, seed_folder
from fedtilt.storage.run_folder import RunFolder
from fedtilt.storage.run_length import continued

if TYPE_CHECKING:
    from fedtilt.spec import Spec


def run_spec(
    spec: "Spec",
    out: str | os.PathLike[str],
    *,
    callbacks: Sequence[Callback] = (),
    note: Mapping[str, Any] | None = None,
) -> dict[int, Result]:
    """Train a spec in a new folder, one seed after another; the results by seed.

    Args:
        spec: the spec
        out: the run folder; it must be new or empty
        callbacks: called before, after and between the rounds of every seed: see `Callback`
        note: further keys for run.json
    """
    from fedtilt.spec import check_clients_used, dump

    folder = Path(out)
    check_out_folder(folder, may_resume=False)
    # a wrong device, data set, model or cluster is refused before the folder is created
    prepared = prepare_seed(spec, spec.seed, folder)
    check_clients_used(spec, prepared.federation)
    check_effects(prepared)
    check_cluster_of_new_run(prepared.settings, folder)
    with locked(folder):
        record_environment(folder, spec.device, range(spec.seed, spec.seed + spec.seeds), **(note or {}))
        write_toml(folder / "spec.toml", dump(spec))
        return _train_seeds(spec, folder, Callbacks(callbacks))


def resume(
    folder: str | os.PathLike[str],
    rounds: int | None = None,
    *,
    cluster: str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> dict[int, Result]:
    """Continue a run of a spec from its last checkpoint, with the same bits as without a stop; the results by seed.

    With `rounds`, it goes on to that round, beyond its end too, with the same bits as a run of so many rounds. The spec
    in the folder then has these rounds, and the interval between evaluations as it was.

    Args:
        folder: the run folder
        rounds: the number of rounds; None: as many as the spec says
        cluster: a Ray cluster in place of the spec's, see `ft.run`; "none": this machine; None: as the spec says
        callbacks: called before, after and between the rounds of every seed: see `Callback`
        progress: whether a notebook shows the progress; elsewhere nothing is shown
    """
    folder = Path(folder)
    spec = spec_of(folder)
    with locked(folder):
        run = read_record(folder)
        if run.get("runner") == "flower":
            raise InputError(f"{folder} was trained on Flower sites; resume it with fedtilt deploy run and its project")
        if run["seeds"] != list(spec_seeds := range(spec.seed, spec.seed + spec.seeds)):
            raise InputError(
                f"{folder} was started with seeds {run['seeds']}, and its spec.toml now says {list(spec_seeds)}; "
                "restore it, or start a new run in another folder (--out, or out= in Python)"
            )
        if "tuning" in run:
            raise InputError(f"{folder} is a search; go on with: fedtilt resume {shlex.quote(str(folder))}")
        if rounds is not None and rounds != spec.train.rounds:
            spec = _change_rounds(spec, folder, rounds)
        if cluster is not None:
            spec = spec_of(folder, *cluster_overrides(cluster))
        callback = Callbacks(with_notebook_progress(callbacks, progress))
        compare_environment(folder, spec.device, callback.on_notice)
        return _train_seeds(spec, folder, callback)


def _change_rounds(spec: "Spec", folder: Path, rounds: int) -> "Spec":
    """The spec with another number of rounds, written into the folder if all its seeds can go on to it."""
    from fedtilt.spec import dump, train_settings_of

    settings = continued(seed_folder(folder, spec.seed), train_settings_of(spec, spec.seed))
    spec = spec_of(folder, f"train.rounds={rounds}", f"train.eval_every={settings.eval_interval}")
    train_settings_of(spec, spec.seed)  # the rounds must fit the other settings, such as a warm-up
    for seed in range(spec.seed, spec.seed + spec.seeds):
        RunFolder(seed_folder(folder, seed)).check_rounds(rounds)
    (folder / "results.json").unlink(missing_ok=True)  # of the shorter run
    write_toml(folder / "spec.toml", dump(spec))
    return spec


def _train_seeds(spec: "Spec", folder: Path, callback: Callback) -> dict[int, Result]:
    from fedtilt.spec import train_settings_of

    if spec.seeds > 1 and train_settings_of(spec, spec.seed).on_cluster:
        train_seeds_on_cluster(spec, folder, callback)  # what is left to do here is to read the results
    seeds = range(spec.seed, spec.seed + spec.seeds)
    results = {seed: train_seed(spec, folder, seed, callback) for seed in seeds}
    write_json(folder / "results.json", over_seeds(results))
    return results
