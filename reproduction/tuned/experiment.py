"""All methods on test data of other seeds, each with the settings chosen by equal tuning."""

from collections.abc import Mapping
from itertools import product
from typing import Any

from fedtilt.evaluation.statistics import mean_difference
from fedtilt.report.compare import SeedValues, best_and_tied
from reproduction.chapter import Chapter, Table, Text
from reproduction.comparison.claims import verdicts
from reproduction.comparison.dataset_comparison import (
    COMPARED_METRICS,
    TITLES,
    DatasetComparison,
    condition_name,
)
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results
from reproduction.train_grid import Setting, federation_settings, grid_case, train_grid, trial_name
from reproduction.tuned.rows import METHOD_TITLES, NOISY, ROW_TITLES, compare_cells, row_settings
from reproduction.tuned.scores import difference_table, outcome_table, score_all


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set, condition and seed, where settings are chosen; it trains all methods together."""
    settings, result = experiment.settings, []
    for name, outliers in product(settings["data"], settings["outliers"]):
        federation, condition = federation_settings(settings, name, outliers), condition_name(outliers)
        rows = row_settings(settings, name, condition)
        if not rows:
            continue  # the chapter names the cell
        methods = {trial_name(setting): setting for setting in rows.values()}  # equal settings are trained once
        case, what, parts = f"{name}-{condition}", f"{name}, {condition}", ("methods", "settings", "diverged")
        for seed in range(options.seeds or settings[name].get("seeds") or settings["seeds"]):
            result.append(
                grid_case(case, federation, seed, methods, what=what, parts=parts, grid=", ".join(sorted(methods)))
            )
    return result


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train the methods of one case; only metrics on test data are kept."""
    result = train_grid(case.settings, options, on_progress, curves=False)
    methods = {name: {"test": method["test"]} for name, method in result["methods"].items()}
    return {"methods": methods, "settings": result["settings"], "diverged": result["diverged"]}


# -- the chapter -------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """FedTilt against every rival, a table of every cell, verdicts."""
    cells = compare_cells(experiment, results)
    measured = {where: cell for where, cell in cells.items() if cell.seeds}
    parts: list[Text | Table] = []
    if measured:
        scores = score_all(measured.values())
        parts += [outcome_table(scores, by_metric=by_metric) for by_metric in (False, True)]
        parts += [difference_table(scores, rival) for rival in ("fedavg_finetuned", "ditto")]
        parts += [_cell_table(experiment, cell) for cell in measured.values()]
    missing = [where for where in cells if where not in measured]
    if missing:
        parts.append(Text(markdown=f"Not measured yet: {', '.join(missing)}."))
    diverged = {why: where for where, cell in measured.items() for why in cell.diverged.values()}
    if diverged:
        listed = "; ".join(f"{where}: {why}" for why, where in diverged.items())
        parts.append(Text(markdown=f"Settings that diverged, left out for that seed: {listed}."))
    return Chapter(
        title=experiment.title,
        lead=experiment.about.strip(),
        parts=parts,
        verdicts=verdicts(experiment.claims, cells),
    )


def _cell_table(experiment: Experiment, cell: DatasetComparison) -> Table:
    """Every method and variant of one cell: settings, what they were chosen on, five metrics."""
    settings = row_settings(experiment.settings, cell.data, cell.condition)
    values = {row: _values(cell, row) for row in cell.rows}
    leaders = {metric.key: best_and_tied(_tuned(values), metric) for metric in COMPARED_METRICS}
    rows: list[list[str | float]] = []
    shown: list[Setting] = []
    for row in ROW_TITLES:
        if row not in values or settings[row] in shown:
            continue
        shown.append(settings[row])
        texts = {key: _mean_and_interval(by_seed) for key, by_seed in values[row].items()}
        bold = [f"**{texts[key]}**" if row in leaders[key] else texts[key] for key in TITLES]
        title = f"{ROW_TITLES[row]}<br>{trial_name(settings[row]).partition(' ')[2]}"
        rows.append([title, _chosen_on(row, settings), *bold])
    seeds = "one seed" if len(cell.seeds) == 1 else f"{len(cell.seeds)} seeds"
    return Table(
        caption=f"{cell.data}, {cell.condition}: every method, {seeds}",
        columns=["method and settings", "chosen on", *TITLES.values()],
        rows=rows,
        notes="Test data, evaluated models (v where a method has personal models, else w): mean ± half the width of "
        "its 95 % interval over seeds, in % and points. Chosen on: clean or noisy validation data, or both with the "
        "same result. Bold: the best of the tuned rows and its ties (the 95 % interval of the paired difference "
        "contains 0).",
        folded=True,
    )


def _values(cell: DatasetComparison, row: str) -> dict[str, SeedValues]:
    return {key: values for key in TITLES if (values := cell.values(row, key)) is not None}


def _tuned(values: Mapping[str, dict[str, SeedValues]]) -> dict[str, dict[str, SeedValues]]:
    return {row: by_metric for row, by_metric in values.items() if row.removesuffix(NOISY) in METHOD_TITLES}


def _chosen_on(row: str, settings: Mapping[str, Setting]) -> str:
    if row.removesuffix(NOISY) not in METHOD_TITLES:
        return ""
    if row.endswith(NOISY):
        return "noisy"
    return "both" if settings[row] == settings[f"{row}{NOISY}"] else "clean"


def _mean_and_interval(values: SeedValues) -> str:
    """Mean ± half the width of its interval.

    >>> _mean_and_interval(SeedValues((1.0, 2.0, 3.0))), _mean_and_interval(SeedValues((1.0,)))
    ('2.00 ± 2.48', '1.00')
    """
    mean = mean_difference(values.values)
    return f"{mean.mean:.2f}" + (f" ± {mean.high - mean.mean:.2f}" if mean.pairs > 1 else "")
