"""Sweeps: accuracy and fairness against one tilt while the other is fixed, for 10 and 20 clients per round."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from reproduction import plots
from reproduction.chapter import CaptionedFigure, Chapter, Holds, Part, Table, Text, Verdict, verdict_on
from reproduction.experiment import Case, Claim, Experiment, Options, Results
from reproduction.experiments.comparison import join_numbers
from reproduction.experiments.paired import COMPARED_METRICS, TITLES, condition_name
from reproduction.training import evaluated, federation_settings, fedtilt, grid_case, measure_grid

PANEL_METRICS = COMPARED_METRICS[:3]
MAX_LOSS = 2.0  # points of accuracy below the best; beyond it fairness does not count: a collapsed model is fair

TauLam = tuple[float, float]


class Panel(NamedTuple):
    """A grid of tilts with the metrics of the evaluated models, mean over seeds."""

    data: str
    condition: str
    clients: int  # per round
    seeds: int
    grid: dict[TauLam, dict[str, float]]

    @property
    def best_accuracy(self) -> float:
        """The highest accuracy of the grid."""
        return max(metrics["accuracy"] for metrics in self.grid.values())

    def near_best(self) -> dict[TauLam, dict[str, float]]:
        """The settings whose accuracy is near the best."""
        lowest = self.best_accuracy - MAX_LOSS
        return {tilts: metrics for tilts, metrics in self.grid.items() if metrics["accuracy"] >= lowest}

    def best(self, key: str) -> TauLam:
        """The tilts that are best on a metric, among those near the best accuracy."""
        near = self.near_best()
        sign = -1 if key == "accuracy" else 1
        return min(near, key=lambda tilts: sign * near[tilts][key])

    def __str__(self) -> str:
        return f"{self.data} {self.condition} {self.clients}"


def panels(results: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    """The panels that have results."""
    by_panel: dict[str, list[Mapping[str, Any]]] = {}
    for case, result in results.items():
        by_panel.setdefault(case.rpartition("-seed-")[0], []).append(result)
    measured = []
    for name, runs in by_panel.items():
        data, condition, clients = name.rsplit("-", 2)
        grid = {}
        for method, setting in runs[0]["settings"].items():
            by_seed = [evaluated(run["methods"][method]) for run in runs if method in run["methods"]]
            if by_seed:
                means = {m.key: fmean(metrics[m.key] for metrics in by_seed) for m in COMPARED_METRICS}
                grid[setting["tau"], setting["lam"]] = means
        measured.append(Panel(data, condition, int(clients), len(runs), grid))
    return measured


# -- verdicts ----------------------------------------------------------------------------------------------------------


def verdicts(claims: tuple[Claim, ...], measured: Sequence[Panel]) -> list[Verdict]:
    """A verdict on every claim."""
    result = []
    for claim in claims:
        selected = [panel for panel in measured if _matches(panel, claim.check)]
        holds: Holds = "not measured"
        numbers = ""
        if claim.rule and selected:
            holds, numbers = CLAIM_CHECKS[claim.rule](claim.check, selected, measured)
        if holds != "not measured" and sum(panel.seeds for panel in selected) == 1:
            holds = "one seed"  # one panel of one seed decides no claim
        result.append(verdict_on(claim, holds, numbers))
    return result


def _matches(panel: Panel, check: Mapping[str, Any]) -> bool:
    values = {"data": panel.data, "condition": panel.condition, "clients": panel.clients}
    return all(value in check.get(key, [value]) for key, value in values.items())


def _best_at(check: Mapping[str, Any], selected: Sequence[Panel], _: Sequence[Panel]) -> tuple[Holds, str]:
    """The best tilts of a panel are among those claimed, more often than a random setting of its grid is."""
    hits: list[bool] = []
    expected = 0.0  # hits of random settings
    by_data: dict[str, list[bool]] = {}
    for panel in selected:
        metrics = [m for m in PANEL_METRICS if m.key in check.get("metrics", TITLES)]
        panel_hits = [_is_claimed(panel.best(metric.key), check) for metric in metrics]
        hits += panel_hits
        by_data.setdefault(panel.data, []).extend(panel_hits)
        expected += len(metrics) * fmean(_is_claimed(tilts, check) for tilts in panel.grid)
    holds = _share(hits, most=check.get("most", False))
    if not all(hits) and sum(hits) <= expected:
        holds = "does not hold"
    winners = "; ".join(
        f"{panel} tau {tau:g}, lam {lam:g}" for panel in selected for tau, lam in [panel.best("accuracy")]
    )
    shares = ""
    if len(by_data) > 1:
        shares = ": " + "; ".join(f"{data} {sum(part)} of {len(part)}" for data, part in by_data.items())
    return holds, (
        f"True in {sum(hits)} of {len(hits)} cases (panels × metrics{shares}); expected by chance: "
        f"{expected:.1f}. Most accurate tilts, by panel (data, condition, clients per round): {winners}."
    )


def _is_claimed(tilts: TauLam, check: Mapping[str, Any]) -> bool:
    """Whether tilts have the signs (or values) that a claim names; with `either`, one of the two suffices."""
    fits = [_fits(value, check[key]) for key, value in zip(("tau", "lam"), tilts, strict=True) if key in check]
    return any(fits) if check.get("either") else all(fits)


def _fits(value: float, claimed: str | list[float]) -> bool:
    if isinstance(claimed, list):
        return value in claimed
    return value > 0 if claimed == "positive" else value < 0


def _unharmed(check: Mapping[str, Any], selected: Sequence[Panel], measured: Sequence[Panel]) -> tuple[Holds, str]:
    """The best accuracy is at most `points` below that on clean data."""
    clean = {(p.data, p.clients): p.best_accuracy for p in measured if p.condition == "clean"}
    losses = {
        str(p): clean[p.data, p.clients] - p.best_accuracy for p in selected if (p.data, p.clients) in clean
    }  # fmt: skip
    what = (
        f"Points of accuracy lost against clean data, at most {check['points']:g} required, best tilts of each, by "
        "clients per round"
    )
    return _share([points <= check["points"] for points in losses.values()]), _sentence(what, losses)


def _agree(check: Mapping[str, Any], selected: Sequence[Panel], _: Sequence[Panel]) -> tuple[Holds, str]:
    """Settings rank alike by accuracy for both numbers of clients per round: Spearman's rho is at least `rho`."""
    pairs: dict[tuple[str, str], list[Panel]] = {}
    for panel in selected:
        pairs.setdefault((panel.data, panel.condition), []).append(panel)
    rho, spans = {}, {}
    for (data, condition), pair in pairs.items():
        if len(pair) == 2:
            common = [tilts for tilts in pair[0].grid if tilts in pair[1].grid]
            first, second = ([panel.grid[tilts]["accuracy"] for tilts in common] for panel in pair)
            rho[f"{data}, {condition}"] = rank_correlation(first, second)
            spans[f"{data}, {condition}"] = max(_upper_span(panel) for panel in pair)
    low_spans = {name: spans[name] for name, value in rho.items() if value < check["rho"]}
    sentences = [
        _sentence(
            "Rank correlation of accuracy over the grid, 10 against 20 clients per round, at least "
            f"{check['rho']:g} required", rho
        ),
        _sentence("Where it is lower, range of accuracy in the better half of the settings, in points", low_spans),
    ]  # fmt: skip
    return _share([value >= check["rho"] for value in rho.values()]), " ".join(filter(None, sentences))


