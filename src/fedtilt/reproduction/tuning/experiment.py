"""Equal tuning budgets: the settings of every method, chosen on validation data of seeds that no comparison uses."""

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from fedtilt.reproduction.chapter import Chapter, Table, Text
from fedtilt.reproduction.comparison.dataset_comparison import condition_name
from fedtilt.reproduction.experiment import Case, Experiment, OnProgress, Options, Results
from fedtilt.reproduction.train_grid import Setting, evaluated, federation_settings, train_grid

VALIDATION = {"validation": "clean", "noisy_validation": "with outliers"}  # part of a result → kind of validation data


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set, condition and tuning seed; it trains every trial of every method together."""
    settings, result = experiment.settings, []
    methods = {name: setting for by_name in trials(settings["trials"]).values() for name, setting in by_name.items()}
    for name, outliers in product(settings["data"], settings["outliers"]):
        federation, condition = federation_settings(settings, name, outliers), condition_name(outliers)
        for seed in settings["seeds"][: options.seeds]:
            result.append(
                Case(
                    name=f"{name}-{condition}-seed-{seed}",
                    what=f"{name}, {condition}, seed {seed}: {len(methods)} settings, "
                    f"{federation['train']['rounds']} rounds",
                    settings=federation | {"seed": seed, "methods": methods},
                    needs=name,
                    parts=("methods", "settings", "diverged"),
                    grid="; ".join(f"{method}: {_describe(axes)}" for method, axes in settings["trials"].items()),
                )
            )
    return result


def trials(axes_by_method: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[str, dict[str, Setting]]:
    """Method → trial → its setting; `tilts` are pairs of tau and lam.

    >>> trials({"fedtilt": {"tilts": [[0.0, -2.0]], "lr_personal": [0.01]}})
    {'fedtilt': {'fedtilt tau=0 lam=-2 lr_personal=0.01': {'preset': 'fedtilt', 'tau': 0.0, 'lam': -2.0, \
'lr_personal': 0.01}}}
    """
    result: dict[str, dict[str, Setting]] = {}
    for method, axes in axes_by_method.items():
        result[method] = {}
        for values in product(*axes.values()):
            setting: Setting = {"preset": method}
            for key, value in zip(axes, values, strict=True):
                setting |= {"tau": value[0], "lam": value[1]} if key == "tilts" else {key: value}
            result[method][_trial_name(setting)] = setting
    return result


def _trial_name(setting: Setting) -> str:
    settings = [f"{key}={value:g}" for key, value in setting.items() if key != "preset"]
    return " ".join([setting["preset"], *settings])


def _describe(axes: Mapping[str, Sequence[Any]]) -> str:
    return " × ".join(f"{key} {', '.join(str(value) for value in values)}" for key, values in axes.items())


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train the trials of one case; only metrics on validation data are kept."""
    result = train_grid(case.settings, options, on_progress, noisy_validation=True)
    methods = {
        name: {split: evaluated(method, split) for split in VALIDATION} for name, method in result["methods"].items()
    }
    return {"methods": methods, "settings": result["settings"], "diverged": result["diverged"]}


class Choice(NamedTuple):
    """The best trial of a method on one kind of validation data."""

    trial: str
    accuracy: float  # mean over the tuning seeds
    at_the_end: tuple[str, ...]  # settings whose value is the smallest or largest of several in the grid


def choose(
    axes: Mapping[str, Sequence[Any]], by_name: Mapping[str, Setting], results: Sequence[Mapping[str, Any]], split: str
) -> Choice:
    """The trial with the highest mean accuracy over seeds; among equals, the one with the better client fairness.

    Args:
        axes: The grid of the method.
        by_name: Its trials.
        results: The results of the tuning seeds.
        split: The kind of validation data, a key of `VALIDATION`.
    """

    def mean(trial: str, key: str) -> float:
        return fmean(result["methods"][trial][split][key] for result in results)

    finished = [trial for trial in by_name if all(trial in result["methods"] for result in results)]
    best = min(finished, key=lambda trial: (-mean(trial, "accuracy"), mean(trial, "client_fairness")))
    ends = [
        key
        for key, values in axes.items()
        if key != "tilts" and len(values) > 2 and by_name[best][key] in (min(values), max(values))
    ]
    return Choice(best, mean(best, "accuracy"), tuple(ends))


def choices(experiment: Experiment, results: Results) -> dict[tuple[str, str, str, str], Choice]:
    """(data set, condition, method, kind of validation data) → its choice, where all tuning seeds are measured."""
    settings = experiment.settings
    grid = trials(settings["trials"])
    chosen = {}
    for data, outliers in product(settings["data"], settings["outliers"]):
        condition = condition_name(outliers)
        names = [f"{data}-{condition}-seed-{seed}" for seed in settings["seeds"]]
        if not all(name in results for name in names):
            continue
        for method, split in product(grid, VALIDATION):
            seeds = [results[name] for name in names]
            chosen[data, condition, method, split] = choose(settings["trials"][method], grid[method], seeds, split)
    return chosen


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """The chosen setting of every method, with its validation accuracy, for every data set and condition."""
    chosen = choices(experiment, results)
    cells = list(dict.fromkeys((data, condition) for data, condition, _, _ in chosen))
    parts: list[Text | Table] = [_table(experiment, chosen, *cell) for cell in cells]
    all_cells = product(experiment.settings["data"], map(condition_name, experiment.settings["outliers"]))
    missing = [f"{data}, {condition}" for data, condition in all_cells if (data, condition) not in cells]
    if missing:
        parts.append(Text(markdown=f"Not measured yet: {'; '.join(missing)}."))
    diverged = sorted({name for result in results.values() for name in result["diverged"]})
    if diverged:
        parts.append(Text(markdown=f"Trials that diverged and are left out: {', '.join(diverged)}."))
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts)


def _table(experiment: Experiment, chosen: Mapping[Any, Choice], data: str, condition: str) -> Table:
    rows: list[list[str | float]] = []
    for method in experiment.settings["trials"]:
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
        f"is on that data, mean over {len(experiment.settings['seeds'])} seeds: it compares trials of one column, not "
        "columns.",
        folded=True,
    )
