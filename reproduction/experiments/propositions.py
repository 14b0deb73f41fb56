"""FedAvg, FedProx and Ditto as settings of FedTilt, compared with hand-written loops."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedtilt.data import Federation, load
from fedtilt.data.inputs import Inputs
from fedtilt.engine.initial_model import initial_model
from fedtilt.engine.prepare import prepare
from fedtilt.engine.settings import TrainSettings
from fedtilt.evaluation.scores import client_scores
from fedtilt.executors.in_process import one_thread
from fedtilt.methods import Method, fedtilt
from fedtilt.models import mlp, parameters_to_vector
from fedtilt.simulation import Round, simulate_prepared
from fedtilt.training import make_batches
from reproduction.chapter import Chapter, Holds, Table, Verdict, verdict_on
from reproduction.experiment import Case, Claim, Experiment, OnProgress, Options, Results, by_seed

TOLERANCE = 1e-4  # relative to how far a model moved: rounding in a few rounds of float32
_PARTS = ("fedavg", "fedavg by samples", "fedprox", "ditto", "large mu")
_untilted = partial(fedtilt, tau=0.0, lam=0.0)


def cases(experiment: Experiment, options: Options) -> list[Case]:
    """One case per comparison and seed."""
    settings = experiment.settings
    base = {key: settings[key] for key in ("clients", "hidden", "train")}
    result = []
    for part in _PARTS:
        mu = {"mu": settings["large_mu"] if part == "large mu" else settings["mu"]} if "fedavg" not in part else {}
        for seed in range(options.seeds or settings["seeds"]):
            result.append(
                Case(
                    name=f"{part.replace(' ', '-')}-seed-{seed}",
                    what=f"{part}, seed {seed}: {settings['train']['rounds']} rounds twice",
                    settings=base | mu | {"part": part, "seed": seed},
                    parts=("behind",) if part == "large mu" else ("moved", "shared", "personal", "missing", "accuracy"),
                )
            )
    return result


def measure(case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
    """Train the same federation with FedTilt's setting and by hand, and compare."""
    on_progress(0, 1, "")
    with one_thread(torch.device("cpu")):
        return _measure(case.settings, options)


def _measure(settings: Mapping[str, Any], options: Options) -> dict[str, Any]:
    federation = Federation.build(
        load("digits"), clients=settings["clients"]["count"],
        classes_per_client=settings["clients"]["classes_per_client"], seed=settings["seed"],
    )  # fmt: skip
    training = TrainSettings(**settings["train"], seed=settings["seed"], device=options.device)
    net, _ = initial_model(federation, partial(mlp, hidden=settings["hidden"]), TrainSettings(seed=settings["seed"]))
    part, mu = settings["part"], settings.get("mu", math.inf)
    if part == "large mu":
        return {"behind": {f"{value:g}": _distances_to_w(federation, training, net, value) for value in mu}}
    comparisons: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # part → settings of FedTilt, of the loop by hand
        "fedavg": ({"mu": math.inf}, {}),
        "fedavg by samples": ({"mu": math.inf, "weighting": "samples"}, {"by_samples": True}),
        "fedprox": ({"mu": math.inf, "prox": mu}, {"prox": mu}),
        "ditto": ({"mu": mu}, {"mu": mu}),
    }
    method, by_hand = comparisons[part]
    models = train_by_hand(federation, training, net, **by_hand)
    result = compare(_untilted(**method), models, federation, training, net)
    return result | _separate_models(federation, training, net, mu) if part == "fedprox" else result


# -- by hand -----------------------------------------------------------------------------------------------------------


class HandTrained(NamedTuple):
    """Models that a hand-written loop trained."""

    shared: nn.Module
    personal: dict[int, nn.Module]  # of the clients that took part


def train_by_hand(
    federation: Federation, training: TrainSettings, net: nn.Module, *, prox: float = 0.0, mu: float | None = None,
    by_samples: bool = False,
) -> HandTrained:  # fmt: skip
    """FedAvg, FedProx or Ditto with modules, `torch.optim`, autograd and a mean.

    FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    arXiv:1602.05629. FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", arXiv:1812.06127.
    Ditto: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization", arXiv:2012.04221.

    Args:
        federation: The clients and their data.
        training: Rounds, selection of clients, batches and learning rate.
        net: The initial model.
        prox: Weight of the proximal term of the shared model; FedProx if positive.
        mu: Weight of the proximal term of the personal models; Ditto if not None.
        by_samples: Weight clients by their number of samples instead of equally.
    """
    shared, personal = copy.deepcopy(net), dict[int, nn.Module]()
    for number in range(1, training.rounds + 1):
        trained, sizes = [], []
        for client in training.selected(number, federation.clients):
            x, y = federation.train(client, seed=training.seed, round=number)
            assert isinstance(x, Tensor)
            batches = make_batches(
                x, y, seed=training.seed, round=number, client=client, epochs=training.epochs,
                batch_size=training.batch_size, last_batch=training.last_batch,
            )  # fmt: skip
            steps = list(batches.all())
            model = copy.deepcopy(shared)
            _gradient_descent(model, shared, prox, steps, training.lr)
            trained.append(model)
            sizes.append(len(y))
            if mu is not None:
                _gradient_descent(personal.setdefault(client, copy.deepcopy(shared)), shared, mu, steps, training.lr)
        shared = _weighted_mean(trained, sizes if by_samples else [1] * len(sizes))
    return HandTrained(shared, personal)


