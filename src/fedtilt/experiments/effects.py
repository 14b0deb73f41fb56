"""The table of tilt signs, measured: every combination of signs, small and large, on clean and on bad data."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from fedtilt.experiments.chapter import Chapter, Figure, Holds, Table, Text, Verdict
from fedtilt.experiments.comparison import told
from fedtilt.experiments.experiment import Cell, Claim, Experiment, OnProgress, Options
from fedtilt.experiments.trial import Setting, federation_settings, trial

COLLAPSE = 20.0  # points of accuracy below (0, 0): a client has given up a class, and its spreads mean nothing
_SYMBOLS = {(True, True): "x", (False, True): "diamond", (True, False): "square", (False, False): "circle"}
_LOGARITHMIC = {"type": "log", "range": [-0.6, 1.95], "tickvals": [0.3, 1, 3, 10, 30]}
_LEAST = 0.1  # points: what a logarithmic axis shows of less
_MINUS = "−"
_COLORS = {  # by the signs of tau and lam
    (0, 0): "#7f858d", (1, 1): "#d55e00", (1, -1): "#1a7fc4", (-1, 1): "#9a7b00", (-1, -1): "#8c6bd1",
    (1, 0): "#c46a9c", (0, 1): "#c46a9c", (-1, 0): "#009e73", (0, -1): "#009e73",
}  # fmt: skip


class Tilts(NamedTuple):
    """One setting."""

    tau: float
    lam: float
    q: float

    @property
    def name(self) -> str:
        """As the tables have it."""
        if self.q:
            return f"q = {_signed(self.q)}"
        return f"tau = {_signed(self.tau)}, lam = {_signed(self.lam)}"

    @property
    def signs(self) -> tuple[int, int]:
        """The signs of tau and lam."""
        return _sign(self.tau), _sign(self.lam)


PLAIN = Tilts(0.0, 0.0, 0.0)


def grid(settings: Mapping[str, Any]) -> list[Tilts]:
    """(0, 0), every other combination of signs in both sizes, and the tilts of the server."""
    signs = [pair for pair in product((1, 0, -1), repeat=2) if pair != (0, 0)]
    sizes = (settings["small"], settings["large"])
    tilted = [Tilts(tau * size, lam * size, 0.0) for tau, lam in signs for size in sizes]
    return [PLAIN, *tilted, *(Tilts(0.0, 0.0, q) for q in settings["q"])]


def cells(experiment: Experiment, options: Options) -> list[Cell]:
    """One cell per data set, condition and seed; all settings are trained in it together."""
    settings, found = experiment.settings, []
    methods: dict[str, Setting] = {
        t.name: {"preset": "fedtilt", "tau": t.tau, "lam": t.lam, "q": t.q, "mu": settings["mu"]}
        for t in grid(settings)
    }
    further = settings["gpu_data"] if _on_gpu(options) else []
    for name, outliers in product([*settings["data"], *further], settings["outliers"]):
        federation = federation_settings(settings, name, outliers)
        for seed in range(options.seeds or settings["seeds"]):
            found.append(
                Cell(
                    name=f"{name}-{told(outliers)}-seed-{seed}",
                    what=f"{name}, {told(outliers)}, seed {seed}: {len(methods)} settings, "
                    f"{federation['train']['rounds']} rounds",
                    settings=federation | {"seed": seed, "methods": methods},
                    needs=name,
                )
            )
    return found


def _on_gpu(options: Options) -> bool:
    """Whether the one who asks has a GPU, or says so: on a CPU the larger data sets would take an hour."""
    return options.device.startswith("cuda") or (options.device == "auto" and torch.cuda.is_available())


def measure(cell: Cell, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train one cell's settings."""
    return trial(cell.settings, options, on_progress)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _signed(value: float) -> str:
    return f"{value:g}".replace("-", _MINUS)


# -- what is seen ------------------------------------------------------------------------------------------------------

Values = dict[str, dict[str, list[float]]]  # condition → setting → one value per seed


METRICS = {
    "accuracy": "accuracy (%)",
    "client_fairness": "client spread",
    "client_data_fairness_mean": "class spread",
    "client_data_fairness_std": "std of it",
}


