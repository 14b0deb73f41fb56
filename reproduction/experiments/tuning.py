"""Equal tuning budgets: the settings of every method, chosen on validation data of seeds that no comparison uses."""

import inspect
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from fedtilt.errors import InputError
from fedtilt.methods import PRESETS
from reproduction.chapter import Chapter, Table, Text
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results
from reproduction.experiments.paired import condition_name
from reproduction.training import Setting, evaluated, federation_settings, grid_case, train_grid, trial_name

VALIDATION = {"validation": "clean", "noisy_validation": "with outliers"}  # part of a result → kind of validation data
STAGES = {"trials": "", "extended_trials": "-extended"}  # table of settings → what marks its cases

Grid = Mapping[str, Sequence[Any]]  # setting → its values; `tilts` are pairs of tau and lam
Grids = Mapping[str, Grid | Sequence[Grid]]  # method → its grid, or several, which are joined


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set, condition, stage and tuning seed; it trains every trial of every method together."""
    settings, result = experiment.settings, []
    for name, outliers, stage in product(settings["data"], settings["outliers"], STAGES):
        grids = stage_grids(settings, name, stage)
        if not grids:
            continue
        federation, condition = federation_settings(settings, name, outliers), condition_name(outliers)
        methods = {trial: setting for by_name in trials(grids).values() for trial, setting in by_name.items()}
        what = f"{name}, {condition}" + ", second grid" * (stage != "trials")
        grid = "; ".join(f"{method}: {_describe(grid)}" for method, grid in grids.items())
        parts = ("methods", "settings", "diverged")
        for seed in tuning_seeds(settings, name)[: options.seeds]:
            case = f"{name}-{condition}{STAGES[stage]}"
            result.append(grid_case(case, federation, seed, methods, what=what, parts=parts, grid=grid))
    return result


def stage_grids(settings: Mapping[str, Any], data: str, stage: str) -> Grids:
    """The grids of a stage on one data set, whose own replace those of the experiment in both stages."""
    return (settings[data] if "trials" in settings[data] else settings).get(stage, {})


def tuning_seeds(settings: Mapping[str, Any], data: str) -> list[int]:
    """The tuning seeds of a data set."""
    return list(settings[data].get("seeds", settings["seeds"]))


def trials(grids: Grids) -> dict[str, dict[str, Setting]]:
    """Method → trial → its setting: all combinations of the values of a grid.

    >>> trials({"fedtilt": {"tilts": [[0.0, -2.0]], "lr_personal": [0.01]}})
    {'fedtilt': {'fedtilt tau=0 lam=-2 lr_personal=0.01': {'preset': 'fedtilt', 'tau': 0.0, 'lam': -2.0, \
'lr_personal': 0.01}}}
    >>> list(trials({"ditto": [{"mu": [0.1]}, {"mu": [1], "personal_start": ["initial"]}]})["ditto"])
    ['ditto mu=0.1', 'ditto mu=1 personal_start=initial']
    """
    result: dict[str, dict[str, Setting]] = {}
    for method, grid in grids.items():
        result[method] = {}
        for axes in _joined(grid):
            for values in product(*axes.values()):
                setting: Setting = {"preset": method}
                for key, value in zip(axes, values, strict=True):
                    setting |= {"tau": value[0], "lam": value[1]} if key == "tilts" else {key: value}
                name = trial_name(setting)
                if name in result[method]:
                    raise InputError(f"the grid of {method} has the trial {name!r} twice; leave one out")
                result[method][name] = setting
    return result


def _joined(grid: Grid | Sequence[Grid]) -> Sequence[Grid]:
    return [grid] if isinstance(grid, Mapping) else grid


def _describe(grid: Grid | Sequence[Grid]) -> str:
    return " and ".join(
        " × ".join(f"{key} {', '.join(str(value) for value in values)}" for key, values in axes.items())
        for axes in _joined(grid)
    )


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train the trials of one case; only metrics on validation data are kept."""
    result = train_grid(case.settings, options, on_progress, curves=False, noisy_validation=True)
    methods = {
        name: {split: evaluated(method, split) for split in VALIDATION} for name, method in result["methods"].items()
    }
    return {"methods": methods, "settings": result["settings"], "diverged": result["diverged"]}


class Choice(NamedTuple):
    """The best trial of a method on one kind of validation data."""

    trial: str
    accuracy: float  # mean over the tuning seeds
    at_the_end: tuple[str, ...]  # settings whose value is the smallest or largest of at least three


def choose(
    by_name: Mapping[str, Setting], results: Sequence[Mapping[str, Any]], split: str, train: Mapping[str, Any]
) -> Choice:
    """The trial with the highest mean accuracy over seeds; among equals, the one with the better client fairness.

    Args:
        by_name: The trials of the method.
        results: The results of the tuning seeds.
        split: The kind of validation data, a key of `VALIDATION`.
        train: The training settings of the runs, which trials without a setting use.
    """

    def mean(trial: str, key: str) -> float:
        return fmean(result["methods"][trial][split][key] for result in results)

    finished = [trial for trial in by_name if all(trial in result["methods"] for result in results)]
    best = min(finished, key=lambda trial: (-mean(trial, "accuracy"), mean(trial, "client_fairness")))
    ends = []
    for key in dict.fromkeys(key for setting in by_name.values() for key in setting):
        values = {_value(setting, key, train) for setting in by_name.values()}
        numeric = all(isinstance(value, int | float) for value in values)
        if numeric and len(values) > 2 and _value(by_name[best], key, train) in (min(values), max(values)):
            ends.append(key)
    return Choice(best, mean(best, "accuracy"), tuple(ends))


