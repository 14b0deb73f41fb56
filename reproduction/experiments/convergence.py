"""Convergence on a strongly convex federation, whose constants and limits can be computed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedtilt.data import Federation, load
from fedtilt.devices import pick_device
from fedtilt.executors.in_process import one_thread
from fedtilt.report.figure import Style, styles
from reproduction.chapter import CaptionedFigure, Chapter, Part, Table, Text
from reproduction.experiment import Case, Experiment, OnProgress, Options
from reproduction.experiments.convergence_claims import verdict, violation_text
from reproduction.experiments.convergence_rates import ROUND_PARTS, Problem, over_rounds, with_w_fixed
from reproduction.plots import axis_suffix, panels
from reproduction.results import round_floats


def fixed_figure(fixed: Mapping[str, Any], styles: Mapping[str, Style]) -> CaptionedFigure:
    """The gap of the objective with w fixed, and Lemma 6's bound."""
    data = []
    for name, result in fixed.items():
        first = result["clients"][0]
        curve = first["curve"]
        bound = [[t, curve[0][1] * first["allowed"] ** t] for t, _ in curve]
        data += [
            _curve(curve, name, styles[name], dash="solid"),
            _curve(bound, f"{name}: bound", styles[name], dash="dot", legend=False),
        ]
    return CaptionedFigure(
        name="convergence-fixed",
        caption="With w fixed, client 1: the gap L_n(v, w) − min (solid) and Lemma 6's bound (dotted).",
        figure={"data": data, "layout": _layout("iteration", "gap of the objective", -11)},
    )


def rounds_figure(rounds: Mapping[str, Any], styles: Mapping[str, Style]) -> CaptionedFigure:
    """Distances of w and v to their limits, and our bound."""
    data = []
    for name, r in rounds.items():
        data += [
            _curve(r["personal"], name, styles[name], dash="solid"),
            _curve(r["shared"], f"{name}: w", styles[name], dash="dash", legend=False),
            _curve(r["bound"], f"{name}: our bound on v", styles[name], dash="dot", legend=False),
        ]
    return CaptionedFigure(
        name="convergence-rounds",
        caption="Over rounds: ‖v_n − v_n*‖, mean over clients (solid), our bound on it (dotted), ‖w − w*‖ (dashed).",
        figure={"data": data, "layout": _layout("round", "distance to the limit", -9)},
    )


def bound_figure(rounds: Mapping[str, Any], styles: Mapping[str, Style]) -> CaptionedFigure:
    """The gap of the objective over rounds, and the theorem's bound on it."""
    data = []
    for name, r in rounds.items():
        data += [
            _curve([[t, abs(gap)] for t, gap in r["gap"]], name, styles[name], dash="solid"),
            _curve(r["printed"], f"{name}: the paper's bound", styles[name], dash="dot", legend=False),
        ]
    return CaptionedFigure(
        name="convergence-bound",
        caption="Over rounds, one client: |L_n(v^t, w^t) − L_n(v*, w*)| (solid) and the theorem's bound (dotted).",
        figure={"data": data, "layout": _layout("round", "gap of the objective", -11)},
    )


def special_figure(special: Mapping[str, Any]) -> CaptionedFigure:
    """The two cases in which w and v converge at different rates."""
    blue, grey = Style("#1a7fc4", "solid", "circle"), Style("#7f858d", "dash", "square")
    green, orange = Style("#009e73", "dot", "circle"), Style("#d55e00", "dot", "circle")
    titles = {"from-the-limit": "w starts at its limit", "decaying": "w's step decays"}
    data: list[dict[str, Any]] = []
    layout = _layout("", "", -9) | {"grid": panels(1, len(special)), "annotations": []}
    for i, (name, r) in enumerate(special.items()):
        n = axis_suffix(i)
        gap = [[t, abs(gap)] for t, gap in r["gap"]]
        curves = [
            _curve(r["shared"], "distance of w", grey, dash="dash", legend=i == 0),
            _curve(r["personal"], "distance of v (mean)", blue, dash="solid", legend=i == 0),
            _curve(r["bound"], "our bound on it", green, dash="dot", legend=i == 0),
            _curve(gap, "|gap of the objective|, one client", blue, dash="longdash", legend=i == 0),
            _curve(r["printed"], "the paper's bound on the gap", orange, dash="dot", legend=i == 0),
        ]
        data += [curve | {"xaxis": f"x{n}", "yaxis": f"y{n}"} for curve in curves]
        layout[f"xaxis{n}"] = {"title": {"text": "round"}, "anchor": f"y{n}"}
        layout[f"yaxis{n}"] = {
            "type": "log", "range": [-9, 1.5], "exponentformat": "power", "dtick": 2, "anchor": f"x{n}"
        }  # fmt: skip
        layout["annotations"].append(
            {"text": titles.get(name, name), "showarrow": False, "x": 0.5, "xref": f"x{n} domain",
             "xanchor": "center", "y": 1.0, "yref": "paper", "yanchor": "bottom"}
        )  # fmt: skip
    layout["margin"]["t"] = 70
    layout["legend"]["y"] = 1.1
    return CaptionedFigure(
        name="convergence-special",
        caption="Two cases. Left: w starts at its limit, so g(t) = 0, and v still needs many rounds. Right: w "
        "converges like 1 / round, and v follows it. The gap, and the paper's bound on it, are those of the client "
        "whose bound is violated first.",
        figure={"data": data, "layout": layout},
    )