class Measured(NamedTuple):
    """One data set's numbers, metric by metric."""

    personal: dict[str, Values]
    shared: dict[str, Values]

    @property
    def conditions(self) -> list[str]:
        """Clean, and the kinds of outliers."""
        return list(self.personal["accuracy"])

    @property
    def compared(self) -> list[str]:
        """The conditions with an error bar: one seed has none, and decides nothing."""
        return [c for c in self.conditions if len(self.personal["accuracy"][c][PLAIN.name]) > 1]

    def diverged(self, setting: str, condition: str) -> bool:
        """Whether a setting's models became infinite in any seed there."""
        return setting not in self.personal["accuracy"][condition]

    def collapsed(self, setting: str, condition: str) -> bool:
        """Whether a setting has given up classes there, or diverged."""
        if self.diverged(setting, condition):
            return True
        here = self.personal["accuracy"][condition]
        return fmean(here[setting]) < fmean(here[PLAIN.name]) - COLLAPSE


def collected(experiment: Experiment, results: Mapping[str, dict[str, Any]]) -> dict[str, Measured]:
    """Data set → its numbers, from the cells that are there; what diverged in a seed is left out of that condition."""
    settings, found = experiment.settings, {}
    for name in [*settings["data"], *settings["gpu_data"]]:
        by_condition = {
            told(outliers): [
                results[k]["methods"] for k in sorted(results) if k.startswith(f"{name}-{told(outliers)}-seed-")
            ]
            for outliers in settings["outliers"]
        }
        by_condition = {condition: runs for condition, runs in by_condition.items() if runs}
        if "clean" not in by_condition or len(by_condition) < 2:
            continue
        names = [t.name for t in grid(settings)]
        kept = {c: [s for s in names if all(s in run for run in runs)] for c, runs in by_condition.items()}

        def values(of: str, metric: str, by: dict[str, Any] = by_condition, kept: dict[str, Any] = kept) -> Values:
            return {c: {s: [run[s]["test"][of][metric] for run in runs] for s in kept[c]} for c, runs in by.items()}

        found[name] = Measured(*({metric: values(of, metric) for metric in METRICS} for of in ("personal", "shared")))
    return found


def chapter(experiment: Experiment, results: Mapping[str, dict[str, Any]]) -> Chapter:
    """Per data set a table beside the paper's words and a picture; a verdict on every line of its table."""
    found, parts = collected(experiment, results), list[Text | Table | Figure]()
    for name, measured in found.items():
        parts += [_tilts_table(experiment, name, condition, measured) for condition in measured.conditions]
        parts += [_figure(experiment, name, measured), _server_table(experiment, name, measured)]
    parts.append(
        Text(
            markdown="Accuracy stands beside every spread for a reason: a strongly negative tau listens to the class "
            "with the smallest loss alone, so a client's model ends on one of its two classes. It is then right in "
            "half of the cases on every client, and the spread over *clients* is next to nothing: it looks fair, and "
            f"unmoved by outliers, and is of no use. Settings more than {COLLAPSE:g} points below tau = lam = 0 are "
            "marked †, and count neither as fair nor as robust."
        )
    )
    verdicts = [_verdict(claim, experiment, found) for claim in experiment.claims]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts, verdicts=verdicts)


def _words(experiment: Experiment, t: Tilts) -> tuple[str, str]:
    """The paper's words on a combination of signs: client data fairness, robustness."""
    if t == PLAIN:
        return "medium", "medium"
    for claim in experiment.claims:
        if (claim.check.get("tau"), claim.check.get("lam")) == t.signs:
            return claim.check["fairness"], claim.check["robustness"]
    return "", ""


def _shown(values: Sequence[float], mark: str = "") -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}{mark}"


def _tilts_table(experiment: Experiment, name: str, condition: str, m: Measured) -> Table:
    rows: list[list[str | float]] = []
    for t in grid(experiment.settings):
        if not t.q:
            lost = m.diverged(t.name, condition)
            mark = " (diverged)" if lost else " †" if m.collapsed(t.name, condition) else ""
            numbers = ["" if lost else _shown(m.personal[metric][condition][t.name]) for metric in METRICS]
            rows.append([t.name + mark, *_words(experiment, t), *numbers])
    return Table(
        caption=f"{name}, {condition}: personal models, mean ± std over {_seeds(m)}",
        columns=("setting", "paper: data fairness", "paper: robustness", *METRICS.values()),
        rows=rows,
        notes="Spreads are in points, lower is fairer: over clients (client fairness), over a client's classes (client "
        "data fairness: mean and std over clients). † collapsed: see the text.",
    )


