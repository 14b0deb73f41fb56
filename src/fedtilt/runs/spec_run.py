"""A spec from start to end: run or resume its seeds in one run folder, one after another or on a Ray cluster."""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedtilt.cluster.connection import connected
from fedtilt.cluster.tasks import Report, check_shared, run_tasks
from fedtilt.data.published import catalog
from fedtilt.data.published.entry import data_folder
from fedtilt.devices import pick_device
from fedtilt.engine.prepare import PreparedRun, check_effects, prepare
from fedtilt.errors import InputError
from fedtilt.evaluation.results import Result, over_seeds
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.evaluation.scores import SCORES
from fedtilt.files import read_toml, write_json, write_toml
from fedtilt.locks import locked
from fedtilt.runs.callback import Callback, Callbacks
from fedtilt.runs.notebook import with_notebook_progress
from fedtilt.runs.run import check_cluster_of_new_run, check_out_folder, compare_environment, train_to_end
from fedtilt.simulation import Round
from fedtilt.spec import Spec, dump, federation_of, load, model_of, train_settings_of
from fedtilt.storage.fingerprint import continued, fingerprint_of
from fedtilt.storage.provenance import check_run_folder, read_record, record_environment, seed_folder
from fedtilt.storage.run_folder import RunFolder


def run_spec(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    callbacks: Sequence[Callback] = (),
    note: Mapping[str, Any] | None = None,
) -> dict[int, Result]:
    """Train a spec in a new folder, one seed after another; the results by seed. run.json gets the keys of `note`."""
    folder = Path(out)
    check_out_folder(folder, may_resume=False)
    # a wrong device, data set, model or cluster is an error before the folder is created
    first = prepare_seed(spec, spec.seed, folder)
    check_effects(first)
    check_cluster_of_new_run(first.settings, folder)
    with locked(folder):
        record_environment(folder, spec.device, _seeds(spec), **(note or {}))
        write_toml(folder / "spec.toml", dump(spec))
        return _train_seeds(spec, folder, Callbacks(callbacks), first)


