"""The toy experiments: linear boundaries between Gaussian classes, with accuracy in closed form."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean, stdev
from typing import Any

import torch

from fedtilt import seeds
from fedtilt.data import Dataset, Federation
from fedtilt.data.published.toy import SETUPS, toy
from fedtilt.methods import Method, ditto, fedavg, fedtilt
from fedtilt.models import logistic
from fedtilt.simulation import simulate
from reproduction.chapter import CaptionedFigure, Chapter, Part, Table
from reproduction.experiment import Case, Experiment, OnProgress, Options
from reproduction.plots import axis_suffix, panels
from reproduction.toy.claims import verdict
from reproduction.toy.geometry import (
    best_worst_class,
    client_accuracy,
    decision_boundary,
    expected_accuracy,
    setting_name,
    worst_class,
)

_LIMITS = ((-2.5, 5.0), (-1.5, 5.0))  # of the x and y axes of all figures
# tilts from negative to positive, 0 in grey; each colour has a contrast of 3 : 1 on light and on dark
_NEGATIVE, _ZERO, _POSITIVE = ("#8c6bd1", "#1a7fc4", "#009e73"), "#7f858d", ("#9a7b00", "#d55e00", "#c46a9c")


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set and seed; all tilts, FedAvg and Ditto are trained in it."""
    settings, all_cases = experiment.settings, []
    for name in settings["data"]:
        toy_settings = settings[name]
        data = {"data": toy_settings.get("data", name), "extra_noise": toy_settings.get("extra_noise", 0.0)}
        tilts = {"tau": toy_settings["tau"], "lam": toy_settings["lam"], "mu": settings["mu"]}
        count = len(tilts["tau"]) * len(tilts["lam"]) + 2
        for seed in range(options.seeds or settings["seeds"]):
            all_cases.append(
                Case(
                    name=f"{name}-seed-{seed}",
                    what=f"{name}, seed {seed}: {count} settings, {settings['train']['rounds']} rounds",
                    settings={**data, **tilts, "train": settings["train"], "seed": seed},
                    parts=("boundaries", "points"),
                )
            )
    return all_cases


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train one case; the boundary of every client under every setting, and its accuracy."""
    settings, seed = case.settings, case.settings["seed"]
    data = dataset(settings["data"], settings["extra_noise"], seed)
    federation = Federation.build(data, partition="column", seed=seed)
    methods = _methods(settings)
    rounds = settings["train"]["rounds"]
    for r in simulate(
        methods, federation, logistic, **settings["train"], seed=seed, device=options.device, eval_every=rounds
    ):
        on_progress(r.number, rounds, "")
    assert r.counts is not None  # the last round is always evaluated
    boundaries: dict[str, Any] = {}
    for m in methods:
        correct = r.counts[m.name].evaluated
        boundaries[m.name] = []
        for client, groups in enumerate(SETUPS[settings["data"]].groups):
            kept = r.state.client_states.get((m.name, client))  # every client takes part in every round
            model = kept["personal"] if m.has_personal else r.state.shared[m.name]
            normal, offset = decision_boundary(model.cpu())
            shares = expected_accuracy(normal, float(offset), groups)
            boundaries[m.name].append(
                {
                    "normal": [round(float(v), 5) for v in normal],
                    "offset": round(float(offset), 5),
                    "expected": [round(100 * share, 4) for share in shares],
                    "tested": [round(v, 4) for v in (100 * correct[client] / r.total[client]).tolist()],
                }
            )
    points = _points(federation) if seed == 0 else None  # the figures show seed 0
    return {"boundaries": boundaries, "points": points}


def dataset(name: str, extra_noise: float, seed: int) -> Dataset:
    """A toy data set; with `extra_noise`, a tenth of every client's first class gets noise of that deviation."""
    data = toy(name, seed)
    if not extra_noise:
        return data
    assert data.client_train is not None
    assert isinstance(data.x_train, torch.Tensor)
    x, rng = data.x_train.clone(), seeds.generator(seeds.key(seed, f"{name}/far"))
    for client in data.client_train.unique().tolist():
        first = ((data.client_train == client) & (data.y_train == 0)).nonzero()[:, 0].numpy()
        chosen = rng.choice(first, round(0.1 * len(first)), replace=False)
        x[chosen] += torch.from_numpy(rng.normal(0.0, extra_noise, (len(chosen), 2))).float()
    return replace(data, name=f"{name}-far", x_train=x)


