"""The training settings as keyword arguments of a function."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.toml_text import format_toml

# keyword of earlier versions → how it is written now
MOVED = {
    "nesterov": 'optimizer = { name = "sgd", momentum = …, nesterov = VALUE }',
    "clip_norm": 'optimizer = { name = "sgd", clip_norm = VALUE }',
    "decay": 'schedule = { name = "exponential", decay = VALUE }',
    "decay_rounds": 'schedule = { name = "step", decay = …, every = VALUE }',
    "warmup_rounds": 'schedule = { name = "constant", warmup_rounds = VALUE }',
    "focal_gamma": 'loss = { name = "focal", gamma = VALUE }',
    "gce_q": 'loss = { name = "gce", exponent = VALUE }',
    "sce_alpha": 'loss = { name = "sce", alpha = VALUE }',
    "sce_beta": 'loss = { name = "sce", beta = VALUE }',
    "huber_delta": 'loss = { name = "huber", delta = VALUE }',
    "class_weights": 'loss = { name = "cross_entropy", class_weights = VALUE }',
    "server_lr": 'server_optimizer = { rule = "adam", lr = VALUE }',
    "server_momentum": 'server_optimizer = { rule = "adam", momentum = VALUE }',
    "server_epsilon": 'server_optimizer = { rule = "adam", epsilon = VALUE }',
}


def moved_key(key: str, value: Any, table: str = "") -> str:
    """The message about a setting of earlier versions."""
    new = MOVED[key].replace("VALUE", format_toml(value))
    return f"{table}{key} = {value!r} is a setting of an object now: write {new}"


def train_settings(keywords: Mapping[str, Any], settings: TrainSettings | None = None) -> TrainSettings:
    """The settings with those of the keyword arguments; for an unknown name, the error suggests the closest one."""
    if not isinstance(settings, TrainSettings | None):
        raise InputError(f"settings must be an ft.TrainSettings, got {settings!r:.60}; give others as keywords")
    names = [field.name for field in fields(TrainSettings)]
    for name, value in keywords.items():
        if name in MOVED:
            raise InputError(moved_key(name, value))
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"choose from {', '.join(names[:8])}, … (help(ft.run))"
            raise InputError(f"{name} is not a training setting; {remedy}")
    return TrainSettings(**keywords) if settings is None else replace(settings, **keywords)


Function = TypeVar("Function", bound=Callable[..., Any])


def given_settings(keywords: Mapping[str, Any], settings: TrainSettings | None) -> set[str]:
    """The names of the settings that somebody set: the keywords, and those of an object that are not the default."""
    of_object = [] if settings is None else [s.name for s in fields(settings) if getattr(settings, s.name) != s.default]
    return {*keywords, *of_object}


def takes_train_settings(function: Function) -> Function:
    """List the training settings, in place of the keyword arguments, in a function's signature and docstring."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(s.name, inspect.Parameter.KEYWORD_ONLY, default=s.default, annotation=s.type)
        for s in fields(TrainSettings)
    ]
    lines = "".join(f"        {s.name}: {s.metadata['meaning']}\n" for s in fields(TrainSettings))
    function.__signature__ = signature.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
    function.__doc__ = f"{(function.__doc__ or '').rstrip()}\n{lines}    "
    return function
