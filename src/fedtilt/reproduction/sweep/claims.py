"""A sweep's panels, one per data set, condition and clients a round, and how they decide on what the paper says."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from fedtilt.reproduction.chapter import Holds, Verdict, verdict_on
from fedtilt.reproduction.comparison.standings import METRICS, TITLES
from fedtilt.reproduction.experiment import Claim
from fedtilt.reproduction.train_grid import evaluated

SHOWN = METRICS[:3]
WITHIN = 2.0  # points of accuracy below the best, beyond which fairness is no merit: a collapsed model is fair

Tilts = tuple[float, float]  # tau, lam


class Panel(NamedTuple):
    """One grid of tilts: the metrics of the judged models, mean over seeds."""

    data: str
    condition: str
    clients: int  # a round
    seeds: int
    grid: dict[Tilts, dict[str, float]]

    def best(self, key: str) -> Tilts:
        """The tilts that are best on a metric, among those whose accuracy is near the best."""
        top = max(metrics["accuracy"] for metrics in self.grid.values())
        near = {tilts: m for tilts, m in self.grid.items() if m["accuracy"] >= top - WITHIN}
        sign = -1 if key == "accuracy" else 1
        return min(near, key=lambda tilts: sign * near[tilts][key])

    def __str__(self) -> str:
        return f"{self.data} {self.condition} {self.clients}"


def panels(results: Mapping[str, Mapping[str, Any]]) -> list[Panel]:
    """The panels that were measured."""
    by_panel: dict[str, list[Mapping[str, Any]]] = {}
    for cell, result in results.items():
        by_panel.setdefault(cell.rpartition("-seed-")[0], []).append(result)
    found = []
    for name, runs in by_panel.items():
        data, condition, clients = name.rsplit("-", 2)
        grid = {}
        for method, setting in runs[0]["settings"].items():
            seen = [evaluated(run["methods"][method]) for run in runs if method in run["methods"]]
            if seen:
                grid[setting["tau"], setting["lam"]] = {m.key: fmean(s[m.key] for s in seen) for m in METRICS}
        found.append(Panel(data, condition, int(clients), len(runs), grid))
    return found


# -- verdicts ----------------------------------------------------------------------------------------------------------


def verdicts(claims: tuple[Claim, ...], found: Sequence[Panel]) -> list[Verdict]:
    """A verdict on every claim."""
    told = []
    for claim in claims:
        asked = [panel for panel in found if _asked(panel, claim.check)]
        holds, numbers = RULES[claim.rule](claim.check, asked, found) if claim.rule and asked else ("not measured", "")
        if holds != "not measured" and sum(panel.seeds for panel in asked) == 1:
            holds = "one seed"  # one panel of one seed: no claim is decided by it
        told.append(verdict_on(claim, holds, numbers))
    return told


def _asked(panel: Panel, check: Mapping[str, Any]) -> bool:
    mine = {"data": panel.data, "condition": panel.condition, "clients": panel.clients}
    return all(value in check.get(key, [value]) for key, value in mine.items())


def _best_at(check: Mapping[str, Any], asked: Sequence[Panel], _: Sequence[Panel]) -> tuple[Holds, str]:
    """The best tilts of a panel are among those named, more often than tilts drawn at random from its grid would be."""
    hits: list[bool] = []
    by_chance = 0.0
    by_data: dict[str, list[bool]] = {}
    for panel in asked:
        metrics = [m for m in SHOWN if m.key in check.get("metrics", TITLES)]
        own = [_named(panel.best(metric.key), check) for metric in metrics]
        hits += own
        by_data.setdefault(panel.data, []).extend(own)
        by_chance += len(metrics) * fmean(_named(tilts, check) for tilts in panel.grid)
    holds = _share(hits, most=check.get("most", False))
    if not all(hits) and sum(hits) <= by_chance:
        holds = "does not hold"
    winners = "; ".join(f"{panel} tau {tau:g}, lam {lam:g}" for panel in asked for tau, lam in [panel.best("accuracy")])
    among = "; ".join(f"{data} {sum(own)} of {len(own)}" for data, own in by_data.items()) if len(by_data) > 1 else ""
    return holds, (
        f"So it is in {sum(hits)} of {len(hits)} cases (panels × metrics{among and f': {among}'}); by chance, it would "
        f"be in {by_chance:.1f}. "
        f"Most accurate, by panel (data, condition, clients a round): {winners}."
    )


def _named(tilts: Tilts, check: Mapping[str, Any]) -> bool:
    """Whether tilts have the signs (or values) that a claim names; with `either`, one of the two suffices."""
    fits = [_fits(value, check[key]) for key, value in zip(("tau", "lam"), tilts, strict=True) if key in check]
    return any(fits) if check.get("either") else all(fits)


def _fits(value: float, wanted: str | list[float]) -> bool:
    if isinstance(wanted, list):
        return value in wanted
    return value > 0 if wanted == "positive" else value < 0


def _unharmed(check: Mapping[str, Any], asked: Sequence[Panel], found: Sequence[Panel]) -> tuple[Holds, str]:
    """The best accuracy is at most `points` below that on clean data."""
    clean = {(p.data, p.clients): _top(p) for p in found if p.condition == "clean"}
    lost = {str(p): clean[p.data, p.clients] - _top(p) for p in asked if (p.data, p.clients) in clean}
    told = f"Points of accuracy lost against clean data, at most {check['points']:g} asked, best tilts of each"
    return _share([points <= check["points"] for points in lost.values()]), _listed(f"{told}, by clients a round", lost)


def _top(panel: Panel) -> float:
    return max(metrics["accuracy"] for metrics in panel.grid.values())


def _agree(check: Mapping[str, Any], asked: Sequence[Panel], _: Sequence[Panel]) -> tuple[Holds, str]:
    """The settings rank alike by accuracy whatever the number of clients a round: Spearman's rho is at least `rho`."""
    pairs: dict[tuple[str, str], list[Panel]] = {}
    for panel in asked:
        pairs.setdefault((panel.data, panel.condition), []).append(panel)
    rho, close = {}, {}
    for (data, condition), both in pairs.items():
        if len(both) == 2:
            common = [tilts for tilts in both[0].grid if tilts in both[1].grid]
            ranks = [_ranks([panel.grid[tilts]["accuracy"] for tilts in common]) for panel in both]
            rho[f"{data}, {condition}"] = _correlation(*ranks)
            close[f"{data}, {condition}"] = max(_upper_span(panel) for panel in both)
    apart = {name: close[name] for name, value in rho.items() if value < check["rho"]}
    return _share([value >= check["rho"] for value in rho.values()]), " ".join(
        filter(
            None,
            [
                _listed(
                    "Rank correlation of accuracy over the grid, 10 against 20 clients a round, at least "
                    f"{check['rho']:g} asked", rho
                ),
                _listed("Points that the better half of the settings spans where it is less", apart),
            ],
        )
    )  # fmt: skip


