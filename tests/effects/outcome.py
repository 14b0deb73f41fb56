"""What a run leaves, as one digest: models, what clients and the server keep, evaluations."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fedtilt as ft
from fedtilt.engine.prepare import PreparedRun, check_effects
from fedtilt.runs.callback import Callbacks
from fedtilt.runs.run import train_to_end
from fedtilt.runs.spec_run import prepare_seed
from fedtilt.spec import Spec, parse
from fedtilt.spec.read import _make_paths_absolute
from fedtilt.storage.run_folder import InMemoryRun
from tests.effects.cases import Keys


def spec_of(keys: Keys) -> Spec:
    """The spec with these keys and one method."""
    raw: dict[str, Any] = {"methods": [{}]}
    for dotted, value in keys.items():
        table, _, key = dotted.rpartition(".")
        place = raw["methods"][0] if table == "methods" else raw.setdefault(table, {}) if table else raw
        if value is not None:
            place[key] = value
    _make_paths_absolute(raw, Path.cwd())
    return parse(raw)


def prepared_of(spec: Spec, seed: int) -> PreparedRun:
    """The inputs of a seed, checked as those of a new run."""
    prepared = prepare_seed(spec, seed, Path("nowhere"))
    check_effects(prepared)
    return prepared


def outcome(keys: Keys) -> str:
    """The digest of all seeds of a spec."""
    spec, results = spec_of(keys), []
    for seed in range(spec.seed, spec.seed + spec.seeds):
        prepared = prepared_of(spec, seed)
        recorder = InMemoryRun(2**30)
        results.append(train_to_end(prepared, {}, recorder, 10.0, Callbacks(())))
    return digest(*results)


def digest(*results: Mapping[str, Any]) -> str:
    """The digest of results."""
    found = hashlib.sha256()
    for result in results:
        if isinstance(result, ft.Result):  # and not some of its methods
            found.update(repr([(name, r.history) for name, r in result.shown.items() if name not in result]).encode())
        for name, r in result.items():
            states = [r._client_states.get(owner) for owner in r._client_states.owners() if owner[0] == name]
            tensors = {
                f"{i}/{key}": t for i, state in enumerate([r._server, *states]) for key, t in state.to_tensors().items()
            }
            for key, tensor in sorted(tensors.items()):
                found.update(f"{name}/{key}".encode() + tensor.numpy().tobytes())
            found.update(repr((name, r.history, r.validation, r.sums.tolist(), r.total.tolist())).encode())
    return found.hexdigest()
