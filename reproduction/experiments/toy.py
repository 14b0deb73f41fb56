"""The toy experiments: linear boundaries between Gaussian classes, with accuracy in closed form."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtilt import seeds
from fedtilt.data import Dataset, Federation
from fedtilt.data.published.toy import SETUPS, Group, toy
from fedtilt.evaluation.verdicts import of_summaries
from fedtilt.methods import Method, ditto, fedavg, fedtilt
from fedtilt.models import logistic
from fedtilt.report.summary import format_interval
from fedtilt.simulation import simulate
from reproduction.chapter import CaptionedFigure, Chapter, Holds, Part, Table, Verdict, verdict_on
from reproduction.experiment import Case, Claim, Experiment, OnProgress, Options, by_seed
from reproduction.plots import axis_suffix, panels

_phi = NormalDist().cdf


def setting_name(tau: float, lam: float) -> str:
    """The name of a setting in results and tables."""
    return f"tau {tau:g}, lam {lam:g}"


def decision_boundary(model: Tensor) -> tuple[Tensor, Tensor]:
    """The boundary of a two-class logistic regression (6,): class 2 where normal · x + offset > 0.

    >>> decision_boundary(torch.tensor([0.0, 0.0, 1.0, -1.0, 0.0, 0.5]))
    (tensor([ 1., -1.], dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """
    weight, bias = model[:4].double().reshape(2, 2), model[4:].double()
    return weight[1] - weight[0], bias[1] - bias[0]


def expected_accuracy(normal: Tensor, offset: float, groups: Sequence[Group]) -> list[float]:
    """The share of each Gaussian class on its side of the boundary: Phi(distance / deviation).

    >>> expected_accuracy(torch.tensor([1.0, 0.0]), -1.0, (Group((0.0, 0.0), 1.0), Group((2.0, 5.0), 0.5)))
    [0.8413..., 0.9772...]
    """
    shares = []
    for k, group in enumerate(groups):
        side = 1.0 if k else -1.0
        height = side * (float(normal @ torch.tensor(group.centre, dtype=normal.dtype)) + offset)
        shares.append(_phi(height / (group.deviation * float(normal.norm()))))
    return shares


def best_worst_class(groups: Sequence[Group]) -> float:
    """The best that a straight line can do for the worse of two round Gaussian classes: Phi(d / (s_1 + s_2))."""
    first, second = groups
    return _phi(math.dist(first.centre, second.centre) / (first.deviation + second.deviation))


def client_accuracy(class_accuracy: Sequence[float], name: str) -> float:
    """A client's accuracy from that of its classes, weighted by their numbers of test samples."""
    counts = SETUPS[name].test
    return sum(a * n for a, n in zip(class_accuracy, counts, strict=True)) / sum(counts)


def worst_class(clients: Sequence[Mapping[str, Any]]) -> float:
    """The lowest expected accuracy of a class, over both clients."""
    return min(share for client in clients for share in client["expected"])


HIGH = 95.0  # percent: a high accuracy
CLOSE = 3.0  # points: a small difference

Measured = Mapping[str, Mapping[str, Sequence[Any]]]  # data set → method → one result per seed, both clients


def verdict(claim: Claim, settings: Mapping[str, Any], measured: Measured) -> Verdict:
    """The verdict on a claim, not measured if a data set it needs is missing."""
    names, check = CLAIM_CHECKS[claim.key]
    if any(name not in measured for name in names):
        return verdict_on(claim, "not measured")
    holds, numbers = check(settings, measured)
    one_seed = any(len(runs) == 1 for name in names for runs in measured[name].values())
    return verdict_on(claim, "one seed" if one_seed else holds, numbers)


def _accuracy_by_client(runs: Sequence[Any], name: str) -> list[float]:
    """Expected accuracy of each client, classes weighted as in the test data, mean over seeds."""
    return [fmean(client_accuracy(clients[c]["expected"], name) for clients in runs) for c in (0, 1)]


def _clients_are_close(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    fedtilt = setting_name(1, 1)
    accuracy = {m: _accuracy_by_client(measured["toy-1"][m], "toy-1") for m in ("fedavg", "ditto", fedtilt)}
    one, two = accuracy[fedtilt]
    limits = [100 * best_worst_class(groups) for groups in SETUPS["toy-1"].groups]
    holds: Holds = "holds" if min(one, two) >= HIGH and abs(one - two) <= CLOSE else "does not hold"
    return holds, (
        f"{one:.1f} % and {two:.1f} %, where a line can reach {limits[0]:.1f} % and {limits[1]:.1f} %: the data causes "
        f"the gap. This says little about FedTilt: FedAvg has {accuracy['fedavg'][0]:.1f} % and "
        f"{accuracy['fedavg'][1]:.1f} %, Ditto {accuracy['ditto'][0]:.1f} % and {accuracy['ditto'][1]:.1f} %."
    )


def _classes_are_close(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    runs = measured["toy-2"][setting_name(max(settings["toy-2"]["tau"]), settings["toy-2"]["lam"][0])]
    accuracy = [fmean(clients[c]["expected"][k] for clients in runs) for c in (0, 1) for k in (0, 1)]
    low, high = min(accuracy), max(accuracy)
    holds: Holds = "holds" if low >= HIGH and high - low <= CLOSE else "does not hold"
    return holds, f"The accuracy of the four classes is {low:.2f} % to {high:.2f} %."


def _tau_makes_classes_fair(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    methods, taus, lam = measured["toy-2"], settings["toy-2"]["tau"], settings["toy-2"]["lam"][0]
    worst = {tau: [worst_class(clients) for clients in methods[setting_name(tau, lam)]] for tau in taus}
    values = np.subtract(worst[max(taus)], worst[0.0])[:, None]  # exact on each seed, which draws new data
    gain = of_summaries(values, np.zeros_like(values), max(1, len(values) - 1), new_data=True)[0]
    holds: Holds = "holds partly" if gain.sign() > 0 else "does not hold"
    negative = f" tau = {min(taus):g} gives up a class: {fmean(worst[min(taus)]):.1f} %." if min(taus) < 0 else ""
    return holds, (
        f"From tau = 0 to {max(taus):g} the worst of the four classes gains {format_interval(gain)} points (95 % "
        f"interval). But at tau = 0 it already has {fmean(worst[0.0]):.2f} % "
        f"(FedAvg {fmean(worst_class(clients) for clients in methods['fedavg']):.2f} %): these classes are easy for "
        f"any method.{negative}"
    )


def _classes_are_separated(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    methods, tau = measured["toy-3"], settings["toy-3"]["tau"][0]
    name = setting_name(tau, min(settings["toy-3"]["lam"]))
    one, two = _accuracy_by_client(methods[name], "toy-3")
    worst = {m: fmean(worst_class(clients) for clients in methods[m]) for m in methods}
    limit = 100 * min(best_worst_class(groups) for groups in SETUPS["toy-3"].groups)
    best = max(worst, key=lambda m: worst[m])
    close, separated = abs(one - two) <= CLOSE, worst[name] >= limit - CLOSE
    holds: Holds = "holds" if close and separated else "holds partly" if close or separated else "does not hold"
    return holds, (
        f"Clients: {one:.1f} % and {two:.1f} %. Worst class: {worst[name]:.1f} %, where a line can reach "
        f"{limit:.1f} %; FedAvg, without any tilt, has {worst['fedavg']:.1f} %, and of all settings tried "
        f"{best} has the highest, {worst[best]:.1f} %."
    )


def _outliers_do_not_move_it(settings: Mapping[str, Any], measured: Measured) -> tuple[Holds, str]:
    near, far, tau = measured["toy-3"], measured["toy-3-far"], settings["toy-3"]["tau"][0]
    lams = settings["toy-3"]["lam"]

    def mean_change(method: str) -> float:
        """How far the outliers move the expected accuracy of a class, paired by seed."""
        return fmean(
            abs(a[c]["expected"][k] - b[c]["expected"][k])
            for a, b in zip(near[method], far[method], strict=True) for c in (0, 1) for k in (0, 1)
        )  # fmt: skip

    change = {lam: mean_change(setting_name(tau, lam)) for lam in lams}
    fedavg = mean_change("fedavg")
    robust = change[min(lams)] <= CLOSE and change[min(lams)] < fedavg
    magnified = min(change[lam] for lam in lams if lam > 0) > change[min(lams)]
    holds: Holds = "holds" if robust and magnified else "holds partly" if robust or magnified else "does not hold"
    listed = ", ".join(f"lam = {lam:g}: {change[lam]:.1f}" for lam in lams)
    return holds, f"Noise of deviation 3 changes the accuracy of a class by (points) {listed}; FedAvg: {fedavg:.1f}."


Check = Callable[[Mapping[str, Any], Measured], tuple[Holds, str]]

# key of a claim → the data sets it needs, and its check
CLAIM_CHECKS: dict[str, tuple[tuple[str, ...], Check]] = {
    "clients": (("toy-1",), _clients_are_close),
    "classes": (("toy-2",), _classes_are_close),
    "larger-tau": (("toy-2",), _tau_makes_classes_fair),
    "robust": (("toy-3",), _classes_are_separated),
    "unmoved": (("toy-3", "toy-3-far"), _outliers_do_not_move_it),
}


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
            # every client takes part in every round
            personal = r.state.client_states.get((m.name, client)).personal
            model = r.state.shared[m.name] if personal is None else personal
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
        runs = list(by_seed(results, name).values())
        if not runs:
            continue
        measured[name] = {method: [result["boundaries"][method] for result in runs] for method in runs[0]["boundaries"]}
        parts.append(_table(settings[name], name, measured[name]))
        with_points = next((result for result in runs if result["points"]), None)
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
    for method, runs in methods.items():
        accuracy = [[fmean(clients[c]["expected"][k] for clients in runs) for k in (0, 1)] for c in (0, 1)]
        tested = fmean(client_accuracy(clients[c]["tested"], data) for clients in runs for c in (0, 1))
        worst = [worst_class(clients) for clients in runs]
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
