"""Comparison tables: FedAvg, Ditto and FedTilt on three data sets, with the paper's tilts and with validated ones."""

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from fedtilt.report.compare import Cell as Values
from fedtilt.report.compare import best
from fedtilt.report.tables import difference, number
from fedtilt.reproduction import plots
from fedtilt.reproduction.chapter import Chapter, Figure, Table, Text
from fedtilt.reproduction.comparison.claims import verdicts
from fedtilt.reproduction.comparison.standings import METRICS, PRINTED, ROWS, TITLES, Standing, standings
from fedtilt.reproduction.experiment import Cell, Experiment, OnProgress, Options, Results
from fedtilt.reproduction.train_grid import PARTS, Setting, ditto, fedavg, federation_settings, fedtilt, train_grid


def cells(experiment: Experiment, options: Options) -> list[Cell]:
    """One cell per data set and seed; every setting of every method is trained in it, all together."""
    settings, found = experiment.settings, []
    for name in settings["data"]:
        methods = candidates(settings[name], settings["mu"])
        federation = federation_settings(settings, name, settings["outliers"])
        for seed in range(options.seeds or settings[name].get("seeds") or settings["seeds"]):
            found.append(
                Cell(
                    name=f"{name}-seed-{seed}",
                    what=f"{name}, {told(settings['outliers'])}, seed {seed}: {len(methods)} settings, "
                    f"{federation['train']['rounds']} rounds",
                    settings=federation | {"seed": seed, "methods": methods},
                    needs=name,
                    parts=PARTS,
                    grid=grid(settings[name], settings["mu"]),
                )
            )
    return found