def resume(
    folder: str | os.PathLike[str],
    rounds: int | None = None,
    *,
    cluster: str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> dict[int, Result]:
    """Continue a run of a spec from its last checkpoint, bit-identical to a run without a stop; the results by seed.

    With `rounds`, it continues to that round, beyond its end too, bit-identical to a run planned with these rounds. The
    spec in the folder then has these rounds, and the interval between evaluations as it was.

    Args:
        folder: the run folder
        rounds: the number of rounds; None: that of the spec
        cluster: a Ray cluster in place of the spec's, see `ft.run`; "none": this machine; None: that of the spec
        callbacks: called before, after and between the rounds of every seed: see `Callback`
        progress: whether a notebook shows the progress; elsewhere nothing is shown
    """
    folder = Path(folder)
    spec = spec_of(folder)
    with locked(folder):
        run = read_record(folder)
        if run.get("runner") == "flower":
            raise InputError(f"{folder} was trained on Flower sites; resume it with fedtilt deploy run and its project")
        if run["seeds"] != list(_seeds(spec)):
            raise InputError(
                f"{folder} was started with seeds {run['seeds']}, and its spec.toml now says {list(_seeds(spec))}; "
                "restore it, or start a new run in another folder (--out, or out= in Python)"
            )
        if "tuning" in run:
            raise InputError(f"{folder} is a search; continue it with: fedtilt resume {shlex.quote(str(folder))}")
        if rounds is not None and rounds != spec.train.rounds:
            spec = _change_rounds(spec, folder, rounds)
        if cluster is not None:
            spec = spec_of(folder, *cluster_overrides(cluster))
        callback = Callbacks(with_notebook_progress(callbacks, progress))
        compare_environment(folder, spec.device, callback.on_notice)
        return _train_seeds(spec, folder, callback)


def _change_rounds(spec: Spec, folder: Path, rounds: int) -> Spec:
    """The spec with another number of rounds, written into the folder if all its seeds can continue to it."""
    settings = continued(seed_folder(folder, spec.seed), train_settings_of(spec, spec.seed))
    spec = spec_of(folder, f"train.rounds={rounds}", f"train.eval_every={settings.eval_interval}")
    train_settings_of(spec, spec.seed)  # the rounds must fit the other settings, such as a warm-up
    for seed in _seeds(spec):
        RunFolder(seed_folder(folder, seed)).check_rounds(rounds)
    (folder / "results.json").unlink(missing_ok=True)  # of the shorter run
    write_toml(folder / "spec.toml", dump(spec))
    return spec


def _train_seeds(spec: Spec, folder: Path, callback: Callback, first: PreparedRun | None = None) -> dict[int, Result]:
    """Train all seeds to the end; the inputs of the first may be given."""
    if spec.seeds > 1 and train_settings_of(spec, spec.seed).on_cluster:
        _train_seeds_on_cluster(spec, folder, callback)  # what is left to do here is to read the results
    results = {}
    for seed in _seeds(spec):
        results[seed] = train_seed(spec, folder, seed, callback, first if seed == spec.seed else None)
    write_json(folder / "results.json", over_seeds(results))
    return results


def _seeds(spec: Spec) -> range:
    return range(spec.seed, spec.seed + spec.seeds)


# -- one seed ----------------------------------------------------------------------------------------------------------


def prepare_seed(spec: Spec, seed: int, folder: Path) -> PreparedRun:
    """The checked inputs of one seed."""
    methods, settings = [m.to_method() for m in spec.methods], train_settings_of(spec, seed)
    return prepare(methods, federation_of(spec, seed), model_of(spec), continued(seed_folder(folder, seed), settings))


def train_seed(spec: Spec, folder: Path, seed: int, callback: Callback, prepared: PreparedRun | None = None) -> Result:
    """Train one seed to the end in its part of the folder; a finished one is only read."""
    run_folder = RunFolder(seed_folder(folder, seed), spec.storage.memory_limit_mb * 2**20)
    prepared = prepared or prepare_seed(spec, seed, folder)
    return train_to_end(prepared, fingerprint_of(prepared), run_folder, spec.storage.checkpoint_seconds, callback)


def spec_of(folder: Path, *overrides: str) -> Spec:
    """The spec of a run, with overrides such as "train.rounds=200"."""
    check_run_folder(folder)
    read_record(folder)
    if not (folder / "spec.toml").exists():
        raise InputError(f"{folder} was started from Python: call fedtilt.run again with the same arguments and out=")
    read_toml(folder / "spec.toml")  # checks its digest
    return load(folder / "spec.toml", overrides=overrides, of_run=True)


# -- seeds as tasks of a Ray cluster -----------------------------------------------------------------------------------


def cluster_overrides(cluster: str | None) -> list[str]:
    """Overrides that put a cluster in place of the spec's; "none": this machine; None: no change."""
    if cluster == "none":
        return ["train.cluster=", "train.cluster_timeout="]
    return [] if cluster is None else [f"train.cluster={cluster}"]


def _train_seeds_on_cluster(spec: Spec, folder: Path, callback: Callback) -> None:
    """Train all seeds to the end in a folder that all nodes share; finished ones are not trained again."""
    folder = folder.absolute()
    with connected(spec.train.cluster or "local") as ray:
        check_shared(ray, folder, _data_paths(spec))
        tasks = {f"seed {seed}": partial(_seed_task, folder, _task_overrides(spec), seed) for seed in _seeds(spec)}
        gpu = pick_device(spec.device).type == "cuda"
        run_tasks(ray, tasks, gpu=gpu, notice=callback.on_notice, on_progress=callback.on_tasks)


def _data_paths(spec: Spec) -> list[Path]:
    """The files and folders that the data of a spec is read from."""
    d = spec.data
    if d.path is not None:
        return [Path(path) for path in (d.path, d.schema, d.exclude, d.relabel) if path]
    found = catalog.find_folder(d.name, d.folder or None) if catalog.entry(d.name).files else None
    return [] if found is None else [found]


def _task_overrides(spec: Spec) -> list[str]:
    """What differs in a task: it trains in its own process, with the data of this machine's folder."""
    changes = [*cluster_overrides("none"), "train.workers=", f"device={pick_device(spec.device).type}"]
    if spec.data.path is None and catalog.entry(spec.data.name).files:
        changes.append(f"data.folder={data_folder(spec.data.folder or None).absolute()}")
    return changes


def _seed_task(folder: Path, overrides: list[str], seed: int, report: Report, notice: Callable[[str], None]) -> None:
    spec = spec_of(folder, *overrides)
    train_seed(spec, folder, seed, _TaskReport(spec.train.rounds, report, notice))


class _TaskReport(Callback):
    """Sends the progress of a task."""

    def __init__(self, rounds: int, report: Report, notice: Callable[[str], None]) -> None:
        self._rounds, self._report, self._notice = rounds, report, notice

    def on_notice(self, text: str) -> None:
        """Send it."""
        self._notice(text)

    def on_round(self, round: Round, metrics: Mapping[str, RoundMetrics] | None) -> None:
        """Send the round, and the best method."""
        latest = ""
        if metrics:
            score = SCORES[next(iter(metrics.values())).evaluated.score]
            choose = max if score.higher_is_better else min
            best = choose(metrics, key=lambda name: metrics[name].evaluated.mean)
            latest = f"{best} {score.text(metrics[best].evaluated.mean, 1)}"
        self._report(round.number, self._rounds, latest)
