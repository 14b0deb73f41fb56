"""One seed of a spec in its part of a run folder."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fedtilt.engine.prepare import PreparedRun, prepare
from fedtilt.errors import InputError
from fedtilt.evaluation.results import Result
from fedtilt.files import read_toml
from fedtilt.runs.callback import Callback
from fedtilt.runs.run import fingerprint_of, train_to_end
from fedtilt.storage.fingerprint import earlier_version
from fedtilt.storage.provenance import is_started, read_record, seed_folder
from fedtilt.storage.run_folder import RunFolder
from fedtilt.storage.run_length import continued

if TYPE_CHECKING:
    from fedtilt.spec import Spec


def spec_of(folder: Path, *overrides: str) -> "Spec":
    """The spec of a run, with overrides such as "train.rounds=200"."""
    from fedtilt.spec import load as load_spec
    from fedtilt.spec.method import MovedKey

    check_run_folder(folder)
    read_record(folder)
    if not (folder / "spec.toml").exists():
        raise InputError(f"{folder} was started from Python: call fedtilt.run again with the same arguments and out=")
    read_toml(folder / "spec.toml")  # checks its digest
    try:
        return load_spec(folder / "spec.toml", overrides=overrides, recorded=True)
    except MovedKey:
        raise earlier_version(folder) from None


def cluster_overrides(cluster: str | None) -> list[str]:
    """What puts a cluster in place of the spec's; "none": this machine; None: no change."""
    if cluster == "none":
        return ["train.cluster=", "train.cluster_timeout="]
    return [] if cluster is None else [f"train.cluster={cluster}"]


def check_run_folder(folder: Path) -> None:
    """Refuse a folder that is not a run folder."""
    if not folder.exists():
        raise InputError(f"{folder} does not exist; check the path")
    if not (folder / "run.json").exists():
        raise InputError(f"{folder} is not a run folder: it has no run.json")
    if not is_started(folder):
        raise InputError(f"{folder} has a run that was stopped before it began; start it again with the same folder")


def open_seed(folder: Path, seed: int | None = None) -> tuple[int, RunFolder]:
    """One seed of a run, and its part of the folder; None: the first."""
    check_run_folder(folder)
    record = read_record(folder)
    if "tuning" in record:
        again = shlex.quote(str(folder / "recommended.toml"))
        raise InputError(f"{folder} is a search, which keeps no models; train what it recommends: fedtilt run {again}")
    seeds = record["seeds"]
    seed = int(seeds[0]) if seed is None else seed
    if seed not in seeds:
        raise InputError(f"{folder} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    return seed, RunFolder(seed_folder(folder, seed))


def prepare_seed(spec: "Spec", seed: int, folder: Path) -> PreparedRun:
    """The checked inputs of one seed."""
    from fedtilt.spec import federation_of, model_of, train_settings_of

    methods, settings = [m.to_method() for m in spec.methods], train_settings_of(spec, seed)
    return prepare(methods, federation_of(spec, seed), model_of(spec), continued(seed_folder(folder, seed), settings))


def train_seed(spec: "Spec", folder: Path, seed: int, callback: Callback) -> Result:
    """Train one seed to the end in its part of the folder; a finished one is only read."""
    run_folder = RunFolder(seed_folder(folder, seed), spec.storage.memory_limit_mb * 2**20)
    prepared = prepare_seed(spec, seed, folder)
    return train_to_end(prepared, fingerprint_of(prepared), run_folder, spec.storage.checkpoint_seconds, callback)