def measure(cell: Cell, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train one cell's settings."""
    return train_grid(cell.settings, options, on_progress)


def candidates(own: Mapping[str, Any], mu: float) -> dict[str, Setting]:
    """Every setting that a data set's grids name, and the paper's where it is not among them.

    tau = lam = 0 is left out: that is Ditto.
    """
    tilts = [(tau, lam) for tau, lam in product(own["tau"], own["lam"]) if tau or lam]
    paper = (own["paper"]["tau"], own["paper"]["lam"])
    pulls = dict.fromkeys([*own["ditto_mu"], mu])
    return dict(
        [fedavg(), *(ditto(pull) for pull in pulls)]
        + [fedtilt(tau, lam, mu) for tau, lam in dict.fromkeys([*tilts, paper])]
    )


def grid(own: Mapping[str, Any], mu: float) -> str:
    """The settings of a data set in one line."""
    pulls = numbers(dict.fromkeys([*own["ditto_mu"], mu]))
    tilts = f"tau {numbers(own['tau'])} × lam {numbers(own['lam'])}"
    if 0 in own["tau"] and 0 in own["lam"]:
        tilts += " without tau = lam = 0"
    tau, lam = own["paper"]["tau"], own["paper"]["lam"]
    if tau not in own["tau"] or lam not in own["lam"]:
        tilts += f", and tau {tau:g}, lam {lam:g}"
    return f"FedAvg; Ditto mu {pulls}; FedTilt mu {mu:g}, {tilts}"


def numbers(values: Iterable[float]) -> str:
    """Numbers in a list.

    >>> numbers([0.0, 0.1, 10.0])
    '0, 0.1, 10'
    """
    return ", ".join(f"{value:g}" for value in values)


def told(outliers: str) -> str:
    """The condition in words.

    >>> told("none"), told("flips")
    ('clean', 'flips')
    """
    return "clean" if outliers == "none" else outliers


# -- the chapter -------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Results, clean: tuple[Experiment, Results] | None = None) -> Chapter:
    """The table beside the paper's, w and v apart, what validation chose, learning curves, verdicts."""
    before = standings(*clean) if clean else {}
    found = standings(experiment, results)
    measured = {data: standing for data, standing in found.items() if standing.seeds}
    parts: list[Text | Table | Figure] = []
    if measured:
        parts += [_main(experiment, measured), _both(measured), _picks(experiment, measured)]
        parts += [_curves(experiment, standing) for standing in measured.values()]
    late = [data for data in found if data not in measured]
    if late:
        parts.append(Text(markdown=f"Not measured yet: {', '.join(late)}."))
    diverged = {name: why for standing in found.values() for name, why in standing.diverged.items()}
    if diverged:
        parts.append(Text(markdown="Settings that diverged and were left out: " + "; ".join(diverged.values()) + "."))
    return Chapter(
        title=experiment.title, lead=_lead(experiment), parts=parts, verdicts=verdicts(experiment.claims, found, before)
    )


def _lead(experiment: Experiment) -> str:
    grids: dict[str, list[str]] = {}
    for data in experiment.settings["data"]:
        grids.setdefault(grid(experiment.settings[data], experiment.settings["mu"]), []).append(data)
    listed = " ".join(f"{', '.join(names)}: {text}." for text, names in grids.items())
    return f"{experiment.about} Settings, fixed before these runs. {listed}"


def _main(experiment: Experiment, measured: Mapping[str, Standing]) -> Table:
    rows: list[list[str | float]] = []
    for data, standing in measured.items():
        values = {row: _values(standing, row) for row in ROWS if row in standing.rows}
        leaders = {metric.key: best(values, metric) for metric in METRICS}
        for row, cells in values.items():
            printed = experiment.published.get(data, {}).get(PRINTED.get(row, ""), [])
            line = []
            for i, metric in enumerate(METRICS):
                text = number(cells[metric.key])
                text = f"**{text}**" if row in leaders[metric.key] else text
                if printed:
                    text += f"<br>{printed[i]:.2f} ({difference(cells[metric.key], printed[i])})"
                line.append(text)
            rows.append([data, standing.titles[row], *line])
    counts = ", ".join(f"{data} {_seeds(standing)}" for data, standing in measured.items())
    beside = " Below ours: the paper’s figure and ours minus it." if experiment.published else ""
    return Table(
        caption=f"{experiment.title}: the models in use (v where a method has personal models, else w), test data",
        columns=["data", "method", *TITLES.values()],
        rows=rows,
        notes=f"Mean ± standard deviation over seeds ({counts}), in % and points; for fairness, lower is fairer. Bold: "
        f"the best of a data set, and what ties with it (a paired difference of at most one standard error).{beside}",
    )


def _values(standing: Standing, row: str, view: str = "evaluated") -> dict[str, Values]:
    found = {metric.key: standing.values(row, metric.key, view) for metric in METRICS}
    return {key: values for key, values in found.items() if values is not None}


def _both(measured: Mapping[str, Standing]) -> Table:
    rows = []
    for data, standing in measured.items():
        for row in ROWS:
            for view, letter in (("shared", "w"), ("personal", "v")):
                values = _values(standing, row, view)
                if values:
                    shown = [number(values[metric.key]) for metric in METRICS]
                    rows.append([data, standing.titles[row], letter, *shown])
    return Table(
        caption="Shared (w) and personal (v) models apart",
        columns=["data", "method", "model", *TITLES.values()],
        rows=rows,
        notes="A client that never took part has no v and is judged on w.",
        folded=True,
    )


def _picks(experiment: Experiment, measured: Mapping[str, Standing]) -> Table:
    rows, at_end = [], []
    for data, standing in measured.items():
        pulls = sorted({*experiment.settings[data]["ditto_mu"], experiment.settings["mu"]})
        for row, picked in standing.picks.items():
            often = "; ".join(f"{_tilts(name)} ({count})" for name, count in picked.most_common())
            rows.append([data, standing.titles[row], often])
            if row == "ditto-validated" and set(picked) <= {ditto(mu)[0] for mu in (pulls[0], pulls[-1])}:
                at_end.append(data)
    edge = f" Always at an end of Ditto’s grid, which a wider one might better: {', '.join(at_end)}." if at_end else ""
    return Table(
        caption="What validation chose, and for how many seeds",
        columns=["data", "method", "settings"],
        rows=rows,
        notes="Per seed, the highest accuracy (mean over clients) on validation data, "
        f"{experiment.settings['clients']['validation']:.0%} of every client’s training samples, set aside without "
        f"outliers; ties go to the lower client fairness. All rows train without these samples.{edge}",
    )


def _tilts(name: str) -> str:
    return name.partition(" ")[2].replace("=", " ").replace(" lam", ", lam")


def _seeds(standing: Standing) -> str:
    count = len(standing.seeds)
    return "1 seed" if count == 1 else f"{count} seeds"


def _curves(experiment: Experiment, standing: Standing) -> Figure:
    lines = {
        row: [Values(point) for point in zip(*(result["curve"] for result in by_seed.values()), strict=True)]
        for row, by_seed in standing.rows.items()
    }
    band = ", mean over seeds; bands are one standard deviation" if len(standing.seeds) > 1 else ", one seed"
    return Figure(
        name=f"{experiment.name}-{standing.data}-curves",
        caption=f"{standing.data}, {told(experiment.settings['outliers'])}: test accuracy over rounds of the models in "
        f"use{band}",
        figure=plots.curves(standing.rounds, lines, standing.titles),
    )