def _methods(settings: Mapping[str, Any]) -> list[Method]:
    mu = settings["mu"]
    pairs = product(settings["tau"], settings["lam"])
    return [fedavg(), ditto(mu), *(fedtilt(tau, lam, mu=mu, name=setting_name(tau, lam)) for tau, lam in pairs)]


def _points(federation: Federation) -> list[list[list[float]]]:
    """Every client's training points: x, y, class."""
    points = []
    for client in range(federation.clients):
        x, y = federation.clean_train(client)
        assert isinstance(x, torch.Tensor)
        points.append([[round(a, 3), round(b, 3), k] for (a, b), k in zip(x.tolist(), y.tolist(), strict=True)])
    return points


# -- report ------------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Mapping[str, dict[str, Any]]) -> Chapter:
    """Per data set a table of accuracy over all seeds and a figure of the boundaries of seed 0; verdicts."""
    settings, parts = experiment.settings, list[Part]()
    measured: dict[str, dict[str, Any]] = {}
    for name in settings["data"]:
        by_seed = [results[key] for key in sorted(results) if key.startswith(f"{name}-seed-")]
        if not by_seed:
            continue
        measured[name] = {
            method: [result["boundaries"][method] for result in by_seed] for method in by_seed[0]["boundaries"]
        }
        parts.append(_table(settings[name], name, measured[name]))
        with_points = next((result for result in by_seed if result["points"]), None)
        if with_points:
            parts.append(_figure(settings[name], name, with_points))
    verdicts = [verdict(claim, settings, measured) for claim in experiment.claims]
    lead = (
        "Expected accuracy is exact: the classes are Gaussian and the boundaries are lines, so the share of a class on "
        "its side of the line needs no test set. Accuracy on the paper's test set, of 20 to 30 points per class, is "
        "also shown."
    )
    return Chapter(title=experiment.title, lead=f"{experiment.about.strip()} {lead}".strip(), parts=parts,
                   verdicts=verdicts)  # fmt: skip


def _table(toy_settings: Mapping[str, Any], name: str, methods: Mapping[str, Any]) -> Table:
    data = toy_settings.get("data", name)
    limits = ", ".join(f"client {c + 1}: {100 * best_worst_class(g):.1f} %" for c, g in enumerate(SETUPS[data].groups))
    rows: list[list[str | float]] = []
    seeds_used = len(next(iter(methods.values())))
    for method, by_seed in methods.items():
        accuracy = [[fmean(clients[c]["expected"][k] for clients in by_seed) for k in (0, 1)] for c in (0, 1)]
        tested = fmean(client_accuracy(clients[c]["tested"], data) for clients in by_seed for c in (0, 1))
        worst = [worst_class(clients) for clients in by_seed]
        spread = f" ± {stdev(worst):.2f}" if len(worst) > 1 else ""
        rows.append([method, *accuracy[0], *accuracy[1], f"{fmean(worst):.2f}{spread}", tested])
    over = f"mean over {seeds_used} seeds" if seeds_used > 1 else "one seed"
    return Table(
        caption=f"{toy_settings['title']}: expected accuracy (%), {over}",
        columns=(
            "method", "client 1, class 1", "client 1, class 2", "client 2, class 1", "client 2, class 2",
            "worst of the four", "test sample, all",
        ),
        rows=rows,
        notes=f"The best that any line can do for the worse of its two classes: {limits}.",
    )  # fmt: skip