def _value(setting: Setting, key: str, train: Mapping[str, Any]) -> Any:
    """A setting of a trial: its own, or else the default of its method or of the run.

    >>> [_value({"preset": "ditto", "lr": 0.1}, key, {"lr": 0.01, "epochs": 10}) for key in ("mu", "lr_personal")]
    [0.01, 0.1]
    """
    if key in setting:
        return setting[key]
    if key == "lr_personal":
        return _value(setting, "lr", train)
    parameters = inspect.signature(PRESETS[setting["preset"]]).parameters
    default = parameters[key].default if key in parameters else None
    return train[{"epochs_personal": "epochs"}.get(key, key)] if default is None else default


def choices(experiment: Experiment, results: Results) -> dict[tuple[str, str, str, str], Choice]:
    """(data set, condition, method, kind of validation data) → its choice over the trials of all measured stages.

    A stage counts where all its tuning seeds are measured; without the first stage there is no choice.
    """
    settings = experiment.settings
    chosen = {}
    for data, outliers in product(settings["data"], settings["outliers"]):
        condition = condition_name(outliers)
        stages = measured_stages(settings, results, data, condition)
        if "trials" not in stages:
            continue
        by_seed = [
            {"methods": {name: method for r in runs for name, method in r["methods"].items()}}
            for runs in zip(*stages.values(), strict=True)
        ]
        grids = [trials(stage_grids(settings, data, stage)) for stage in stages]
        train = federation_settings(settings, data, outliers)["train"]
        for method, split in product(grids[0], VALIDATION):
            by_name = {name: setting for grid in grids for name, setting in grid[method].items()}
            chosen[data, condition, method, split] = choose(by_name, by_seed, split, train)
    return chosen


def measured_stages(
    settings: Mapping[str, Any], results: Results, data: str, condition: str
) -> dict[str, list[Mapping[str, Any]]]:
    """The stages of which all tuning seeds are measured, with the results of these."""
    measured: dict[str, list[Mapping[str, Any]]] = {}
    for stage in STAGES:
        names = [f"{data}-{condition}{STAGES[stage]}-seed-{seed}" for seed in tuning_seeds(settings, data)]
        if stage_grids(settings, data, stage) and all(name in results for name in names):
            measured[stage] = [results[name] for name in names]
    return measured


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """The chosen setting of every method, with its validation accuracy, for every data set and condition."""
    chosen = choices(experiment, results)
    cells = list(dict.fromkeys((data, condition) for data, condition, _, _ in chosen))
    parts: list[Text | Table] = [_table(experiment, chosen, *cell) for cell in cells]
    parts += _missing(experiment, results)
    diverged = sorted({name for result in results.values() for name in result["diverged"]})
    if diverged:
        parts.append(Text(markdown=f"Trials that diverged and are skipped: {', '.join(diverged)}."))
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts)


def _missing(experiment: Experiment, results: Results) -> list[Text]:
    """The cells without a choice, and those whose choice is from the first grid alone."""
    settings = experiment.settings
    late: dict[str, list[str]] = {"trials": [], "extended_trials": []}
    for data, condition in product(settings["data"], map(condition_name, settings["outliers"])):
        measured = measured_stages(settings, results, data, condition)
        needed = [stage for stage in STAGES if stage_grids(settings, data, stage)]
        for stage in [stage for stage in needed if stage not in measured][:1]:
            late[stage].append(f"{data}, {condition}")
    titles = {"trials": "Not measured yet", "extended_trials": "Second grid not measured yet"}
    return [Text(markdown=f"{titles[stage]}: {'; '.join(cells)}.") for stage, cells in late.items() if cells]


def _table(experiment: Experiment, chosen: Mapping[Any, Choice], data: str, condition: str) -> Table:
    rows: list[list[str | float]] = []
    seeds = len(tuning_seeds(experiment.settings, data))
    for method in stage_grids(experiment.settings, data, "trials"):
        row: list[str | float] = [method]
        for split in VALIDATION:
            choice = chosen[data, condition, method, split]
            mark = f" (end of the grid: {', '.join(choice.at_the_end)})" if choice.at_the_end else ""
            row += [choice.trial.removeprefix(f"{method} ") + mark, choice.accuracy]
        rows.append(row)
    return Table(
        caption=f"Chosen settings, {data}, {condition}",
        columns=["method", *(title for kind in VALIDATION.values() for title in (f"chosen, {kind}", "accuracy (%)"))],
        rows=rows,
        notes="“Clean” and “with outliers” are the kinds of validation data that settings are chosen on. The accuracy "
        f"is on that data, {f'mean over {seeds} seeds' if seeds > 1 else 'one seed'}: it compares trials of one "
        "column, not columns.",
        folded=True,
    )