def _upper_span(panel: Panel) -> float:
    """Range of accuracy in the better half of the settings."""
    ordered = sorted((m["accuracy"] for m in panel.grid.values()), reverse=True)
    return ordered[0] - ordered[(len(ordered) - 1) // 2]


def _together(check: Mapping[str, Any], selected: Sequence[Panel], _: Sequence[Panel]) -> tuple[Holds, str]:
    """Both kinds of fairness improve together: Spearman's rho over settings near the best accuracy ≥ `rho`."""
    rho = {}
    for panel in selected:
        near = panel.near_best().values()
        if len(near) > 2:
            client, client_data = ([m[key] for m in near] for key in ("client_fairness", "client_data_fairness_mean"))
            rho[str(panel)] = rank_correlation(client, client_data)
    return _share([value >= check["rho"] for value in rho.values()], most=check.get("most", False)), _sentence(
        f"Rank correlation of the two over settings near the best accuracy, at least {check['rho']:g} required", rho
    )


def _share(hits: Sequence[bool], *, most: bool = False) -> Holds:
    """Holds if all are true, partly if some are; where a claim says most or often, a majority decides."""
    if not hits:
        return "not measured"
    if most:
        return "holds" if 2 * sum(hits) > len(hits) else "does not hold"
    return "holds" if all(hits) else "holds partly" if any(hits) else "does not hold"


def _sentence(what: str, values: Mapping[str, float]) -> str:
    return f"{what} ({'; '.join(f'{name}: {value:.3f}' for name, value in values.items())})." if values else ""


CLAIM_CHECKS: dict[str, Callable[[Mapping[str, Any], Sequence[Panel], Sequence[Panel]], tuple[Holds, str]]] = {
    "best-at": _best_at,
    "unharmed": _unharmed,
    "agree": _agree,
    "together": _together,
}

measure = measure_grid


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
        caption="The tilts with the extreme value of each metric in every panel, and all their metrics",
        columns=["data", "condition", "clients per round", "extreme in", "tau", "lam", *TITLES.values()],
        rows=rows,
        notes="On test data, like the paper’s figures, and without a test of differences. Fairness is compared among "
        f"settings whose accuracy is within {MAX_LOSS:g} points of the best: with a strongly negative tau a client’s "
        "model predicts only one of its "
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


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Spearman's rho; 0 where one of the two is constant.

    >>> round(rank_correlation([3.0, 1.0, 3.0], [5.0, 2.0, 9.0]), 3), rank_correlation([1.0, 1.0], [1.0, 2.0])
    (0.866, 0.0)
    """
    from scipy.stats import spearmanr  # slow to import

    if len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return float(spearmanr(a, b).statistic)