def _curve(
    points: Sequence[Sequence[float]], name: str, style: Style, *, dash: str, legend: bool = True
) -> dict[str, Any]:
    positive = [(x, y) for x, y in points if y > 0]  # the axis is logarithmic
    return {
        "type": "scatter", "mode": "lines", "name": name, "showlegend": legend, "legendgroup": name.split(":")[0],
        "x": [x for x, _ in positive], "y": [y for _, y in positive],
        "line": {"color": style.color, "dash": dash, "width": 2 if dash == "solid" else 1.5},
        "hovertemplate": "%{x}: %{y:.2e}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def _layout(x_title: str, y_title: str, low: float) -> dict[str, Any]:
    return {
        "height": 400, "margin": {"l": 60, "r": 12, "t": 12, "b": 44}, "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "xaxis": {"title": {"text": x_title}},
        "yaxis": {
            "title": {"text": y_title}, "type": "log", "range": [low, 1.5], "exponentformat": "power", "dtick": 2
        },
    }  # fmt: skip


_PROOF = Path(__file__).parents[1] / "data" / "convergence-proof.md"


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """For each pair of tilts one case with w fixed and one over rounds; then the special cases."""
    s = experiment.settings
    base = {key: s[key] for key in ("seed", "clients", "rho", "mu")}
    all_cases = []
    for tau, lam in s["tilts"]:
        tilts = base | {"tau": tau, "lam": lam}
        name, title = f"tau-{tau:g}-lam-{lam:g}", f"tau {tau:g}, lam {lam:g}"
        all_cases.append(
            Case(
                name=f"fixed-{name}",
                what=f"{title}: gradient descent with w fixed, {s['iterations']} iterations",
                settings=tilts | {"part": "fixed", "iterations": s["iterations"]},
                parts=("clients",),
            )
        )
        all_cases.append(_rounds_case(f"rounds-{name}", title, tilts, s["steps"], s["rounds"], "zero", 0.0))
    for special in s["special"]:
        tau, lam = special["tilts"]
        name, title = special["name"], f"{special['name']}, tau {tau:g}, lam {lam:g}"
        tilts = base | {"tau": tau, "lam": lam}
        all_cases.append(
            _rounds_case(name, title, tilts, s["steps"], special["rounds"], special["start"], special["decay"])
        )
    return all_cases


def _rounds_case(
    name: str, title: str, tilts: dict[str, Any], steps: int, rounds: int, start: str, decay: float
) -> Case:
    settings = tilts | {"part": "rounds", "steps": steps, "rounds": rounds, "start": start, "decay": decay}
    return Case(name=name, what=f"{title}: {rounds} rounds", settings=settings, parts=ROUND_PARTS)


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Gradient descent with w fixed on every client, or a federation over rounds."""
    part = with_w_fixed if case.settings["part"] == "fixed" else over_rounds
    device = pick_device(options.device)
    with one_thread(device):
        return round_floats(part(federation(case.settings, device), case.settings, on_progress), "{:.8g}")


def federation(settings: Mapping[str, Any], device: torch.device | str = "cpu") -> list[Problem]:
    """Every client's objective: digits averaged to 4 × 4, with a constant feature, scaled to length at most 1."""
    clients = settings["clients"]
    fed = Federation.build(
        load("digits"), clients=clients["count"], classes_per_client=clients["classes_per_client"],
        max_train=clients["max_train"], seed=settings["seed"],
    )  # fmt: skip
    client_data = []
    for client in range(fed.clients):
        x, y = fed.clean_train(client, device=device)
        assert isinstance(x, torch.Tensor)
        small = torch.nn.functional.avg_pool2d(x.reshape(-1, 1, 8, 8).double(), 2).flatten(1)
        client_data.append((torch.cat([small, small.new_ones(len(small), 1)], 1), y))
    longest = max(float(x.norm(dim=1).max()) for x, _ in client_data)
    return [
        Problem(
            x=x / longest, y=y, classes=fed.classes,
            tau=settings["tau"], lam=settings["lam"], rho=settings["rho"],
        ) for x, y in client_data
    ]  # fmt: skip


# -- report -----------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Mapping[str, dict[str, Any]]) -> Chapter:
    """Rates and bounds in tables and figures, what can be proved, and where the paper's proof fails."""
    tilts = [f"tau-{tau:g}-lam-{lam:g}" for tau, lam in experiment.settings["tilts"]]
    fixed = {_tilts_title(t): results[f"fixed-{t}"] for t in tilts if f"fixed-{t}" in results}
    rounds = {_tilts_title(t): results[f"rounds-{t}"] for t in tilts if f"rounds-{t}" in results}
    special = {s["name"]: results[s["name"]] for s in experiment.settings["special"] if s["name"] in results}
    line_styles = styles([_tilts_title(t) for t in tilts])
    parts: list[Part] = []
    if fixed:
        parts += [_fixed_table(fixed), fixed_figure(fixed, line_styles)]
    parts.append(Text(markdown=_PROOF.read_text("utf-8").strip()))
    if rounds:
        parts += [
            _rounds_table(rounds | special),
            rounds_figure(rounds, line_styles),
            bound_figure(rounds, line_styles),
        ]
    if special:
        parts.append(special_figure(special))
    verdicts = [verdict(claim, fixed, rounds, special) for claim in experiment.claims]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts, verdicts=verdicts)