def _seeds(m: Measured) -> str:
    count = len(m.personal["accuracy"]["clean"][PLAIN.name])
    return f"{count} seeds" if count > 1 else "one seed"


def _server_table(experiment: Experiment, name: str, m: Measured) -> Table:
    rows: list[list[str | float]] = []
    for t in sorted([t for t in grid(experiment.settings) if t.q or t == PLAIN], key=lambda t: -t.q):
        if any(m.diverged(t.name, condition) for condition in m.conditions):
            continue
        row: list[str | float] = ["q = 0" if t == PLAIN else t.name, ("low", "medium", "high")[_sign(t.q) + 1]]
        for condition in m.conditions:
            row += [_shown(m.shared[metric][condition][t.name]) for metric in ("accuracy", "client_fairness")]
            row.append(_shown(m.personal["client_fairness"][condition][t.name]))
        rows.append(row)
    heads = [f"{c}: {head}" for c in m.conditions for head in ("w accuracy", "w spread", "v spread")]
    return Table(
        caption=f"{name}: the server's tilt q, accuracy (%) and client fairness (the spread over clients, points)",
        columns=("setting", "paper: client fairness", *heads),
        rows=rows,
        notes="tau = lam = 0. The paper defines client fairness by the shared model w; v are the personal ones.",
    )


def _figure(experiment: Experiment, name: str, m: Measured) -> Figure:
    """Wrong answers against class spread, a panel per condition, a mark per setting; collapsed ones lie far out."""
    data: list[dict[str, Any]] = []
    accuracy, spread, conditions = m.personal["accuracy"], m.personal["client_data_fairness_mean"], m.conditions
    width = 1 / len(conditions)
    layout: dict[str, Any] = {
        "height": 380, "margin": {"l": 52, "r": 12, "t": 30, "b": 44}, "hovermode": "closest", "annotations": [],
        "legend": {"orientation": "h", "x": 0, "y": -0.18, "yanchor": "top", "xanchor": "left"},
    }  # fmt: skip
    for i, condition in enumerate(conditions):
        axis = str(i + 1) if i else ""
        for signs, color in _COLORS.items():
            ours = [t for t in grid(experiment.settings) if not t.q and t.signs == signs]
            ours = [t for t in ours if not m.diverged(t.name, condition)]
            large = [abs(t.tau) + abs(t.lam) > 2 * experiment.settings["small"] for t in ours]
            data.append(
                {
                    "type": "scatter", "mode": "lines+markers", "name": _group(signs), "legendgroup": _group(signs),
                    "showlegend": i == 0, "xaxis": f"x{axis}", "yaxis": f"y{axis}", "text": [t.name for t in ours],
                    "x": [round(max(_LEAST, fmean(spread[condition][t.name])), 3) for t in ours],
                    "y": [round(max(_LEAST, 100 - fmean(accuracy[condition][t.name])), 3) for t in ours],
                    "line": {"color": color, "width": 1, "dash": "dot"},
                    "marker": {
                        "color": color, "size": [13 if big else 8 for big in large],
                        "symbol": _SYMBOLS[signs[0] == 0, signs[1] == 0], "opacity": 0.85,
                    },
                    "hovertemplate": "%{text}<br>wrong %{y:.1f} %, class spread %{x:.1f}<extra></extra>",
                }
            )  # fmt: skip
        domain = [i * width, (i + 1) * width - (0.05 if i < len(conditions) - 1 else 0)]
        layout[f"xaxis{axis}"] = {
            "title": {"text": "class spread (points)"}, "domain": domain, "anchor": f"y{axis}", **_LOGARITHMIC
        }  # fmt: skip
        layout[f"yaxis{axis}"] = {"anchor": f"x{axis}", **_LOGARITHMIC}
        layout["annotations"].append(
            {"text": condition, "showarrow": False, "x": sum(domain) / 2, "xref": "paper", "xanchor": "center",
             "y": 1.0, "yref": "paper", "yanchor": "bottom"}
        )  # fmt: skip
    caption = (
        f"{name}: every setting of tau and lam; up is accurate, left is fair to classes. Large marks: large tilts."
    )
    return Figure(name=f"effects-{name}", caption=caption, figure={"data": data, "layout": layout})


