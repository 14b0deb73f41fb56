"""The prediction sets of a run on test data, by client, for the report."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from fedtilt.errors import InputError
from fedtilt.evaluation.prediction_sets import PredictionSets
from fedtilt.report.compare import best_methods
from fedtilt.report.run_reader import Run
from fedtilt.storage.predictions import declared_sets

_COVERAGE, _BAD_SHARE = 0.9, 0.1
_MAX_METHODS = 4
_MAX_CLIENTS = 40  # of a table; beyond, those with the lowest coverage


def prediction_sets(run: Run) -> dict[str, PredictionSets]:
    """The sets of the best methods in the first seed; empty if there are no scores of validation data, or too few."""
    found, seed_run = {}, run.compared[0]
    for method in best_methods(run, _MAX_METHODS):
        stored = run.predictions[0].get(method)
        try:
            if stored is not None and stored.scores is not None:
                found[method] = stored.prediction_sets(_COVERAGE)
            elif run.fingerprint.get("runner") == "flower" and seed_run.folder is not None:
                found[method] = declared_sets(seed_run.folder, seed_run.client_names, seed_run.total, _COVERAGE)
            found = {name: sets for name, sets in found.items() if sets.rules}
        except InputError:  # too few samples for this coverage, or none are declared
            return {}
    return found


def _sentences(sets: Mapping[str, PredictionSets]) -> dict[str, str]:
    """A sentence per method and, if clients use the samples of others, one for sets that bad clients cannot spoil."""
    found = {method: str(of_method) for method, of_method in sets.items()}
    for method, of_method in sets.items():
        if any(rule.clients > 1 for rule in of_method.rules.values()):
            with suppress(InputError):  # too few samples are left without those that may be bad
                found[f"{method}, if clients may be bad"] = str(replace(of_method, bad_share=_BAD_SHARE))
    return found


def prediction_sets_table(run: Run) -> dict[str, Any]:
    """What the page shows: a sentence per method, and a row per client."""
    sets = prediction_sets(run)
    if not sets:
        return {}
    first = next(iter(sets.values()))
    clients = sorted(first.rules, key=lambda n: min(found.shares[n] for found in sets.values()))
    return {
        "coverage": 100 * _COVERAGE,
        "methods": list(sets),
        "sentences": _sentences(sets),
        "clients": len(clients),
        "rows": [
            {
                "client": first.client_names[n],
                "test": len(first.test[n]),
                "validation": first.rules[n].samples,
                "of_clients": first.rules[n].clients,
                "shares": [found.shares[n] for found in sets.values()],
            }
            for n in clients[:_MAX_CLIENTS]
        ],
    }
