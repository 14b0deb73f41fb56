"""Checks of the methods of a run together, and against its data and settings."""

from collections.abc import Container, Iterable
from typing import Any

from fedtilt.data.groups import CLASS
from fedtilt.data.targets import ALL
from fedtilt.errors import InputError, NoEffect
from fedtilt.math.robust import bad_count
from fedtilt.methods.aggregators import MultiKrum, RootSelected, TrimmedMean
from fedtilt.methods.before import NNM, Bucketing
from fedtilt.methods.component import ServerRound
from fedtilt.methods.method import Method
from fedtilt.methods.objectives import Tilted
from fedtilt.methods.personal import Moreau


def check_methods(
    methods: Iterable[Method], lr: float, lr_personal: float | None, *, plain_sgd: bool = True, epochs: bool = True
) -> list[Method]:
    """Check the methods of a run together: unique names, and learning rates for which the proximal terms are stable.

    The bound lr · mu < 2 holds for plain SGD alone; without `epochs`, with local steps, methods have none of their own.
    """
    if isinstance(methods, Method | str) or not isinstance(methods, Iterable):
        raise InputError(f"methods must be a list, such as [ft.fedavg(), ft.ditto()], got {methods!r}")
    methods = list(methods)
    if not methods:
        raise InputError("a run needs at least one method")
    for m in methods:
        if not isinstance(m, Method):
            raise InputError(f"methods must be a list of methods, such as ft.fedavg() or ft.ditto(mu=0.1), got {m!r}")
    names = [m.name for m in methods]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two methods are named {name!r}; give one of them another name=")
    for m in methods:
        own_epochs = {
            "epochs of the personal model": None if m.personal is None else m.personal.epochs,
            "first_epochs of the local parameters": None if m.local is None else m.local.first_epochs,
        }
        for key, value in own_epochs.items():
            if value is not None and not epochs:
                raise InputError(
                    f"{key} = {value} of method {m.name!r} has no effect with local_steps; leave one of them out"
                )
        if m.correction is not None and m.correction.needs_plain_sgd and not plain_sgd:
            raise InputError(
                f"correction = {m.correction.label!r} of method {m.name!r} needs plain SGD on the clients: leave "
                "optimizer, momentum, weight_decay and clip_norm out"
            )
        _check_stable(m, *m.rates(lr, lr_personal), plain_sgd)
    return methods


def _check_stable(m: Method, lr: float, lr_personal: float, plain_sgd: bool) -> None:
    """Raise InputError if a proximal term diverges with these learning rates."""
    prox = m.prox or (0.0 if m.correction is None else m.correction.prox)
    mu = 0.0 if m.personal is None else m.personal.mu
    if isinstance(m.personal, Moreau) and lr * mu > 1:
        raise InputError(
            f"mu = {mu:g} of method {m.name!r} with learning rate {lr:g} moves the shared model past the personal one: "
            f"lr · mu must be ≤ 1, got {lr * mu:g}; lower one of them"
        )
    for key, weight, rate in (("prox", prox, lr), ("mu", mu, lr_personal)):
        if plain_sgd and rate * weight >= 2:
            raise InputError(
                f"{key} = {weight:g} of method {m.name!r} with learning rate {rate:g} diverges: lr · {key} must be < "
                f"2, got {rate * weight:g}; lower one of them"
            )


def tolerant_parts(method: Method) -> list[Any]:
    """The steps and the rule of a method that tolerate a share of bad clients."""
    return [part for part in (*method.before, method.aggregator) if hasattr(part, "bad_share")]


def needed_models(method: Method, bad: int) -> int:
    """How many models the rule needs if this many of them may be bad; every bucket counts as one model.

    >>> needed_models(Method(name="a", aggregator="bulyan", before=[{"rule": "bucketing", "size": 2}]), 1)
    13
    """
    needed = method.aggregator.needed_models(bad)
    for step in reversed(method.before):
        needed = step.needed_models(needed)
    return needed


