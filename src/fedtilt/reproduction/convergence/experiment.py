"""Convergence where it can be checked to the last digit: a strongly convex federation, its constants, its limits."""

from collections.abc import Mapping
from typing import Any

import torch

from fedtilt.data import Federation, load
from fedtilt.report.style import styles
from fedtilt.reproduction.chapter import CaptionedFigure, Chapter, Table, Text
from fedtilt.reproduction.convergence.claims import broken_in, verdict
from fedtilt.reproduction.convergence.figures import bound_figure, fixed_figure, rounds_figure, special_figure
from fedtilt.reproduction.convergence.problem import Problem
from fedtilt.reproduction.convergence.rates import ROUND_PARTS, over_rounds, with_w_fixed
from fedtilt.reproduction.experiment import Case, Experiment, OnProgress, Options
from fedtilt.rounds.executors import one_thread
from fedtilt.rounds.settings import pick_device

_PROOF = """
**What can be said instead.** Let rho be the strong convexity of R, eta ≤ 1 / (B_1 + tau B_2 + lam B_3) the step of \
v, E the steps a round, and a = (1 − eta (rho + mu))^E. The optimum v* for the limit w* is a fixed point of the \
step towards w*, so by the mean value theorem, in every round and whatever w does,

`‖v^(t+1) − v*‖ ≤ a · ‖v^t − v*‖ + (1 − a) · mu / (rho + mu) · ‖w^t − w*‖`

So v forgets its start at rate a and follows w at no more than mu / (rho + mu) < 1 of its distance. If w is the \
slower one, v converges at w's rate; if w is faster, at its own. The table below holds it against every round \
of every client.

**Where the paper's proof does not carry.**

- It bounds `L_n(v*, w^t) − L_n(v*, w*)` by part 2 of Lemma 6, as if w descended on `L_n(v*, ·)` and w* were its \
minimiser. That minimiser is v*; the shared model descends on the clients' mean. The term is `mu · ⟨w* − v*, w^t − \
w*⟩ + mu/2 · ‖w^t − w*‖²`: of first order in the error of w, of either sign, and it vanishes no faster than w \
converges. Where it is positive, no bound that is exponential in t can hold if w converges like 1/t.
- Part 1 is used as if w^t had stood through all t iterations, while v descended towards w^0, w^1, … in turn; and \
with v* in place of the minimiser of `L_n(·, w^t)`, which makes the gap on the right smaller than the lemma allows.
- `‖v^0 − w^t‖²` is split as if squared distances obeyed the triangle inequality, and `−‖v* − w^t‖² ≤ ‖w^t‖² − \
‖v*‖²` is false in general.
- Lemmas 1 and 4 give smoothness near an optimum; the rate needs it along the whole path. Here it holds everywhere, \
because the gradients of cross-entropy are bounded and the L2 term drops out of the covariances. For a loss with \
unbounded gradients, such as the squared error, it does not.
"""


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """Per pair of tilts, one case with w fixed and one over rounds; then the special starts and schedules."""
    s = experiment.settings
    base = {key: s[key] for key in ("seed", "clients", "rho", "mu")}
    found = []
    for tau, lam in s["tilts"]:
        tilts = base | {"tau": tau, "lam": lam}
        name, told = f"tau-{tau:g}-lam-{lam:g}", f"tau {tau:g}, lam {lam:g}"
        found.append(
            Case(
                name=f"fixed-{name}",
                what=f"{told}: gradient descent with w fixed, {s['iterations']} iterations",
                settings=tilts | {"part": "fixed", "iterations": s["iterations"]},
                parts=("clients",),
            )
        )
        found.append(_rounds_cell(f"rounds-{name}", told, tilts, s["steps"], s["rounds"], "zero", 0.0))
    for case in s["special"]:
        tau, lam = case["tilts"]
        told = f"{case['name']}, tau {tau:g}, lam {lam:g}"
        tilts = base | {"tau": tau, "lam": lam}
        found.append(_rounds_cell(case["name"], told, tilts, s["steps"], case["rounds"], case["start"], case["decay"]))
    return found


def _rounds_cell(
    name: str, told: str, tilts: dict[str, Any], steps: int, rounds: int, start: str, decay: float
) -> Case:
    settings = tilts | {"part": "rounds", "steps": steps, "rounds": rounds, "start": start, "decay": decay}
    return Case(name=name, what=f"{told}: {rounds} rounds", settings=settings, parts=ROUND_PARTS)


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """One descent with w fixed on every client, or one federation over rounds."""
    part = with_w_fixed if case.settings["part"] == "fixed" else over_rounds
    device = pick_device(options.device)
    with one_thread(device):
        return _short(part(federation(case.settings, device), case.settings, on_progress))


