"""Sweeps: accuracy and fairness against one tilt while the other is fixed, for 10 and 20 clients per round."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from reproduction import plots
from reproduction.chapter import CaptionedFigure, Chapter, Part, Table, Text
from reproduction.comparison.dataset_comparison import COMPARED_METRICS, TITLES, condition_name
from reproduction.comparison.experiment import join_numbers
from reproduction.experiment import Case, Experiment, OnProgress, Options, Results
from reproduction.sweep.claims import MAX_LOSS, PANEL_METRICS, Panel, panels, verdicts
from reproduction.train_grid import federation_settings, fedtilt, grid_case, train_grid


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set, condition, number of clients per round and seed; it trains the whole grid together."""
    settings, result = experiment.settings, []
    for name, outliers, participation in product(settings["data"], settings["outliers"], settings["participation"]):
        data_settings, condition = settings[name], condition_name(outliers)
        tilts = product(data_settings["tau"], data_settings["lam"])
        methods = dict(fedtilt(tau, lam, settings["mu"]) for tau, lam in tilts)
        federation = federation_settings(settings, name, outliers, participation=participation)
        clients = round(participation * federation["clients"]["count"])
        case, grid = f"{name}-{condition}-{clients}", _describe_grid(experiment, name)
        what = f"{name}, {condition}, {clients} clients per round"
        for seed in range(options.seeds or data_settings.get("seeds") or settings["seeds"]):
            result.append(grid_case(case, federation, seed, methods, what=what, grid=grid))
    return result


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train the grid of one case."""
    return train_grid(case.settings, options, on_progress)


def _describe_grid(experiment: Experiment, data: str) -> str:
    tau, lam = (join_numbers(experiment.settings[data][key]) for key in ("tau", "lam"))
    return f"FedTilt mu {experiment.settings['mu']:g}, tau {tau} × lam {lam}"


# -- the chapter -------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """The best tilts of every panel, metrics against lam for every tau and against tau for every lam, verdicts."""
    settings = experiment.settings
    measured = panels(results)
    parts: list[Part] = []
    if measured:
        parts.append(_best_tilts_table(measured))
    missing = []
    for data, outliers in product(settings["data"], settings["outliers"]):
        condition = condition_name(outliers)
        matching = [panel for panel in measured if (panel.data, panel.condition) == (data, condition)]
        if matching:
            parts += [_figure(experiment, matching, "lam", "tau"), _figure(experiment, matching, "tau", "lam")]
        count = settings[data].get("count", settings["clients"]["count"])
        planned = {round(participation * count) for participation in settings["participation"]}
        late = planned - {panel.clients for panel in matching}
        missing += [f"{data} {condition} with {clients} clients per round" for clients in sorted(late)]
    if missing:
        parts.append(Text(markdown=f"Not measured yet: {'; '.join(missing)}."))
    grids = " ".join(f"{data}: {_describe_grid(experiment, data)}." for data in settings["data"])
    return Chapter(
        title=experiment.title,
        lead=f"{experiment.about} Settings, fixed before these runs. {grids}",
        parts=parts,
        verdicts=verdicts(experiment.claims, measured),
    )


def _best_tilts_table(measured: Sequence[Panel]) -> Table:
    rows: list[list[str | float]] = []
    for panel in measured:
        for metric in PANEL_METRICS:
            tau, lam = panel.best(metric.key)
            metrics = panel.grid[tau, lam]
            rows.append(
                [panel.data, panel.condition, str(panel.clients), TITLES[metric.key], f"{tau:g}", f"{lam:g}"]
                + [metrics[m.key] for m in COMPARED_METRICS]
            )
    return Table(
        caption="The best tilts of every panel, and all their metrics",
        columns=["data", "condition", "clients per round", "best on", "tau", "lam", *TITLES.values()],
        rows=rows,
        notes="On test data, like the paper’s figures. Fairness is compared among settings whose accuracy is within "
        f"{MAX_LOSS:g} points of the best: with a strongly negative tau a client’s model predicts only one of its "
        "classes, which looks fair.",
    )


def _figure(experiment: Experiment, matching: Sequence[Panel], across: str, along: str) -> CaptionedFigure:
    """Metrics (columns) by clients per round (rows) against one tilt, `across`, a line for every value of the other."""
    settings = experiment.settings[matching[0].data]
    matching = sorted(matching, key=lambda panel: panel.clients)

    def line(panel: Panel, key: str, fixed: float) -> list[float | None]:
        settings_on_line = [(v, fixed) if across == "tau" else (fixed, v) for v in settings[across]]
        return [panel.grid[tilts][key] if tilts in panel.grid else None for tilts in settings_on_line]

    rows = {
        f"{panel.clients} clients per round": {
            TITLES[m.key]: {fixed: line(panel, m.key, fixed) for fixed in settings[along]} for m in PANEL_METRICS
        }
        for panel in matching
    }
    data, condition, seeds = matching[0].data, matching[0].condition, matching[0].seeds
    return CaptionedFigure(
        name=f"tilts-{data}-{condition}-{across}",
        caption=f"{data}, {condition}: against {across}, a line for every {along}"
        + (f", mean of {seeds} seeds" if seeds > 1 else ", one seed"),
        figure=plots.metrics_against_tilt(settings[across], rows, across=across, along=along),
    )
