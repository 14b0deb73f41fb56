"""All methods on test data of other seeds, each with the settings chosen by equal tuning."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from fedtilt.reproduction.chapter import Chapter
from fedtilt.reproduction.comparison.dataset_comparison import DatasetComparison, condition_name
from fedtilt.reproduction.experiment import Case, Experiment, OnProgress, Options, Results
from fedtilt.reproduction.train_grid import Setting, federation_settings, grid_case, train_grid, trial_name
from fedtilt.reproduction.tuned.chosen import chosen_settings

TITLES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "term": "TERM",
    "local": "local training only",
    "fedavg_finetuned": "FedAvg with fine-tuning",
    "ditto": "Ditto",
    "fedtilt": "FedTilt",
}
NOISY = "-noisy"  # ends the rows whose settings are chosen on noisy validation data
_SPLITS = {"validation": "", "noisy_validation": NOISY}
_VARIANTS = {
    "fedtilt-captions": "FedTilt (tau −50, lam 50, not tuned)",
    "fedtilt-text": "FedTilt (tau 50, lam −10, not tuned)",
    **{f"{method}-last": f"{TITLES[method]} (v from the first received w)" for method in ("ditto", "fedtilt")},
    **{f"{method}-initial": f"{TITLES[method]} (v from w⁰)" for method in ("ditto", "fedtilt")},
}
ROW_TITLES = TITLES | {f"{row}{NOISY}": f"{title}, noisy validation" for row, title in TITLES.items()} | _VARIANTS


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set, condition and seed, where settings are chosen; it trains all methods together."""
    settings, result = experiment.settings, []
    for name, outliers in product(settings["data"], settings["outliers"]):
        federation, condition = federation_settings(settings, name, outliers), condition_name(outliers)
        rows = row_settings(settings, name, condition)
        if not rows:
            continue  # the chapter says so
        methods = {trial_name(setting): setting for setting in rows.values()}
        case, what, parts = f"{name}-{condition}", f"{name}, {condition}", ("methods", "settings", "diverged")
        for seed in range(options.seeds or settings[name].get("seeds") or settings["seeds"]):
            result.append(
                grid_case(case, federation, seed, methods, what=what, parts=parts, grid=", ".join(sorted(methods)))
            )
    return result


def row_settings(settings: Mapping[str, Any], data: str, condition: str) -> dict[str, Setting]:
    """Row → its setting; equal settings are trained once. Empty where no settings are chosen yet."""
    chosen = chosen_settings().get(data, {}).get(condition)
    if chosen is None:
        return {}
    rows = {
        f"{method}{suffix}": {"preset": method, **chosen[split][method]}
        for split, suffix in _SPLITS.items()
        for method in chosen[split]
    }
    for method in ("ditto", "fedtilt"):
        last = {key: value for key, value in rows[method].items() if key != "personal_start"}
        rows |= {f"{method}-last": last, f"{method}-initial": last | {"personal_start": "initial"}}
    return rows | dict(settings[data].get("untuned", settings["untuned"]).get(condition, {}))


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train the methods of one case; only metrics on test data are kept."""
    result = train_grid(case.settings, options, on_progress)
    methods = {name: {"test": method["test"]} for name, method in result["methods"].items()}
    return {"methods": methods, "settings": result["settings"], "diverged": result["diverged"]}


def compare_cells(experiment: Experiment, results: Results) -> dict[str, DatasetComparison]:
    """“data set, condition” → its comparison, from the cases that have results; empty for a cell without any."""
    settings, cells = experiment.settings, {}
    for data, condition in product(settings["data"], map(condition_name, settings["outliers"])):
        comparison = DatasetComparison(data=data, condition=condition, titles=ROW_TITLES)
        for case, result in results.items():
            name, _, seed = case.rpartition("-seed-")
            if name != f"{data}-{condition}":
                continue
            comparison.diverged.update(result["diverged"])
            for row, setting in row_settings(settings, data, condition).items():
                method = result["methods"].get(trial_name(setting))
                if method is not None:
                    comparison.rows.setdefault(row, {})[int(seed)] = method
        cells[f"{data}, {condition}"] = comparison
    return cells


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """Tables of every cell, FedTilt against every rival, verdicts."""
    return Chapter(title=experiment.title, lead=experiment.about.strip())
