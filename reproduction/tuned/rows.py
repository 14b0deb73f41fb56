"""The rows of the tuned comparison: every method with its chosen settings, and a few variants."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from reproduction.comparison.dataset_comparison import DatasetComparison, condition_name
from reproduction.experiment import Experiment, Results
from reproduction.train_grid import Setting, trial_name
from reproduction.tuned.chosen import chosen_settings

METHOD_TITLES = {
    "fedtilt": "FedTilt",
    "ditto": "Ditto",
    "fedavg_finetuned": "FedAvg with fine-tuning",
    "local": "local training only",
    "term": "TERM",
    "fedprox": "FedProx",
    "fedavg": "FedAvg",
}
NOISY = "-noisy"  # ends the rows whose settings are chosen on noisy validation data
_SPLITS = {"validation": "", "noisy_validation": NOISY}
_VARIANTS = {
    "fedtilt-captions": "FedTilt (tau −50, lam 50, not tuned)",
    "fedtilt-text": "FedTilt (tau 50, lam −10, not tuned)",
    **{f"{method}-last": f"{METHOD_TITLES[method]} (v from the first received w)" for method in ("ditto", "fedtilt")},
    **{f"{method}-initial": f"{METHOD_TITLES[method]} (v from w⁰)" for method in ("ditto", "fedtilt")},
}
ROW_TITLES = METHOD_TITLES | {f"{row}{NOISY}": title for row, title in METHOD_TITLES.items()} | _VARIANTS


def row_settings(settings: Mapping[str, Any], data: str, condition: str) -> dict[str, Setting]:
    """Row → its setting; empty where no settings are chosen yet.

    Args:
        settings: Those of the experiment.
        data: The data set.
        condition: Clean, or the kind of outliers.
    """
    chosen = chosen_settings().get(data, {}).get(condition)
    if chosen is None:
        return {}
    rows = {
        f"{method}{suffix}": {"preset": method, **chosen[split][method]}
        for split, suffix in _SPLITS.items()
        for method in chosen[split]
    }
    for method in ("ditto", "fedtilt") if settings[data].get("personal_starts", True) else ():
        last = {key: value for key, value in rows[method].items() if key != "personal_start"}
        rows |= {f"{method}-last": last, f"{method}-initial": last | {"personal_start": "initial"}}
    return rows | dict(settings[data].get("untuned", settings["untuned"]).get(condition, {}))


def compare_cells(experiment: Experiment, results: Results) -> dict[str, DatasetComparison]:
    """“data condition” → its comparison, from the cases that have results; without rows where there are none."""
    settings, cells = experiment.settings, {}
    for data, condition in product(settings["data"], map(condition_name, settings["outliers"])):
        comparison = DatasetComparison(data=data, condition=condition, titles=ROW_TITLES)
        rows = row_settings(settings, data, condition)
        for case, result in results.items():
            name, _, seed = case.rpartition("-seed-")
            if name == f"{data}-{condition}":
                comparison.diverged.update(result["diverged"])
                for row, setting in rows.items():
                    if trial_name(setting) in result["methods"]:
                        by_seed = comparison.rows.setdefault(row, {})
                        by_seed[int(seed)] = result["methods"][trial_name(setting)]
        cells[f"{data} {condition}"] = comparison
    return cells
