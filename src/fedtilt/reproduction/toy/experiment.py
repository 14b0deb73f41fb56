"""The toy experiments: linear boundaries between Gaussian classes, whose accuracy is known in closed form."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import fmean, stdev
from typing import Any

import torch

from fedtilt import seeds
from fedtilt.data import Dataset, Federation
from fedtilt.data.toy import SETUPS, toy
from fedtilt.evaluation.results import evaluated_counts
from fedtilt.methods import Method, ditto, fedavg, fedtilt
from fedtilt.models import logistic
from fedtilt.reproduction.chapter import CaptionedFigure, Chapter, Table, Text
from fedtilt.reproduction.experiment import Case, Experiment, OnProgress, Options
from fedtilt.reproduction.toy.claims import verdict
from fedtilt.reproduction.toy.geometry import best_worst, expected, line, named, sampled, worst_class
from fedtilt.simulation import simulate

_PLANE = ((-2.5, 5.0), (-1.5, 5.0))  # no figure shows more
# from the most negative tilt to the most positive, 0 in grey; each keeps a contrast of 3 : 1 on light and dark
_BELOW, _ZERO, _ABOVE = ("#8c6bd1", "#1a7fc4", "#009e73"), "#7f858d", ("#9a7b00", "#d55e00", "#c46a9c")


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per data set and seed; every tilt is trained in it, with FedAvg and Ditto beside."""
    settings, found = experiment.settings, []
    for name in settings["data"]:
        own = settings[name]
        data = {"data": own.get("data", name), "extra_noise": own.get("extra_noise", 0.0)}
        tilts = {"tau": own["tau"], "lam": own["lam"], "mu": settings["mu"]}
        for seed in range(options.seeds or settings["seeds"]):
            found.append(
                Case(
                    name=f"{name}-seed-{seed}",
                    what=f"{name}, seed {seed}: {len(own['tau']) * len(own['lam']) + 2} settings, "
                    f"{settings['train']['rounds']} rounds",
                    settings={**data, **tilts, "train": settings["train"], "seed": seed},
                    parts=("boundaries", "points"),
                )
            )
    return found


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train one case; the boundary of every client under every setting, and how good it is."""
    settings, seed = case.settings, case.settings["seed"]
    data = dataset(settings["data"], settings["extra_noise"], seed)
    federation = Federation.build(data, partition="column", seed=seed)
    methods = _methods(settings)
    rounds = settings["train"]["rounds"]
    for r in simulate(
        methods, federation, logistic, **settings["train"], seed=seed, device=options.device, eval_every=rounds
    ):
        on_progress(r.number, rounds, "")
    assert r.counts is not None  # the last round is always judged
    found: dict[str, Any] = {}
    for m in methods:
        right = evaluated_counts(r.counts[m.name])
        found[m.name] = []
        for client, groups in enumerate(SETUPS[settings["data"]].groups):
            own = r.state.client_states.get((m.name, client)) if m.personal else r.state.shared[m.name]
            assert own is not None  # everybody takes part in every round
            normal, offset = line(own.cpu())
            found[m.name].append(
                {
                    "normal": [round(float(v), 5) for v in normal],
                    "offset": round(float(offset), 5),
                    "expected": [round(100 * share, 4) for share in expected(normal, float(offset), groups)],
                    "tested": [round(v, 4) for v in (100 * right[client] / r.total[client]).tolist()],
                }
            )
    points = _points(federation) if seed == 0 else None  # one seed is drawn
    return {"boundaries": found, "points": points}


def dataset(name: str, extra_noise: float, seed: int) -> Dataset:
    """A toy data set, and where asked for more noise on a tenth of the first class of every client."""
    data = toy(name, seed)
    if not extra_noise:
        return data
    assert data.client_train is not None
    x, rng = data.x_train.clone(), seeds.generator(seeds.key(seed, f"{name}/far"))
    for client in data.client_train.unique().tolist():
        first = ((data.client_train == client) & (data.y_train == 0)).nonzero()[:, 0].numpy()
        chosen = rng.choice(first, round(0.1 * len(first)), replace=False)
        x[chosen] += torch.from_numpy(rng.normal(0.0, extra_noise, (len(chosen), 2))).float()
    return replace(data, name=f"{name}-far", x_train=x)


def _methods(settings: Mapping[str, Any]) -> list[Method]:
    mu = settings["mu"]
    tilted = [fedtilt(tau, lam, mu=mu, name=named(tau, lam)) for tau, lam in product(settings["tau"], settings["lam"])]
    return [fedavg(), ditto(mu), *tilted]


def _points(federation: Federation) -> list[list[list[float]]]:
    """Every client's training points: x, y, class."""
    found = []
    for client in range(federation.clients):
        x, y = federation.clean_train(client)
        found.append([[round(a, 3), round(b, 3), k] for (a, b), k in zip(x.tolist(), y.tolist(), strict=True)])
    return found


