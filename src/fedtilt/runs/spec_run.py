"""A run from a spec: every seed in turn, into one run folder; resume."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedtilt.errors import InputError
from fedtilt.evaluation.results import Result, over_seeds
from fedtilt.files import read_json, write_bytes, write_json
from fedtilt.locks import locked
from fedtilt.runs.run import Notice, OnRound, check_free, compare_environment, fingerprint_of, silent, train_to_end
from fedtilt.simulation import PreparedRun, prepare
from fedtilt.storage.provenance import record_environment, seed_folder
from fedtilt.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedtilt.spec import Spec


def run_spec(
    spec: "Spec",
    out: str | os.PathLike[str],
    *,
    on_seed: Callable[[int], None] = silent,
    on_round: OnRound = silent,
    notice: Notice = silent,
    note: Mapping[str, Any] | None = None,
) -> dict[int, Result]:
    """Train a spec to the end in a new folder, every seed in turn; the results by seed. `note` goes into run.json."""
    from fedtilt.spec import dump

    folder = Path(out)
    check_free(folder, going_on=False)
    _of_seed(spec, spec.seed)  # whatever is wrong with the device, the data or the model shows before a folder is made
    with locked(folder):
        write_bytes(folder / "spec.toml", dump(spec).encode())
        record_environment(folder, spec.device, range(spec.seed, spec.seed + spec.seeds), **(note or {}))
        return _all_seeds(spec, folder, on_seed, on_round, notice)


def resume(
    folder: str | os.PathLike[str],
    *,
    on_seed: Callable[[int], None] = silent,
    on_round: OnRound = silent,
    notice: Notice = silent,
) -> dict[int, Result]:
    """Go on where a run of a spec stopped, to the same bits; the results by seed."""
    folder = Path(folder)
    spec = spec_of(folder)
    with locked(folder):
        run = read_json(folder / "run.json")
        if run.get("runner") == "flower":
            raise InputError(f"{folder} was trained on Flower sites; go on with fedtilt deploy run and its project")
        if run["seeds"] != list(spec_seeds := range(spec.seed, spec.seed + spec.seeds)):
            raise InputError(
                f"{folder} was begun with seeds {run['seeds']}, and its spec.toml now says {list(spec_seeds)}; "
                "restore it, or start a new run in another folder (--out, or out= in Python)"
            )
        compare_environment(folder, spec.device, notice)
        return _all_seeds(spec, folder, on_seed, on_round, notice)


def spec_of(folder: Path) -> "Spec":
    """The spec that a run was started from."""
    from fedtilt.spec import load as load_spec

    check_run(folder)
    if not (folder / "spec.toml").exists():
        raise InputError(f"{folder} was started from Python: call fedtilt.run again with the same arguments and out=")
    return load_spec(folder / "spec.toml")


def check_run(folder: Path) -> None:
    """Refuse what is no run folder."""
    if not folder.exists():
        raise InputError(f"{folder} does not exist; check the path")
    if not (folder / "run.json").exists():
        raise InputError(f"{folder} is not a run folder: it has no run.json")


def _all_seeds(
    spec: "Spec", folder: Path, on_seed: Callable[[int], None], on_round: OnRound, notice: Notice
) -> dict[int, Result]:
    results = {}
    for seed in range(spec.seed, spec.seed + spec.seeds):
        on_seed(seed)
        store = RunFolder(seed_folder(folder, seed), spec.storage.memory_limit_mb * 2**20)
        work = _of_seed(spec, seed)
        results[seed] = train_to_end(
            work, fingerprint_of(work), store, spec.storage.checkpoint_seconds, on_round, notice
        )
    write_json(folder / "results.json", over_seeds(results))
    return results


def _of_seed(spec: "Spec", seed: int) -> PreparedRun:
    from fedtilt.spec import federation_of, model_of, train_settings_of

    methods = [m.to_method() for m in spec.methods]
    return prepare(methods, federation_of(spec, seed), model_of(spec), train_settings_of(spec, seed))