def _group(signs: tuple[int, int]) -> str:
    words = {1: "> 0", 0: "= 0", -1: "< 0"}
    return f"tau {words[signs[0]]}, lam {words[signs[1]]}"


# -- verdicts ----------------------------------------------------------------------------------------------------------


def compare(values: Sequence[float], plain: Sequence[float]) -> int:
    """1 where values are larger than the plain ones beyond one standard error of the paired difference, −1 smaller.

    >>> compare([3.0, 5.0], [1.0, 2.0]), compare([3.0, 1.0], [1.0, 3.1])
    (1, 0)
    """
    differences = [a - b for a, b in zip(values, plain, strict=True)]
    error = stdev(differences) / math.sqrt(len(differences))
    return _sign(fmean(differences)) if abs(fmean(differences)) > error else 0


def _verdict(claim: Claim, experiment: Experiment, found: Mapping[str, Measured]) -> Verdict:
    checks = [check for name, m in found.items() for check in _checks(claim, experiment, name, m)]
    if not checks:
        why = "One seed has no error bar." if found else ""
        return Verdict(claim=claim.text, holds="not measured", why=f"{why} {claim.why}".strip())
    agreed = [check for check in checks if check[1]]
    holds: Holds = "holds" if len(agreed) == len(checks) else "holds partly" if agreed else "does not hold"
    against = [told for told, agrees in checks if not agrees]
    counted = f"{len(agreed)} of {len(checks)} comparisons with no tilt agree beyond one standard error."
    listed = f" Against: {'; '.join(against)}." if against else ""
    return Verdict(claim=claim.text, holds=holds, why=f"{counted}{listed} {claim.why}".strip())


def _checks(claim: Claim, experiment: Experiment, name: str, m: Measured) -> list[tuple[str, bool]]:
    """(what was compared, whether the paper's word fits) for every setting of these signs and every condition."""
    check, found = claim.check, []
    for t in grid(experiment.settings):
        if "q" in check and _sign(t.q) == check["q"]:
            spread = m.shared["client_fairness"]
            found += [
                _checked(name, c, t, "client spread of w", spread, check["fairness"], -1, m, []) for c in m.compared
            ]
        elif "tau" in check and not t.q and t.signs == (check["tau"], check["lam"]):
            size = max(abs(t.tau), abs(t.lam))
            rivals = [r for r in grid(experiment.settings) if not r.q and size in (abs(r.tau), abs(r.lam))]
            fair = [r.name for r in rivals if _words(experiment, r)[0] == "high"]
            robust = [r.name for r in rivals if _words(experiment, r)[1] == "high"]
            spread, accuracy = m.personal["client_data_fairness_mean"], m.personal["accuracy"]
            for c in m.compared:
                if c == "clean":
                    found.append(_checked(name, c, t, "class spread", spread, check["fairness"], -1, m, fair))
                else:
                    found.append(_checked(name, c, t, "accuracy", accuracy, check["robustness"], 1, m, robust))
    return found


def _checked(
    name: str, condition: str, t: Tilts, what: str, values: Values, word: str, good: int, m: Measured,
    rivals: Sequence[str],
) -> tuple[str, bool]:  # fmt: skip
    """High: better than no tilt. Low: worse. Very high: also not worse than what is called high."""
    here = values[condition]
    wanted = good if "high" in word else -good
    if m.diverged(t.name, condition):
        return f"{name}, {condition}, {t.name}: diverged", wanted != good
    collapsed = m.collapsed(t.name, condition)
    fits = compare(here[t.name], here[PLAIN.name]) == wanted and not (collapsed and wanted == good)
    numbers = f"{fmean(here[t.name]):.1f} against {fmean(here[PLAIN.name]):.1f}"
    if word.startswith("very"):
        ahead = [r for r in rivals if not m.collapsed(r, condition) and compare(here[t.name], here[r]) == -good]
        fits = fits and not ahead
        numbers += "".join(f", {fmean(here[r]):.1f} with {r}" for r in ahead)
    return f"{name}, {condition}, {t.name}: {what} {numbers}{' (collapsed)' if collapsed else ''}", fits