# -- what is seen ------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Mapping[str, dict[str, Any]]) -> Chapter:
    """Boundaries of one seed drawn, accuracy of all seeds in tables, a verdict on every claim."""
    settings, parts = experiment.settings, list[Text | Table | CaptionedFigure]()
    measured: dict[str, dict[str, Any]] = {}
    for name in settings["data"]:
        by_seed = [results[key] for key in sorted(results) if key.startswith(f"{name}-seed-")]
        if not by_seed:
            continue
        measured[name] = {
            method: [result["boundaries"][method] for result in by_seed] for method in by_seed[0]["boundaries"]
        }
        parts.append(_table(settings[name], name, measured[name]))
        drawn = next((result for result in by_seed if result["points"]), None)
        if drawn:
            parts.append(_figure(settings[name], name, drawn))
    verdicts = [verdict(claim, settings, measured) for claim in experiment.claims]
    lead = (
        "Percentages are exact: the classes are Gaussian and the boundaries are lines, so the share of a class on its "
        "side is known without a test set (the paper's, of 20 to 30 points a class, is given as well)."
    )
    return Chapter(title=experiment.title, lead=f"{experiment.about.strip()} {lead}".strip(), parts=parts,
                   verdicts=verdicts)  # fmt: skip


def _table(own: Mapping[str, Any], name: str, methods: Mapping[str, Any]) -> Table:
    groups = SETUPS[own.get("data", name)].groups
    limits = ", ".join(f"client {c + 1}: {100 * best_worst(g):.1f} %" for c, g in enumerate(groups))
    rows: list[list[str | float]] = []
    count = len(next(iter(methods.values())))
    for method, seeds_of in methods.items():
        accuracy = [[fmean(s[c]["expected"][k] for s in seeds_of) for k in (0, 1)] for c in (0, 1)]
        tested = fmean(sampled(s[c]["tested"], own.get("data", name)) for s in seeds_of for c in (0, 1))
        worst = [worst_class(s) for s in seeds_of]
        spread = f" ± {stdev(worst):.2f}" if len(worst) > 1 else ""
        rows.append([method, *accuracy[0], *accuracy[1], f"{fmean(worst):.2f}{spread}", tested])
    return Table(
        caption=f"{own['title']}: expected accuracy (%), {f'mean over {count} seeds' if count > 1 else 'one seed'}",
        columns=(
            "method", "client 1, class 1", "client 1, class 2", "client 2, class 1", "client 2, class 2",
            "worst of the four", "test sample, all",
        ),
        rows=rows,
        notes=f"The best that any line can do for the worse of its two classes: {limits}.",
    )  # fmt: skip