def _figure(toy_settings: Mapping[str, Any], name: str, result: Mapping[str, Any]) -> CaptionedFigure:
    """A panel per client: points, and a line per setting."""
    data: list[dict[str, Any]] = []
    x_range, y_range = (_axis_range([p[i] for points in result["points"] for p in points], *_LIMITS[i]) for i in (0, 1))
    layout: dict[str, Any] = {
        "height": 440, "margin": {"l": 40, "r": 12, "t": 30, "b": 40}, "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top", "xanchor": "left"},
        "grid": panels(1, 2), "annotations": [],
    }  # fmt: skip
    for client, points in enumerate(result["points"]):
        n = axis_suffix(client)
        axes = {"xaxis": f"x{n}", "yaxis": f"y{n}"}
        layout[f"xaxis{n}"] = {"range": x_range, "anchor": f"y{n}"}
        layout[f"yaxis{n}"] = {"range": y_range, "anchor": f"x{n}"}
        layout["annotations"].append(
            {"text": f"client {client + 1}", "showarrow": False, "x": 0.5, "xref": f"x{n} domain", "y": 1.0,
             "yref": "paper", "yanchor": "bottom"}
        )  # fmt: skip
        for k, (symbol, color) in enumerate((("circle", "#5b8fb0"), ("diamond", "#b07d5b"))):
            of_class = [p for p in points if p[2] == k]
            data.append(
                {
                    "type": "scatter", "mode": "markers", "name": f"class {k + 1}", "legendgroup": f"class {k + 1}",
                    "showlegend": client == 0, "x": [p[0] for p in of_class], "y": [p[1] for p in of_class],
                    "marker": {"symbol": symbol, "color": color, "size": 5, "opacity": 0.6}, "hoverinfo": "skip",
                } | axes
            )  # fmt: skip
        for method, color, dash in _line_styles(toy_settings, list(result["boundaries"])):
            boundary = result["boundaries"][method][client]
            x, y = _line_ends(boundary["normal"], boundary["offset"])
            accuracy = f"{boundary['expected'][0]:.1f} % and {boundary['expected'][1]:.1f} %"
            data.append(
                {
                    "type": "scatter", "mode": "lines", "name": method, "legendgroup": method,
                    "showlegend": client == 0, "x": x, "y": y, "line": {"color": color, "dash": dash, "width": 2},
                    "hovertemplate": f"accuracy of the classes: {accuracy}<extra>{method}</extra>",
                } | axes
            )  # fmt: skip
    return CaptionedFigure(
        name=f"toy-{name.removeprefix('toy-')}",
        caption=f"{toy_settings['title']}: the boundary of each client's personal model (FedAvg: of the shared model), "
        "seed 0.",
        figure={"data": data, "layout": layout},
    )


def _axis_range(values: Sequence[float], low: float, high: float) -> list[float]:
    """All values and a margin, within limits."""
    return [max(low, min(values) - 0.3), min(high, max(values) + 0.3)]


def _line_styles(toy_settings: Mapping[str, Any], methods: Sequence[str]) -> list[tuple[str, str, str]]:
    """(method, colour, dash): colours follow the tilt that varies; FedAvg and Ditto are dashed, in the colour of 0."""
    varied = "tau" if len(toy_settings["tau"]) > 1 else "lam"
    negative = sorted(v for v in toy_settings[varied] if v < 0)
    positive = sorted(v for v in toy_settings[varied] if v > 0)
    colors = {
        0.0: _ZERO,
        **dict(zip(negative, _NEGATIVE, strict=False)),
        **dict(zip(positive, _POSITIVE, strict=False)),
    }
    tilts = {setting_name(tau, lam): (tau, lam) for tau, lam in product(toy_settings["tau"], toy_settings["lam"])}
    untilted = [(m, _ZERO, "dot" if m == "fedavg" else "dash") for m in methods if m not in tilts]
    return untilted + [(m, colors[tilts[m][0 if varied == "tau" else 1]], "solid") for m in methods if m in tilts]


def _line_ends(normal: Sequence[float], offset: float, reach: float = 20.0) -> tuple[list[float], list[float]]:
    """The x and the y of two points of a line, far outside the figure."""
    a, b = normal
    length = math.hypot(a, b) or 1.0
    foot = (-offset * a / length**2, -offset * b / length**2)
    along = (-b / length * reach, a / length * reach)
    return [round(foot[0] - along[0], 4), round(foot[0] + along[0], 4)], [
        round(foot[1] - along[1], 4), round(foot[1] + along[1], 4)
    ]  # fmt: skip
