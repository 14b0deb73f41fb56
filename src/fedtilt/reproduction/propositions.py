"""FedAvg, FedProx and Ditto as settings of FedTilt, against loops written by hand; and what is not one."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt.data import Federation, load
from fedtilt.evaluation.metrics import client_accuracy
from fedtilt.evaluation.results import evaluated_counts
from fedtilt.methods import Method
from fedtilt.models import flat, mlp
from fedtilt.reproduction.chapter import Chapter, Holds, Table, Verdict, verdict_on
from fedtilt.reproduction.experiment import Cell, Claim, Experiment, OnProgress, Options
from fedtilt.rounds.executors import one_thread
from fedtilt.rounds.settings import TrainSettings, initial_model
from fedtilt.simulation import Round, prepare, simulate_prepared
from fedtilt.training import make_batches

SAME = 1e-4  # of how far a model has moved: what rounding may come to in a few rounds of float32
_PARTS = ("fedavg", "fedavg by samples", "fedprox", "ditto", "large mu")


def cells(experiment: Experiment, options: Options) -> list[Cell]:
    """One cell per comparison and seed."""
    s = experiment.settings
    base = {key: s[key] for key in ("clients", "hidden", "train")}
    found = []
    for part in _PARTS:
        mu = {"mu": s["large_mu"] if part == "large mu" else s["mu"]} if "fedavg" not in part else {}
        for seed in range(options.seeds or s["seeds"]):
            found.append(
                Cell(
                    name=f"{part.replace(' ', '-')}-seed-{seed}",
                    what=f"{part}, seed {seed}: {s['train']['rounds']} rounds twice",
                    settings=base | mu | {"part": part, "seed": seed},
                    parts=("behind",) if part == "large mu" else ("moved", "shared", "personal", "missing", "accuracy"),
                )
            )
    return found


def measure(cell: Cell, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train the same federation with FedTilt's setting and by hand, and compare."""
    on_progress(0, 1, "")
    with one_thread(torch.device("cpu")):
        return _measured(cell.settings, options)


def _measured(s: Mapping[str, Any], options: Options) -> dict[str, Any]:
    federation = Federation.build(
        load("digits"), clients=s["clients"]["count"], classes_per_client=s["clients"]["classes_per_client"],
        seed=s["seed"],
    )  # fmt: skip
    training = TrainSettings(**s["train"], seed=s["seed"], device=options.device)
    model = partial(mlp, hidden=s["hidden"])
    net = initial_model(federation, model, s["seed"])
    if s["part"] == "fedavg":
        method = Method(name="fedtilt", tau=0.0, lam=0.0, q=0.0, mu=math.inf)
        return compared(method, by_hand(federation, training, net), federation, training, net)
    if s["part"] == "fedavg by samples":
        method = Method(name="fedtilt", tau=0.0, lam=0.0, q=0.0, mu=math.inf, weighting="samples")
        return compared(method, by_hand(federation, training, net, by_samples=True), federation, training, net)
    if s["part"] == "ditto":
        method = Method(name="fedtilt", tau=0.0, lam=0.0, q=0.0, mu=s["mu"])
        return compared(method, by_hand(federation, training, net, mu=s["mu"]), federation, training, net)
    if s["part"] == "fedprox":
        method = Method(name="fedtilt", tau=0.0, lam=0.0, q=0.0, mu=math.inf, prox=s["mu"])
        found = compared(method, by_hand(federation, training, net, prox=s["mu"]), federation, training, net)
        return found | _without_identification(federation, training, net, s["mu"])
    return {"behind": {f"{mu:g}": _behind(federation, training, net, mu) for mu in s["mu"]}}


# -- by hand -----------------------------------------------------------------------------------------------------------

ByHand = tuple[nn.Module, dict[int, nn.Module]]  # the shared model, and those of the clients that took part


def by_hand(
    federation: Federation, training: TrainSettings, net: nn.Module, *, prox: float = 0.0, mu: float | None = None,
    by_samples: bool = False,
) -> ByHand:  # fmt: skip
    """FedAvg; FedProx where `prox` pulls; Ditto where there is a `mu`: modules, an optimiser, autograd and a mean."""
    shared, personal = copy.deepcopy(net), dict[int, nn.Module]()
    for number in range(1, training.rounds + 1):
        trained, sizes = [], []
        for client in training.selected(number, federation.clients):
            x, y = federation.train(client, seed=training.seed, round=number)
            batches = list(
                make_batches(
                    x, y, seed=training.seed, round=number, client=client, epochs=training.epochs,
                    batch_size=training.batch_size,
                )
            )  # fmt: skip
            own = copy.deepcopy(shared)
            _descend(own, shared, prox, batches, training.lr)
            trained.append(own)
            sizes.append(len(y))
            if mu is not None:
                _descend(personal.setdefault(client, copy.deepcopy(shared)), shared, mu, batches, training.lr)
        shared = _averaged(trained, sizes if by_samples else [1] * len(sizes))
    return shared, personal