def _gradient_descent(
    model: nn.Module, anchor: nn.Module, prox: float, batches: Sequence[tuple[Inputs, Tensor]], lr: float
) -> None:
    """SGD on cross-entropy + prox / 2 · ‖model − anchor‖²."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    fixed = [p.detach().clone() for p in anchor.parameters()]
    for x, y in batches:
        optimizer.zero_grad()
        sq_dist = sum((p - a).square().sum() for p, a in zip(model.parameters(), fixed, strict=True))
        (F.cross_entropy(model(x), y) + prox / 2 * sq_dist).backward()
        optimizer.step()


def _weighted_mean(trained: Sequence[nn.Module], weights: Sequence[int]) -> nn.Module:
    mean = copy.deepcopy(trained[0])
    states = [m.state_dict() for m in trained]
    mean.load_state_dict(
        {key: sum(w * state[key] for w, state in zip(weights, states, strict=True)) / sum(weights) for key in states[0]}
    )
    return mean


# -- compared with the library -----------------------------------------------------------------------------------------


def compare(
    method: Method, by_hand: HandTrained, federation: Federation, training: TrainSettings, net: nn.Module
) -> dict[str, Any]:
    """The largest differences in w, in any v_n and in any client's accuracy, and how far w moved.

    Args:
        method: The setting of FedTilt.
        by_hand: The models of the hand-written loop.
        federation: The clients and their data.
        training: The same training settings for both.
        net: The same initial model for both.
    """
    r = _all_rounds(method, federation, training, net)[-1]
    shared, personal = by_hand
    library = {client: r.state.client_states.get((method.name, client)).personal for client in personal}
    differences = [
        _round((model.cpu() - parameters_to_vector(personal[c])).abs().max())
        for c, model in library.items()
        if model is not None
    ]
    counts = _correct_by_hand(by_hand, federation, method.has_personal)
    assert r.counts is not None
    accuracy = client_scores(r.counts[method.name].evaluated, r.total) - client_scores(counts, r.total)
    return {
        "moved": _round((parameters_to_vector(shared) - parameters_to_vector(net)).abs().max()),
        "shared": _round((r.state.shared[method.name].cpu() - parameters_to_vector(shared)).abs().max()),
        "personal": max(differences) if differences else None,
        "missing": sorted(c for c, kept in library.items() if kept is None),
        "accuracy": _round(accuracy.abs().max()),
    }  # fmt: skip


def _all_rounds(method: Method, federation: Federation, training: TrainSettings, net: nn.Module) -> list[Round]:
    """Every round of a run; all share one state, but not their shared models: see `Round`."""
    return list(simulate_prepared(prepare([method], federation, net, training)))


def _correct_by_hand(by_hand: HandTrained, federation: Federation, use_personal: bool) -> Tensor:
    """Correct predictions (N, K) of each client's personal model if it has one, otherwise of the shared model."""
    counts = torch.zeros(federation.clients, federation.classes, dtype=torch.long)
    for client in range(federation.clients):
        x, y = federation.test(client)
        model = by_hand.personal.get(client, by_hand.shared) if use_personal else by_hand.shared
        with torch.no_grad():
            counts[client] = torch.bincount(y[model(x).argmax(1) == y], minlength=federation.classes)
    return counts


def _separate_models(federation: Federation, training: TrainSettings, net: nn.Module, mu: float) -> dict[str, float]:
    """Algorithm 1 with a finite mu and separate v_n and w_n, compared with FedProx and FedAvg.

    Differences of the final w, and of the mean of the v_n after the first round from FedProx's w.
    """
    separate = _untilted(mu=mu)
    fedprox = _untilted(mu=math.inf, prox=mu)
    fedavg = _untilted(mu=math.inf)
    methods = (separate, fedprox, fedavg)
    final = [_all_rounds(method, federation, training, net)[-1].state.shared["fedtilt"] for method in methods]
    one_round = replace(training, rounds=1)
    (first,) = _all_rounds(separate, federation, one_round, net)
    (first_prox,) = _all_rounds(fedprox, federation, one_round, net)
    v = _personal_models(first)
    return {
        "apart_from_fedprox": _round((final[0] - final[1]).abs().max()),
        "apart_from_fedavg": _round((final[0] - final[2]).abs().max()),
        "first_round": _round((v.mean(0) - first_prox.state.shared["fedtilt"].cpu()).abs().max()),
    }


def _personal_models(round: Round) -> Tensor:
    """The personal models of the clients that took part in a round."""
    found = [round.state.client_states.get(("fedtilt", client)).personal for client in round.selected]
    return torch.stack([model for model in found if model is not None]).cpu()