def federation(settings: Mapping[str, Any], device: torch.device | str = "cpu") -> list[Problem]:
    """Every client's objective on the digits, 4 × 4, with a constant feature, scaled to length at most 1."""
    clients = settings["clients"]
    fed = Federation.build(
        load("digits"), clients=clients["count"], classes_per_client=clients["classes_per_client"],
        max_train=clients["max_train"], seed=settings["seed"],
    )  # fmt: skip
    samples = []
    for client in range(fed.clients):
        x, y = (part.to(device) for part in fed.clean_train(client))
        small = torch.nn.functional.avg_pool2d(x.reshape(-1, 1, 8, 8).double(), 2).flatten(1)
        samples.append((torch.cat([small, small.new_ones(len(small), 1)], 1), y))
    longest = max(float(x.norm(dim=1).max()) for x, _ in samples)
    return [
        Problem(
            x=x / longest, y=y, classes=fed.classes,
            tau=settings["tau"], lam=settings["lam"], rho=settings["rho"],
        ) for x, y in samples
    ]  # fmt: skip


def _short(value: Any) -> Any:
    """JSON with eight significant digits."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, dict):
        return {key: _short(part) for key, part in value.items()}
    return [_short(part) for part in value] if isinstance(value, list) else value


# -- what is seen ------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Mapping[str, dict[str, Any]]) -> Chapter:
    """Rates and bounds in tables and figures, the statement that can be proved, and where the paper's cannot."""
    tilts = [f"tau-{tau:g}-lam-{lam:g}" for tau, lam in experiment.settings["tilts"]]
    fixed = {_told(t): results[f"fixed-{t}"] for t in tilts if f"fixed-{t}" in results}
    rounds = {_told(t): results[f"rounds-{t}"] for t in tilts if f"rounds-{t}" in results}
    special = {
        case["name"]: results[case["name"]] for case in experiment.settings["special"] if case["name"] in results
    }
    look = styles([_told(t) for t in tilts])
    parts: list[Text | Table | CaptionedFigure] = []
    if fixed:
        parts += [_fixed_table(fixed), fixed_figure(fixed, look)]
    parts.append(Text(markdown=_PROOF.strip()))
    if rounds:
        parts += [_rounds_table(rounds | special), rounds_figure(rounds, look), bound_figure(rounds, look)]
    if special:
        parts.append(special_figure(special))
    verdicts = [verdict(claim, fixed, rounds, special) for claim in experiment.claims]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts, verdicts=verdicts)


def _told(tilts: str) -> str:
    """The tilts of a case's name in words.

    >>> _told("tau-10-lam-1")
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
        notes="The constants come from the data alone; tau and lam enter only where they stand. The worst contraction "
        "is that of the slowest of all iterations, the number of iterations that of the slowest client.",
    )  # fmt: skip


def _rounds_table(rounds: Mapping[str, Any]) -> Table:
    rows = [
        [
            name, _rate(r, "shared"), _rate(r, "personal"), f"{r['forget']:.4f}",
            f"{r['tightest']:.4f}", f"{r['drift']:.4f}", broken_in(r) or "holds",
        ]
        for name, r in rounds.items()
    ]  # fmt: skip
    return Table(
        caption="Over rounds: by how much the errors shrink, and the two bounds",
        columns=(
            "case", "w, factor", "v, factor", "a", "our bound, used up", "drift of w", "the paper's bound",
        ),
        rows=rows,
        notes="Factors are per round (with decaying steps, a power of the round), fitted to the second half; a is what "
        "v alone is allowed. Our bound holds where no more than 1 of it is used. Drift: how far w's limit is from the "
        "minimiser of the clients' mean objective, to which several local steps of constant size do not lead. "
        "from-the-limit: w starts where it ends. decaying: w's step shrinks like 1 / round, v's does not. The paper's "
        "bound is taken with the D and E of its proof; in brackets, how many times the bound the gap comes to at most.",
    )  # fmt: skip


def _rate(result: Mapping[str, Any], model: str) -> str:
    """By what factor an error shrinks a round, or as what power of the round."""
    factor, power = result[f"{model}_factor"], result[f"{model}_power"]
    if power is not None:
        return f"round^{power:.2f}"
    return "0 from the start" if factor is None else f"{factor:.4f}"