def _descend(
    model: nn.Module, anchor: nn.Module, pull: float, batches: Sequence[tuple[Tensor, Tensor]], lr: float
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    fixed = [p.detach().clone() for p in anchor.parameters()]
    for x, y in batches:
        optimizer.zero_grad()
        away = sum((p - a).square().sum() for p, a in zip(model.parameters(), fixed, strict=True))
        (F.cross_entropy(model(x), y) + pull / 2 * away).backward()
        optimizer.step()


def _averaged(trained: Sequence[nn.Module], weights: Sequence[int]) -> nn.Module:
    mean = copy.deepcopy(trained[0])
    states = [m.state_dict() for m in trained]
    mean.load_state_dict(
        {key: sum(w * state[key] for w, state in zip(weights, states, strict=True)) / sum(weights) for key in states[0]}
    )
    return mean


# -- against the library -----------------------------------------------------------------------------------------------


def compared(
    method: Method, hand: ByHand, federation: Federation, training: TrainSettings, net: nn.Module
) -> dict[str, Any]:
    """The largest differences in w, in any v_n and in any client's accuracy, and how far w moved at all."""
    r = _every_round(method, federation, training, net)[-1]
    shared, personal = hand
    mine = {client: r.state.client_states.get((method.name, client)) for client in personal}
    apart = [_short((own.cpu() - flat(personal[c])).abs().max()) for c, own in mine.items() if own is not None]
    counts = _judged_by_hand(hand, federation, method.personal)
    assert r.counts is not None
    accuracy = client_accuracy(evaluated_counts(r.counts[method.name]), r.total) - client_accuracy(counts, r.total)
    return {
        "moved": _short((flat(shared) - flat(net)).abs().max()),
        "shared": _short((r.state.shared[method.name].cpu() - flat(shared)).abs().max()),
        "personal": max(apart) if apart else None,
        "missing": sorted(c for c, own in mine.items() if own is None),
        "accuracy": _short(accuracy.abs().max()),
    }  # fmt: skip


def _every_round(method: Method, federation: Federation, training: TrainSettings, net: nn.Module) -> list[Round]:
    """Every round of a run; their states are one, their shared models are not: see `Round`."""
    return list(simulate_prepared(prepare([method], federation, net, training)))


def _judged_by_hand(hand: ByHand, federation: Federation, personal: bool) -> Tensor:
    """Right answers (N, K) of each client's own model where it has one, otherwise of the shared model."""
    shared, own = hand
    counts = torch.zeros(federation.clients, federation.classes, dtype=torch.long)
    for client in range(federation.clients):
        x, y = federation.test(client)
        model = own.get(client, shared) if personal else shared
        with torch.no_grad():
            counts[client] = torch.bincount(y[model(x).argmax(1) == y], minlength=federation.classes)
    return counts


def _without_identification(
    federation: Federation, training: TrainSettings, net: nn.Module, mu: float
) -> dict[str, float]:
    """Algorithm 1 with a finite mu and v_n left apart from w_n: what its w is, and what its first v_n are."""
    free = Method(name="fedtilt", tau=0.0, lam=0.0, q=0.0, mu=mu)
    prox = Method(name="fedtilt", tau=0.0, lam=0.0, q=0.0, mu=math.inf, prox=mu)
    plain = Method(name="fedtilt", tau=0.0, lam=0.0, q=0.0, mu=math.inf)
    ends = [_every_round(m, federation, training, net)[-1].state.shared["fedtilt"] for m in (free, prox, plain)]
    begun = replace(training, rounds=1)
    (first,) = _every_round(free, federation, begun, net)
    (pulled,) = _every_round(prox, federation, begun, net)
    own = torch.stack([first.state.client_states.get(("fedtilt", c)) for c in first.selected])  # type: ignore[misc]
    return {
        "apart_from_fedprox": _short((ends[0] - ends[1]).abs().max()),
        "apart_from_fedavg": _short((ends[0] - ends[2]).abs().max()),
        "first_round": _short((own.mean(0).cpu() - pulled.state.shared["fedtilt"].cpu()).abs().max()),
    }


def _behind(federation: Federation, training: TrainSettings, net: nn.Module, mu: float) -> dict[str, float]:
    """How far the last round's v_n are from the w they received, and from the w that came out."""
    method = Method(name="fedtilt", tau=0.0, lam=0.0, q=0.0, mu=mu)
    step = replace(training, lr_personal=min(training.lr, 1 / mu))
    received, out = flat(net), flat(net)
    for r in simulate_prepared(prepare([method], federation, net, step)):
        received, out = out, r.state.shared["fedtilt"].cpu()
    own = torch.stack([r.state.client_states.get(("fedtilt", c)) for c in r.selected]).cpu()  # type: ignore[misc]
    return {
        "received": _short((own - received).norm(dim=1).max()),
        "out": _short((own - out).norm(dim=1).max()),
        "moved": _short((out - received).norm()),
    }


def _short(value: Tensor) -> float:
    return float(f"{float(value):.3g}")


# -- what is seen ------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Mapping[str, dict[str, Any]]) -> Chapter:
    """The largest differences over all seeds, and what the propositions leave unsaid."""
    by_part = {
        part: [results[key] for key in sorted(results) if key.startswith(f"{part.replace(' ', '-')}-seed-")]
        for part in _PARTS
    }
    found = {part: rows for part, rows in by_part.items() if rows}
    parts = [_differences(found)] if found.keys() - {"large mu"} else []
    if "large mu" in found:
        parts.append(_large_mu(found["large mu"]))
    verdicts = [_verdict(claim, found) for claim in experiment.claims]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts, verdicts=verdicts)


