"""Sweeps: accuracy and fairness against one tilt while the other stands, for 10 and 20 clients a round."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from fedtilt.reproduction import plots
from fedtilt.reproduction.chapter import Chapter, Figure, Table, Text
from fedtilt.reproduction.comparison.experiment import numbers, told
from fedtilt.reproduction.comparison.standings import METRICS, TITLES
from fedtilt.reproduction.experiment import Cell, Experiment, OnProgress, Options
from fedtilt.reproduction.sweep.claims import SHOWN, WITHIN, Panel, panels, verdicts
from fedtilt.reproduction.train_grid import PARTS, federation_settings, fedtilt, train_grid


def cells(experiment: Experiment, options: Options) -> list[Cell]:
    """One cell per data set, condition, clients a round and seed; the whole grid is trained in it, all together."""
    settings, found = experiment.settings, []
    for name, outliers, share in product(settings["data"], settings["outliers"], settings["participation"]):
        own = settings[name]
        methods = dict(fedtilt(tau, lam, settings["mu"]) for tau, lam in product(own["tau"], own["lam"]))
        federation = federation_settings(settings, name, outliers, participation=share)
        clients = round(share * federation["clients"]["count"])
        for seed in range(options.seeds or own.get("seeds") or settings["seeds"]):
            found.append(
                Cell(
                    name=f"{name}-{told(outliers)}-{clients}-seed-{seed}",
                    what=f"{name}, {told(outliers)}, {clients} clients a round, seed {seed}: {len(methods)} settings, "
                    f"{federation['train']['rounds']} rounds",
                    settings=federation | {"seed": seed, "methods": methods},
                    needs=name,
                    parts=PARTS,
                    grid=_grid(experiment, name),
                )
            )
    return found


def measure(cell: Cell, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train one cell's grid."""
    return train_grid(cell.settings, options, on_progress)


def _grid(experiment: Experiment, data: str) -> str:
    own = experiment.settings[data]
    return f"FedTilt mu {experiment.settings['mu']:g}, tau {numbers(own['tau'])} × lam {numbers(own['lam'])}"


# -- the chapter -------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: dict[str, dict[str, Any]]) -> Chapter:
    """Metrics against lam for every tau and the other way, the best tilts of every panel, verdicts."""
    settings = experiment.settings
    found = panels(results)
    parts: list[Text | Table | Figure] = []
    if found:
        parts.append(_best(found))
    late = []
    for data, outliers in product(settings["data"], settings["outliers"]):
        own = [panel for panel in found if (panel.data, panel.condition) == (data, told(outliers))]
        if own:
            parts += [_figure(experiment, own, "lam", "tau"), _figure(experiment, own, "tau", "lam")]
        count = settings[data].get("count", settings["clients"]["count"])
        missing = {round(share * count) for share in settings["participation"]} - {panel.clients for panel in own}
        late += [f"{data} {told(outliers)} with {clients} clients a round" for clients in sorted(missing)]
    if late:
        parts.append(Text(markdown=f"Not measured yet: {'; '.join(late)}."))
    grids = " ".join(f"{data}: {_grid(experiment, data)}." for data in settings["data"])
    return Chapter(
        title=experiment.title,
        lead=f"{experiment.about} Settings, fixed before these runs. {grids}",
        parts=parts,
        verdicts=verdicts(experiment.claims, found),
    )


def _best(found: Sequence[Panel]) -> Table:
    rows: list[list[str | float]] = []
    for panel in found:
        for metric in SHOWN:
            tau, lam = panel.best(metric.key)
            metrics = panel.grid[tau, lam]
            rows.append(
                [panel.data, panel.condition, str(panel.clients), TITLES[metric.key], f"{tau:g}", f"{lam:g}"]
                + [metrics[m.key] for m in METRICS]
            )
    return Table(
        caption="The best tilts of every panel, and all they come to",
        columns=["data", "condition", "clients a round", "best on", "tau", "lam", *TITLES.values()],
        rows=rows,
        notes="On test data, as the paper reads its figures. Fairness is compared among settings whose accuracy is "
        f"within {WITHIN:g} points of the best: a strongly negative tau puts clients on one of their classes, which "
        "looks fair.",
    )


def _figure(experiment: Experiment, own: Sequence[Panel], across: str, along: str) -> Figure:
    """Rows: clients a round; columns: metrics."""
    settings = experiment.settings[own[0].data]
    own = sorted(own, key=lambda panel: panel.clients)

    def line(panel: Panel, key: str, fixed: float) -> list[float | None]:
        places = [(v, fixed) if across == "tau" else (fixed, v) for v in settings[across]]
        return [panel.grid[place][key] if place in panel.grid else None for place in places]

    rows = {
        f"{panel.clients} clients a round": {
            TITLES[m.key]: {fixed: line(panel, m.key, fixed) for fixed in settings[along]} for m in SHOWN
        }
        for panel in own
    }
    seeds = own[0].seeds
    return Figure(
        name=f"tilts-{own[0].data}-{own[0].condition}-{across}",
        caption=f"{own[0].data}, {own[0].condition}: against {across}, a line for every {along}"
        + (f", mean of {seeds} seeds" if seeds > 1 else ", one seed"),
        figure=plots.against(settings[across], rows, across=across, along=along),
    )
