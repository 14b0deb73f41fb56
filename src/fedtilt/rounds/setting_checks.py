"""Training settings that have no effect beside the others, or that need another one."""

from dataclasses import fields
from typing import TYPE_CHECKING

from fedtilt.errors import InputError
from fedtilt.math import losses

if TYPE_CHECKING:
    from fedtilt.rounds.settings import TrainSettings


def check_used(settings: "TrainSettings") -> None:
    """Refuse settings that have no effect beside the others, or that lack one."""
    needs = [  # a setting, where it has an effect, and what to do otherwise
        ("epochs", settings.local_steps is None, "leave local_steps out"),
        ("momentum", settings.optimizer == "sgd", "set optimizer = 'sgd'"),
        ("nesterov", settings.momentum > 0, "set momentum"),
        ("decay", settings.schedule in ("step", "exponential"), "set schedule = 'step' or 'exponential'"),
        ("decay_rounds", settings.schedule == "step", "set schedule = 'step'"),
        ("label_smoothing", settings.loss in (None, "cross_entropy"), "set loss = 'cross_entropy'"),
        ("focal_gamma", settings.loss == "focal", "set loss = 'focal'"),
        ("gce_q", settings.loss == "gce", "set loss = 'gce'"),
        ("sce_alpha", settings.loss == "sce", "set loss = 'sce'"),
        ("sce_beta", settings.loss == "sce", "set loss = 'sce'"),
        ("huber_delta", settings.loss == "huber", "set loss = 'huber'"),
        ("class_weights", settings.loss in (None, *losses.CLASS_LOSSES), "set loss = 'cross_entropy' or 'focal'"),
        ("server_lr", settings.server_optimizer is not None, "set server_optimizer"),
        ("server_momentum", settings.server_optimizer is not None, "set server_optimizer"),
        ("cluster_timeout", settings.on_cluster, "set cluster"),
        ("server_epsilon", settings.server_optimizer not in (None, "sgd"), "set server_optimizer = 'adam'"),
    ]
    defaults = {field.name: field.default for field in fields(settings)}
    for key, has_effect, remedy in needs:
        value = getattr(settings, key)
        if value != defaults[key] and not has_effect:
            raise InputError(f"{key} = {value!r} has no effect here; {remedy}, or leave it out")
    if settings.schedule in ("step", "exponential") and settings.decay is None:
        raise InputError(f"schedule = {settings.schedule!r} needs decay, such as decay = 0.5")
    if settings.schedule == "step" and settings.decay_rounds is None:
        raise InputError("schedule = 'step' needs decay_rounds, such as decay_rounds = 10")
    if settings.workers == 0 and settings.on_cluster:
        raise InputError("workers = 0 leaves nothing to train on a cluster; leave it out")
    if settings.screen is not None and 0 < settings.screen <= 1:
        raise InputError(f"screen = {settings.screen:g} would clip ordinary updates; choose 0 (none) or more than 1")
    if settings.privacy is not None and settings.screen:
        raise InputError(
            f"screen = {settings.screen:g} has no known sensitivity; leave it out: privacy.clip bounds every update"
        )
    if settings.privacy is not None and settings.buffers == "average":
        raise InputError("buffers = 'average' are not covered by privacy; choose 'local' or 'frozen'")
    if settings.attack is not None and settings.attack.from_round > settings.rounds:
        raise InputError(
            f"attack.from_round = {settings.attack.from_round} is after the last round, {settings.rounds}; choose an "
            "earlier one, or leave the attack out"
        )
    if settings.warmup_rounds >= settings.rounds and settings.warmup_rounds:
        raise InputError(
            f"warmup_rounds = {settings.warmup_rounds} is not less than rounds = {settings.rounds}; choose fewer"
        )