def check_models(method: Method, round: ServerRound) -> None:
    """Raise InputError if a round has fewer models than the rule needs."""
    models = len(round.clients)
    for part in tolerant_parts(method):
        bad = round.bad_count(part.bad_share)
        if bad and models < (needed := needed_models(method, bad)):
            raise InputError(
                f"{models} of {round.selected} models can be aggregated, and {method.aggregator.label} with "
                f"bad_share = {part.bad_share:g} needs {needed}, because {bad} may be bad; lower bad_share of method "
                f"{method.name!r}, or wait for more clients"
            )


def check_bad_share(methods: Iterable[Method], clients: int) -> None:
    """Raise InputError if a share of bad clients is none of a round's clients, or more than the rule tolerates."""
    for m in methods:
        for part in tolerant_parts(m):
            bad = bad_count(part.bad_share, clients)
            if bad == 0 and isinstance(part, TrimmedMean | MultiKrum | RootSelected | NNM):
                remedy = f"bad_share ≥ {1 / clients:.2g}" if clients > 2 else "another aggregator"
                same = {NNM: "plain means", RootSelected: "norm_clipped"}.get(type(part), "the plain mean")
                raise InputError(
                    f"bad_share = {part.bad_share:g} of method {m.name!r} is no client of the {clients} in a round, so "
                    f"{part.label} would be {same}; use {remedy}"
                )
            if bad and clients < (needed := needed_models(m, bad)):
                raise InputError(
                    f"bad_share = {part.bad_share:g} of method {m.name!r} is {bad} of the {clients} clients in a "
                    f"round, for which {m.aggregator.label} needs {needed}; lower bad_share, or let more clients take "
                    "part"
                )


def check_steps_used(methods: Iterable[Method], clients: int) -> None:
    """Raise NoEffect if bucketing changes nothing: the mean of equal buckets is the mean of the models."""
    for m in methods:
        last = m.before[-1] if m.before else None
        if not isinstance(last, Bucketing) or not m.is_plain_mean or last.size == 1:
            continue
        if clients % last.size == 0 or clients < last.size:
            raise NoEffect(
                f"bucketing before the rule of method {m.name!r} has no effect: the mean of buckets of the same size "
                "is the mean of the models; leave it out, or set another aggregator",
                key="before",
            )


def check_levels(methods: Iterable[Method], groups: Iterable[str], label_group: str = CLASS) -> None:
    """Raise InputError if a level is over groups that the data does not name; targets give those of `label_group`."""
    known = list(dict.fromkeys([label_group, *groups]))
    for m in methods:
        if known == [ALL] and isinstance(m.objective, Tilted) and m.objective.tau not in (0, m.objective.lam):
            raise InputError(
                f"tau = {m.objective.tau:g} of method {m.name!r} has no effect: it tilts over classes, and these "
                "targets are none; set tau = 0, or name groups of samples (group_train of the data set)"
            )
        for name, _ in m.objective.levels if isinstance(m.objective, Tilted) else ():
            if name not in known:
                raise InputError(
                    f"levels of method {m.name!r} have {name!r}, but the data has the groups "
                    f"{', '.join(map(repr, known))}; name the column in data.group, or in group= of ft.data.table"
                )


def check_rates_used(methods: Iterable[Method], given: Container[str], table: str = "") -> None:
    """Raise InputError if a learning rate of the run has no effect, because the methods have their own."""
    methods = list(methods)
    used = {
        "lr": any(m.lr is None for m in methods),
        "lr_personal": any(m.personal is not None and m.personal.lr is None for m in methods),
    }
    for key, has_effect in used.items():
        if key in given and not has_effect:
            own = [m.name for m in methods if (m.lr if key == "lr" else m.personal and m.personal.lr) is not None]
            remedy = f"set that of {' or '.join(own)} instead" if own else "leave it out"
            raise InputError(f"{table}{key} has no effect: no method of this run takes it; {remedy}")
