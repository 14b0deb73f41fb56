"""Comparison tables: FedAvg, Ditto and FedTilt on three data sets, with the paper's tilts and with validated ones."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from fedtilt.evaluation.results import SeedValues
from fedtilt.evaluation.verdicts import Verdict
from fedtilt.report.summary import format_difference, format_interval, format_mean_std
from reproduction import plots
from reproduction.chapter import CaptionedFigure, Chapter, Part, Table, Text
from reproduction.experiment import Case, Experiment, Options, Results
from reproduction.experiments.comparison_claims import verdicts
from reproduction.experiments.paired import (
    COMPARED_METRICS,
    ROWS,
    TITLES,
    DatasetComparison,
    compare_datasets,
    condition_name,
)
from reproduction.records import HOW_COMPARED
from reproduction.training import Setting, ditto, fedavg, federation_settings, fedtilt, grid_case, measure_grid

measure = measure_grid


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set and seed; it trains every setting of every method together."""
    settings, result = experiment.settings, []
    for name in settings["data"]:
        methods = candidates(settings[name], settings["mu"])
        federation = federation_settings(settings, name, settings["outliers"])
        what, grid = f"{name}, {condition_name(settings['outliers'])}", describe_grid(settings[name], settings["mu"])
        for seed in range(options.seeds or settings[name].get("seeds") or settings["seeds"]):
            result.append(grid_case(name, federation, seed, methods, what=what, grid=grid))
    return result


def candidates(data_settings: Mapping[str, Any], mu: float) -> dict[str, Setting]:
    """Every setting in the grids of a data set, and the paper's if it is not among them.

    tau = lam = 0 is skipped: that is Ditto.
    """
    tilts = [(tau, lam) for tau, lam in product(data_settings["tau"], data_settings["lam"]) if tau or lam]
    paper = (data_settings["paper"]["tau"], data_settings["paper"]["lam"])
    return dict(
        [fedavg(), *(ditto(ditto_mu) for ditto_mu in _ditto_mus(data_settings, mu))]
        + [fedtilt(tau, lam, mu) for tau, lam in dict.fromkeys([*tilts, paper])]
    )


def _ditto_mus(data_settings: Mapping[str, Any], mu: float) -> list[float]:
    return list(dict.fromkeys([*data_settings["ditto_mu"], mu]))


def describe_grid(data_settings: Mapping[str, Any], mu: float) -> str:
    """The settings of a data set in one line."""
    tilts = f"tau {join_numbers(data_settings['tau'])} × lam {join_numbers(data_settings['lam'])}"
    if 0 in data_settings["tau"] and 0 in data_settings["lam"]:
        tilts += " without tau = lam = 0"
    tau, lam = data_settings["paper"]["tau"], data_settings["paper"]["lam"]
    if tau not in data_settings["tau"] or lam not in data_settings["lam"]:
        tilts += f", and tau {tau:g}, lam {lam:g}"
    return f"FedAvg; Ditto mu {join_numbers(_ditto_mus(data_settings, mu))}; FedTilt mu {mu:g}, {tilts}"


def join_numbers(values: Iterable[float]) -> str:
    """Numbers in a list.

    >>> join_numbers([0.0, 0.1, 10.0])
    '0, 0.1, 10'
    """
    return ", ".join(f"{value:g}" for value in values)


# -- the chapter -------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Results, reference: tuple[Experiment, Results] | None = None) -> Chapter:
    """Our table with the paper's numbers, w and v separately, the validated settings, learning curves, verdicts.

    Args:
        experiment: A comparison.
        results: Its results, by case.
        reference: The comparison on clean data and its results, for claims that compare with it.
    """
    clean = compare_datasets(*reference) if reference else {}
    comparisons = compare_datasets(experiment, results)
    measured = {data: comparison for data, comparison in comparisons.items() if comparison.seeds}
    parts: list[Part] = []
    if measured:
        parts += [_main_table(experiment, measured), _difference_table(measured)]
        parts += [_model_table(measured), _choice_table(experiment, measured)]
        parts += [_curves(experiment, comparison) for comparison in measured.values()]
    missing = [data for data in comparisons if data not in measured]
    if missing:
        parts.append(Text(markdown=f"Not measured yet: {', '.join(missing)}."))
    diverged = {name: why for comparison in comparisons.values() for name, why in comparison.diverged.items()}
    if diverged:
        parts.append(Text(markdown="Settings skipped because they diverged: " + "; ".join(diverged.values()) + "."))
    return Chapter(
        title=experiment.title,
        lead=_lead(experiment),
        parts=parts,
        verdicts=verdicts(experiment.claims, comparisons, clean),
    )


def _lead(experiment: Experiment) -> str:
    grids: dict[str, list[str]] = {}
    for data in experiment.settings["data"]:
        grids.setdefault(describe_grid(experiment.settings[data], experiment.settings["mu"]), []).append(data)
    lines = " ".join(f"{', '.join(names)}: {text}." for text, names in grids.items())
    return f"{experiment.about} Settings, fixed before these runs. {lines}"