def _upper_span(panel: Panel) -> float:
    """How far the best half of the settings lies apart in accuracy."""
    ordered = sorted((m["accuracy"] for m in panel.grid.values()), reverse=True)
    return ordered[0] - ordered[(len(ordered) - 1) // 2]


def _together(check: Mapping[str, Any], asked: Sequence[Panel], _: Sequence[Panel]) -> tuple[Holds, str]:
    """Where one fairness is good, so is the other: Spearman's rho over settings near the best accuracy ≥ `rho`."""
    rho = {}
    for panel in asked:
        near = [m for m in panel.grid.values() if m["accuracy"] >= _top(panel) - WITHIN]
        if len(near) > 2:
            both = [_ranks([m[key] for m in near]) for key in ("client_fairness", "client_data_fairness_mean")]
            rho[str(panel)] = _correlation(*both)
    return _share([value >= check["rho"] for value in rho.values()], most=check.get("most", False)), _listed(
        f"Rank correlation of the two over settings near the best accuracy, at least {check['rho']:g} asked", rho
    )


def _share(hits: Sequence[bool], *, most: bool = False) -> Holds:
    """Holds where all agree, partly where some do; where a claim says most or often, a majority decides."""
    if not hits:
        return "not measured"
    if most:
        return "holds" if 2 * sum(hits) > len(hits) else "does not hold"
    return "holds" if all(hits) else "holds partly" if any(hits) else "does not hold"


def _listed(what: str, values: Mapping[str, float]) -> str:
    return f"{what} ({'; '.join(f'{name}: {value:.3f}' for name, value in values.items())})." if values else ""


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks, equal values sharing theirs.

    >>> _ranks([3.0, 1.0, 3.0])
    [1.5, 0.0, 1.5]
    """
    ordered = sorted(values)
    return [(2 * ordered.index(v) + ordered.count(v) - 1) / 2 for v in values]


def _correlation(a: Sequence[float], b: Sequence[float]) -> float:
    mean_a, mean_b = fmean(a), fmean(b)
    both = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    spread = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    return both / spread if spread else 0.0


RULES: dict[str, Callable[[Mapping[str, Any], Sequence[Panel], Sequence[Panel]], tuple[Holds, str]]] = {
    "best-at": _best_at,
    "unharmed": _unharmed,
    "agree": _agree,
    "together": _together,
}