def _distances_to_w(federation: Federation, training: TrainSettings, net: nn.Module, mu: float) -> dict[str, float]:
    """Distances of the last round's v_n to the w they received and to the aggregated w, and how far w moved."""
    method = _untilted(mu=mu)
    stable = replace(training, lr_personal=min(training.lr, 1 / mu))
    received, aggregated = parameters_to_vector(net), parameters_to_vector(net)
    for r in simulate_prepared(prepare([method], federation, net, stable)):
        received, aggregated = aggregated, r.state.shared["fedtilt"].cpu()
    v = _personal_models(r)
    return {
        "received": _round((v - received).norm(dim=1).max()),
        "out": _round((v - aggregated).norm(dim=1).max()),
        "moved": _round((aggregated - received).norm()),
    }


def _round(value: Tensor) -> float:
    """Three significant digits."""
    return float(f"{float(value):.3g}")


# -- the chapter -------------------------------------------------------------------------------------------------------


def chapter(experiment: Experiment, results: Results) -> Chapter:
    """The largest differences over all seeds, the limit of a large mu, verdicts."""
    by_part = {part: list(by_seed(results, part.replace(" ", "-")).values()) for part in _PARTS}
    measured = {part: runs for part, runs in by_part.items() if runs}
    parts = [_difference_table(measured)] if measured.keys() - {"large mu"} else []
    if "large mu" in measured:
        parts.append(_large_mu_table(measured["large mu"]))
    verdicts = [_verdict(claim, measured) for claim in experiment.claims]
    return Chapter(title=experiment.title, lead=experiment.about.strip(), parts=parts, verdicts=verdicts)


def _largest(runs: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return max((run[key] for run in runs if run[key] is not None), default=None)


def _difference_table(measured: Mapping[str, Any]) -> Table:
    settings = {
        "fedavg": "q = 0, tau = lam = 0, mu = inf",
        "fedavg by samples": "the same, clients weighted by samples",
        "fedprox": "q = 0, tau = lam = 0, proximal term mu for w, no v",
        "ditto": "q = 0, tau = lam = 0, mu finite",
    }
    rows = []
    for part, setting in settings.items():
        if part in measured:
            runs = measured[part]
            personal = _largest(runs, "personal")
            rows.append(
                [
                    part, setting, f"{_largest(runs, 'shared'):.1e}", "no v" if personal is None else f"{personal:.1e}",
                    f"{min(run['moved'] for run in runs):.2f}", f"{_largest(runs, 'accuracy'):.2f}",
                ]
            )  # fmt: skip
    return Table(
        caption="FedTilt's setting and a hand-written loop: the largest difference in any parameter",
        columns=("method", "FedTilt with", "in w", "in any v_n", "w moved by", "accuracy of any client (points)"),
        rows=rows,
        notes=f"Seeds: {max(len(runs) for runs in measured.values())}. 'w moved by': the largest change of a parameter "
        "in training, smallest over seeds; compared with it, a difference of 1e-6 is rounding.",
    )


def _large_mu_table(runs: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for mu in runs[0]["behind"]:
        values = [run["behind"][mu] for run in runs]
        rows.append([mu, *(f"{_largest(values, key):.2g}" for key in ("received", "out", "moved"))])
    return Table(
        caption="Large mu: distance of the last round's personal models to w",
        columns=("mu", "‖v_n − w received‖, largest", "‖v_n − w aggregated‖, largest", "w moved in that round"),
        rows=rows,
        notes="The learning rate of v is 1 / mu where that is less than that of w. v_n approaches the w it received, "
        "like 1 / mu; the aggregated w is one round ahead, so in the limit clients have FedAvg's model of the previous "
        "round.",
    )


def _verdict(claim: Claim, measured: Mapping[str, Any]) -> Verdict:
    key = claim.key
    if key not in measured:
        return verdict_on(claim, "not measured")
    runs = measured[key]
    largest = max(value for run in runs for value in (run["shared"], run["personal"]) if value is not None)
    same = all(
        not run["missing"] and max(run["shared"], run["personal"] or 0.0) <= TOLERANCE * run["moved"] for run in runs
    )
    holds: Holds = "holds" if same else "does not hold"
    numbers = f"Largest difference {largest:.1e}, in any client's accuracy {_largest(runs, 'accuracy'):.2f} points."
    if key == "fedprox" and same:
        holds = "holds partly"
        numbers += (
            " This reads v_n = w_n as: the shared model itself has the proximal term, and the server averages these "
            "models. That changes Algorithm 1; no value of its settings does it. With separate v_n and w_n, as in the "
            f"algorithm, FedTilt's w differs from FedProx's by {min(run['apart_from_fedprox'] for run in runs):.2f} "
            f"and from FedAvg's by {_largest(runs, 'apart_from_fedavg'):g}, for any mu. After the first round the mean "
            f"of the v_n is FedProx's w (difference {_largest(runs, 'first_round'):.0e})."
        )
    if key == "fedavg" and same:
        numbers += (
            " The original FedAvg weights clients by their samples, the paper's server weights them equally; both are "
            "settings, and both agree."
        )
    return verdict_on(claim, holds, numbers)