def _main_table(experiment: Experiment, measured: Mapping[str, DatasetComparison]) -> Table:
    rows: list[list[str | float]] = []
    for data, comparison in measured.items():
        values = {row: _values(comparison, row) for row in ROWS if row in comparison.rows}
        leaders = {metric.key: comparison.best(values, metric) for metric in COMPARED_METRICS}
        for row, by_metric in values.items():
            published = experiment.published.get(data, {}).get(row, [])
            line = []
            for i, metric in enumerate(COMPARED_METRICS):
                text = format_mean_std(by_metric[metric.key])
                text = f"**{text}**" if row in leaders[metric.key] else text
                if i < len(published):
                    text += f"<br>{published[i]:.2f} ({format_difference(by_metric[metric.key], published[i])})"
                line.append(text)
            rows.append([data, comparison.titles[row], *line])
    counts = ", ".join(f"{data} {_seed_count(comparison)}" for data, comparison in measured.items())
    legend = " Second line: the paper’s value, and ours minus the paper’s." if experiment.published else ""
    return Table(
        caption=f"{experiment.title}: evaluated models (v where a method has personal models, else w), test data",
        columns=["data", "method", *TITLES.values()],
        rows=rows,
        notes=f"Mean ± standard deviation over seeds ({counts}), in % and points; for fairness, lower is fairer. Bold: "
        "the best of a data set, and what is not told apart from it." + legend,
    )


def _difference_table(measured: Mapping[str, DatasetComparison]) -> Table:
    rows = []
    for data, comparison in measured.items():
        cells = []
        for metric in COMPARED_METRICS:
            found = comparison.difference("fedtilt-validated", "ditto-validated", metric)
            cells.append("" if found is None else difference_cell(found.verdict))
        rows.append([data, *cells])
    return Table(
        caption="FedTilt (validated) against Ditto (validated): how much better",
        columns=["data", *TITLES.values()],
        rows=rows,
        notes="Mean difference in points, positive where FedTilt is better (more accurate, or a smaller spread), with "
        f"its 95 % interval; bold where that does not contain 0. {HOW_COMPARED}",
    )


def difference_cell(verdict: Verdict, mark: str = "") -> str:
    """A difference, bold if its interval does not contain 0, and the interval below it.

    >>> difference_cell(Verdict(2.0, -0.48, 4.48, 0.07)), difference_cell(Verdict(1.0, 0.5, 1.5, 0.001), mark=" ★")
    ('+2.00<br>−0.48 to +4.48', '**+1.00** ★<br>+0.50 to +1.50')
    """
    mean, _, interval = format_interval(verdict).partition(" ")
    text = (f"**{mean}**" if verdict.sign() else mean) + mark
    return f"{text}<br>{interval.strip('()')}" if interval else text


def _values(comparison: DatasetComparison, row: str, view: str = "evaluated") -> dict[str, SeedValues]:
    by_metric = {metric.key: comparison.values(row, metric.key, view) for metric in COMPARED_METRICS}
    return {key: values for key, values in by_metric.items() if values is not None}


def _model_table(measured: Mapping[str, DatasetComparison]) -> Table:
    rows = []
    for data, comparison in measured.items():
        for row in ROWS:
            for view, letter in (("shared", "w"), ("personal", "v")):
                values = _values(comparison, row, view)
                if values:
                    texts = [format_mean_std(values[metric.key]) for metric in COMPARED_METRICS]
                    rows.append([data, comparison.titles[row], letter, *texts])
    return Table(
        caption="Shared (w) and personal (v) models separately",
        columns=["data", "method", "model", *TITLES.values()],
        rows=rows,
        notes="A client that was never selected has no v and is evaluated with w.",
        folded=True,
    )


def _choice_table(experiment: Experiment, measured: Mapping[str, DatasetComparison]) -> Table:
    rows, at_edge = [], []
    for data, comparison in measured.items():
        mus = sorted({*experiment.settings[data]["ditto_mu"], experiment.settings["mu"]})
        for row, counts in comparison.choices.items():
            choices = "; ".join(f"{_setting_text(name)} ({count})" for name, count in counts.most_common())
            rows.append([data, comparison.titles[row], choices])
            if row == "ditto-validated" and set(counts) <= {ditto(mu)[0] for mu in (mus[0], mus[-1])}:
                at_edge.append(data)
    edge = (
        f" Always at an edge of Ditto’s grid, so a wider grid might be better: {', '.join(at_edge)}." if at_edge else ""
    )
    return Table(
        caption="Settings chosen on validation data, and by how many seeds",
        columns=["data", "method", "settings"],
        rows=rows,
        notes="Per seed, the highest accuracy (mean over clients) on validation data: "
        f"{experiment.settings['clients']['validation']:.0%} of every client’s training samples, set aside without "
        f"outliers; ties go to the lower client fairness. All rows train without these samples.{edge}",
    )


def _setting_text(name: str) -> str:
    return name.partition(" ")[2].replace("=", " ").replace(" lam", ", lam")


def _seed_count(comparison: DatasetComparison) -> str:
    count = len(comparison.seeds)
    return "1 seed" if count == 1 else f"{count} seeds"


def _curves(experiment: Experiment, comparison: DatasetComparison) -> CaptionedFigure:
    lines = {
        row: [SeedValues(point) for point in zip(*(result["curve"] for result in by_seed.values()), strict=True)]
        for row, by_seed in comparison.rows.items()
    }
    seeds = ", mean over seeds; bands are one standard deviation" if len(comparison.seeds) > 1 else ", one seed"
    return CaptionedFigure(
        name=f"{experiment.name}-{comparison.data}-curves",
        caption=f"{comparison.data}, {comparison.condition}: test accuracy over rounds of the evaluated models{seeds}",
        figure=plots.learning_curves(comparison.rounds, lines, comparison.titles),
    )