def _figure(own: Mapping[str, Any], name: str, result: Mapping[str, Any]) -> CaptionedFigure:
    """Both clients side by side: points, and a line per setting."""
    data: list[dict[str, Any]] = []
    across, up = (_window([p[i] for points in result["points"] for p in points], *_PLANE[i]) for i in (0, 1))
    for client, points in enumerate(result["points"]):
        axes = {"xaxis": f"x{client + 1 if client else ''}", "yaxis": f"y{client + 1 if client else ''}"}
        for k, (symbol, color) in enumerate((("circle", "#5b8fb0"), ("diamond", "#b07d5b"))):
            chosen = [p for p in points if p[2] == k]
            data.append(
                {
                    "type": "scatter", "mode": "markers", "name": f"class {k + 1}", "legendgroup": f"class {k + 1}",
                    "showlegend": client == 0, "x": [p[0] for p in chosen], "y": [p[1] for p in chosen],
                    "marker": {"symbol": symbol, "color": color, "size": 5, "opacity": 0.6}, "hoverinfo": "skip",
                } | axes
            )  # fmt: skip
        for method, color, dash in _looks(own, list(result["boundaries"])):
            at = result["boundaries"][method][client]
            x, y = _ends(at["normal"], at["offset"])
            told = f"{at['expected'][0]:.1f} % and {at['expected'][1]:.1f} %"
            data.append(
                {
                    "type": "scatter", "mode": "lines", "name": method, "legendgroup": method,
                    "showlegend": client == 0, "x": x, "y": y, "line": {"color": color, "dash": dash, "width": 2},
                    "hovertemplate": f"classes right: {told}<extra>{method}</extra>",
                } | axes
            )  # fmt: skip
    layout: dict[str, Any] = {
        "height": 440, "margin": {"l": 40, "r": 12, "t": 30, "b": 40}, "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": -0.12, "yanchor": "top", "xanchor": "left"},
        "annotations": [
            {"text": f"client {c + 1}", "showarrow": False, "x": (0.235, 0.765)[c], "y": 1.0, "xref": "paper",
             "yref": "paper", "yanchor": "bottom"} for c in (0, 1)
        ],
    }  # fmt: skip
    for client, (left, right) in enumerate(((0, 0.47), (0.53, 1))):
        suffix = str(client + 1) if client else ""
        layout[f"xaxis{suffix}"] = {"domain": [left, right], "range": across, "anchor": f"y{suffix}"}
        layout[f"yaxis{suffix}"] = {"range": up, "anchor": f"x{suffix}"}
    caption = f"{own['title']}: the boundary of each client's own model (FedAvg: of the shared one), seed 0."
    return CaptionedFigure(
        name=f"toy-{name.removeprefix('toy-')}", caption=caption, figure={"data": data, "layout": layout}
    )


def _window(values: Sequence[float], low: float, high: float) -> list[float]:
    """What an axis shows: all values and a margin, within limits."""
    return [max(low, min(values) - 0.3), min(high, max(values) + 0.3)]


def _looks(own: Mapping[str, Any], methods: Sequence[str]) -> list[tuple[str, str, str]]:
    """Colours in the order of the tilt that varies; FedAvg and Ditto in the colour of tilt 0, broken."""
    varied = "tau" if len(own["tau"]) > 1 else "lam"
    below = sorted(v for v in own[varied] if v < 0)
    above = sorted(v for v in own[varied] if v > 0)
    colors = {0.0: _ZERO, **dict(zip(below, _BELOW, strict=False)), **dict(zip(above, _ABOVE, strict=False))}
    names = {named(tau, lam): (tau, lam) for tau, lam in product(own["tau"], own["lam"])}
    looks = [(m, _ZERO, "dot" if m == "fedavg" else "dash") for m in methods if m not in names]
    return looks + [(m, colors[names[m][0 if varied == "tau" else 1]], "solid") for m in methods if m in names]


def _ends(normal: Sequence[float], offset: float, reach: float = 20.0) -> tuple[list[float], list[float]]:
    """Two points of a line that lie far outside the picture."""
    a, b = normal
    length = math.hypot(a, b) or 1.0
    foot = (-offset * a / length**2, -offset * b / length**2)
    along = (-b / length * reach, a / length * reach)
    return [round(foot[0] - along[0], 4), round(foot[0] + along[0], 4)], [
        round(foot[1] - along[1], 4), round(foot[1] + along[1], 4)
    ]  # fmt: skip
