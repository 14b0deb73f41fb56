"""What the last models of a run predict on the test data: as stored in its folder, or computed from its models."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedtilt.errors import InputError
from fedtilt.evaluation.predictions import Predictions, predict
from fedtilt.files import read_json
from fedtilt.locks import locked
from fedtilt.runs.spec_run import prepare_seed, spec_of
from fedtilt.runs.trained_run import open_state
from fedtilt.storage.fingerprint import read_fingerprint
from fedtilt.storage.predictions import read_predictions, write_predictions
from fedtilt.storage.provenance import read_record
from fedtilt.storage.run_folder import drawn_rows


class RunPredictions(NamedTuple):
    """The predictions of one seed of a run."""

    seed: int
    round: int  # of the models
    by_method: dict[str, Predictions]
    fixed_shares: bool  # of the classes in each client's test rows


def read_or_predict(folder: Path, methods: Sequence[str] = (), seed: int | None = None) -> RunPredictions:
    """What the last models of a run predict; what is not stored is computed and, of a finished run, stored.

    By default of all methods, and of the first seed.
    """
    seed, run_folder, state = open_state(folder, seed)
    in_run = list(read_fingerprint(run_folder.folder / "fingerprint.json")["methods"])
    for name in methods:
        if name not in in_run:
            raise InputError(f"{folder} has no method {name!r}; it has {', '.join(in_run)}")
    wanted = [name for name in in_run if name in methods or not methods]
    found = read_predictions(run_folder.folder, state.round)
    missing = [name for name in wanted if name not in found]
    if missing:
        if read_record(folder).get("runner") == "flower":
            raise InputError(f"{folder} was trained on Flower sites; their test data and predictions stay there")
        prepared = prepare_seed(spec_of(folder), seed, folder)
        found |= predict(prepared, [m for m in prepared.methods if m.name in missing], state)
        if state.round == prepared.settings.rounds:
            with locked(folder):
                write_predictions(run_folder.folder, state.round, found)
    drawn = drawn_rows(read_json(run_folder.folder / "federation.json"))
    return RunPredictions(seed, state.round, {name: found[name] for name in wanted}, drawn.fixed_shares)