def _worst(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return max((row[key] for row in rows if row[key] is not None), default=None)


def _differences(found: Mapping[str, Any]) -> Table:
    settings = {
        "fedavg": "q = 0, tau = lam = 0, mu = inf",
        "fedavg by samples": "the same, clients weighing their samples",
        "fedprox": "q = 0, tau = lam = 0, w pulled by mu, no v",
        "ditto": "q = 0, tau = lam = 0, mu finite",
    }
    rows = []
    for part, setting in settings.items():
        if part in found:
            runs = found[part]
            own = _worst(runs, "personal")
            rows.append(
                [
                    part, setting, f"{_worst(runs, 'shared'):.1e}", "no v" if own is None else f"{own:.1e}",
                    f"{min(run['moved'] for run in runs):.2f}", f"{_worst(runs, 'accuracy'):.2f}",
                ]
            )  # fmt: skip
    return Table(
        caption="FedTilt's setting against a loop by hand: the largest difference in any parameter",
        columns=("method", "FedTilt with", "in w", "in any v_n", "w moved by", "accuracy of any client (points)"),
        rows=rows,
        notes=f"Seeds: {max(len(runs) for runs in found.values())}. 'w moved by': the largest change of a parameter in "
        "training, smallest over seeds; beside it a difference of 1e-6 is rounding.",
    )


def _large_mu(runs: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for mu in runs[0]["behind"]:
        values = [run["behind"][mu] for run in runs]
        rows.append([mu, *(f"{_worst(values, key):.2g}" for key in ("received", "out", "moved"))])
    return Table(
        caption="mu towards infinity: how far the personal models of the last round are from w",
        columns=("mu", "‖v_n − w received‖, largest", "‖v_n − w aggregated‖, largest", "w moved in that round"),
        rows=rows,
        notes="v's step is 1 / mu where that is less than w's. v_n goes to the w it received, like 1 / mu; the w that "
        "comes out of the round is one round ahead, so the models a client holds in the limit are FedAvg's of the "
        "round before.",
    )


def _verdict(claim: Claim, found: Mapping[str, Any]) -> Verdict:
    key = claim.key
    if key not in found:
        return verdict_on(claim, "not measured")
    runs = found[key]
    largest = max(value for run in runs for value in (run["shared"], run["personal"]) if value is not None)
    same = all(not run["missing"] and max(run["shared"], run["personal"] or 0.0) <= SAME * run["moved"] for run in runs)
    holds: Holds = "holds" if same else "does not hold"
    told = f"Largest difference {largest:.1e}, in any client's accuracy {_worst(runs, 'accuracy'):.2f} points."
    if key == "fedprox" and same:
        holds = "holds partly"
        told += (
            " That needs v_n = w_n read as: the shared model is itself pulled, and the server averages the pulled "
            "models. This changes Algorithm 1; it is no value of its settings. Left apart, as the algorithm has them, "
            f"FedTilt's w differs from FedProx's by {min(run['apart_from_fedprox'] for run in runs):.2f} and from "
            f"FedAvg's by {_worst(runs, 'apart_from_fedavg'):g}, whatever mu is. In a first round the mean of the v_n "
            f"is FedProx's w (difference {_worst(runs, 'first_round'):.0e})."
        )
    if key == "fedavg" and same:
        told += (
            " The original FedAvg weighs clients by their samples, the paper's server counts them equally; both are "
            "settings, and both agree."
        )
    return verdict_on(claim, holds, told)