def _tilts_title(tilts: str) -> str:
    """The tilts in the name of a case, for people.

    >>> _tilts_title("tau-10-lam-1")
    'tau 10, lam 1'
    """
    tau, lam = tilts.removeprefix("tau-").split("-lam-")
    return f"tau {tau}, lam {lam}"


def _fixed_table(fixed: Mapping[str, Any]) -> Table:
    rows = []
    for name, result in fixed.items():
        clients = result["clients"]
        worst = max(clients, key=lambda c: c["worst"] / c["allowed"])
        solved = [c["solved"] for c in clients]
        rows.append(
            [
                name, max(c["smoothness"] for c in clients), max(c["steepest"] for c in clients),
                f"{worst['allowed']:.5f}", f"{worst['worst']:.5f}",
                "not reached" if None in solved else str(max(solved)),
            ]
        )  # fmt: skip
    return Table(
        caption="With w fixed: gradient descent on L_n(·, w), the client closest to its bound",
        columns=(
            "tilts", "B_1 + tau B_2 + lam B_3", "curvature at the optimum", "allowed contraction",
            "worst contraction", "iterations to a millionth",
        ),
        rows=rows,
        notes="The constants B_1, B_2 and B_3 do not depend on tau and lam. The worst contraction is that of the "
        "slowest iteration, the number of iterations that of the slowest client.",
    )  # fmt: skip


def _rounds_table(rounds: Mapping[str, Any]) -> Table:
    rows = [
        [
            name, _rate(r, "shared"), _rate(r, "personal"), f"{r['forget']:.4f}",
            f"{r['tightest']:.4f}", f"{r['drift']:.4f}", violation_text(r) or "holds",
        ]
        for name, r in rounds.items()
    ]  # fmt: skip
    return Table(
        caption="Over rounds: how fast the errors shrink, and the two bounds",
        columns=(
            "case", "w, factor", "v, factor", "a", "error / our bound", "drift of w", "the paper's bound",
        ),
        rows=rows,
        notes="Factors are per round (with decaying steps, a power of the round), fitted to the second half; a is the "
        "factor that our bound allows v alone. Our bound holds if the largest ratio of an error to it is at most 1. "
        "Drift: the distance of w's limit to the minimiser of the clients' mean objective, which several local steps "
        "of constant size do not reach. from-the-limit: w starts at its limit. decaying: w's step shrinks like "
        "1 / round, v's does not. The paper's bound has the D and E of its proof; in brackets, the largest ratio of "
        "the gap to the bound.",
    )  # fmt: skip


def _rate(result: Mapping[str, Any], model: str) -> str:
    """The factor by which an error shrinks per round, or the power of the round it falls with."""
    factor, power = result[f"{model}_factor"], result[f"{model}_power"]
    if power is not None:
        return f"round^{power:.2f}"
    return "0 from the start" if factor is None else f"{factor:.4f}"
