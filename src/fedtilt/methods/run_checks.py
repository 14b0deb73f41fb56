"""Checks of the methods of a run together, and against its data and settings."""

import math
from collections.abc import Container, Iterable

from fedtilt.data.groups import CLASS
from fedtilt.errors import InputError, NoEffect
from fedtilt.methods.corrections import CORRECTIONS
from fedtilt.methods.method import Method


def check_methods(
    methods: Iterable[Method], lr: float, lr_personal: float | None, *, plain_sgd: bool = True, epochs: bool = True
) -> list[Method]:
    """Check the methods of a run together: unique names, and learning rates for which the proximal terms are stable.

    Args:
        methods: the methods
        lr: the run's learning rate of shared models
        lr_personal: the run's learning rate of personal models; None: lr
        plain_sgd: whether clients train by plain SGD; the bound lr · mu < 2 holds for it alone
        epochs: whether clients train for a number of epochs; otherwise methods cannot have their own
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
        if m.epochs_personal is not None and not epochs:
            raise InputError(
                f"epochs_personal = {m.epochs_personal} of method {m.name!r} has no effect with local_steps; leave one "
                "of them out"
            )
        if m.head_epochs is not None and not epochs:
            raise InputError(
                f"head_epochs = {m.head_epochs} of method {m.name!r} has no effect with local_steps; leave one of them "
                "out"
            )
        correction = CORRECTIONS.get(m.correction)
        if correction and correction.needs_plain_sgd and not plain_sgd:
            raise InputError(
                f"correction = {m.correction!r} of method {m.name!r} needs plain SGD on the clients: leave optimizer, "
                "momentum, weight_decay and clip_norm out"
            )
        rates = m.rates(lr, lr_personal)
        if m.inner_steps is not None and rates[0] * m.mu > 1:
            raise InputError(
                f"mu = {m.mu:g} of method {m.name!r} with learning rate {rates[0]:g} moves the shared model past the "
                f"personal one: lr · mu must be ≤ 1, got {rates[0] * m.mu:g}; lower one of them"
            )
        for key, weight, rate in (("prox", m.prox, rates[0]), ("mu", m.mu, rates[1])):
            if plain_sgd and weight < math.inf and rate * weight >= 2:
                raise InputError(
                    f"{key} = {weight:g} of method {m.name!r} with learning rate {rate:g} diverges: "
                    f"lr · {key} must be < 2, got {rate * weight:g}; lower one of them"
                )
    return methods


def check_steps_used(methods: Iterable[Method], clients: int) -> None:
    """Refuse bucketing that changes nothing: the mean of equal buckets is the mean of the models.

    Args:
        methods: the methods of the run
        clients: how many clients take part in a round
    """
    for m in methods:
        if m.pre_aggregators[-1:] != ("bucketing",) or not m.is_plain_mean or m.bucket_size == 1:
            continue
        if clients % m.bucket_size == 0 or clients < m.bucket_size:
            raise NoEffect(
                f"bucketing in pre_aggregators of method {m.name!r} has no effect: the mean of buckets of the same "
                "size is the mean of the models; leave it out, or set another aggregator",
                key="pre_aggregators",
            )


def check_levels(methods: Iterable[Method], groups: Iterable[str], label_group: str = CLASS) -> None:
    """Refuse a level over groups that the data does not name.

    Args:
        methods: the methods of the run
        groups: the columns of groups that the data names
        label_group: the name of the groups that follow from the targets
    """
    known = list(dict.fromkeys([label_group, *groups]))
    for m in methods:
        for name, _ in m.levels:
            if name not in known:
                raise InputError(
                    f"levels of method {m.name!r} have {name!r}, but the data has the groups "
                    f"{', '.join(map(repr, known))}; name the column in data.group, or in group= of ft.data.table"
                )


def check_rates_used(methods: Iterable[Method], given: Container[str], table: str = "") -> None:
    """Refuse a learning rate of the run that has no effect, because the methods have their own.

    Args:
        methods: the methods of the run
        given: the settings of the run that somebody set
        table: what stands before a setting in the message, such as "train."
    """
    methods = list(methods)
    used = {
        "lr": any(m.lr is None for m in methods),
        "lr_personal": any(m.personal and m.lr_personal is None for m in methods),
    }
    for key, has_effect in used.items():
        if key in given and not has_effect:
            own = [m.name for m in methods if getattr(m, key) is not None]
            remedy = f"set that of {' or '.join(own)} instead" if own else "leave it out"
            raise InputError(f"{table}{key} has no effect: no method of this run takes it; {remedy}")
