"""One method of a spec: a preset, its parameters and components, as the functions of `fedtilt.methods` define them."""

import difflib
import functools
import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from fedtilt.config.setting_fields import setting
from fedtilt.errors import InputError
from fedtilt.methods import PRESETS, Method
from fedtilt.toml_text import format_toml

METHOD_FACTORIES: dict[str, Callable[..., Method]] = {**PRESETS, "custom": Method}
COMPONENT_KEYS = tuple(each.name for each in fields(Method) if each.name not in ("name", "made"))

# key of earlier versions → how it is written now; RULE is the aggregator that the method names
MOVED = {
    "tau": "objective = { tau = VALUE }",
    "lam": "objective = { lam = VALUE }",
    "levels": "objective = { levels = VALUE }",
    "utility": 'objective = { rule = "propfair", utility = VALUE }',
    "mu": "personal = { mu = VALUE }",
    "lr_personal": "personal = { lr = VALUE }",
    "epochs_personal": "personal = { epochs = VALUE }",
    "personal_start": "personal = { start = VALUE }",
    "inner_steps": 'personal = { rule = "moreau", inner_steps = VALUE }',
    "head_epochs": 'local = { names = ["last"], first_epochs = VALUE }',
    "client_tilt": 'weighting = { rule = "loss", tilt = VALUE }',
    "weights_lr": 'weighting = { rule = "afl", lr = VALUE }',
    "q": 'aggregator = { rule = "tilted", q = VALUE }',
    "distance": 'aggregator = { rule = "tilted", distance = VALUE }',
    "steps": 'aggregator = { rule = "tilted", steps = VALUE }',
    "bad_share": 'aggregator = { rule = RULE, bad_share = VALUE }, or before = [{ rule = "nnm", bad_share = VALUE }]',
    "clip_radius": 'before = [{ rule = "clipping", radius = VALUE }], or aggregator = { rule = RULE, radius = VALUE }',
    "root_samples": 'aggregator = { rule = "fltrust", root_samples = VALUE }',
    "weights_bound": 'aggregator = { rule = "fedmgda", bound = VALUE }',
    "update_length": 'aggregator = { rule = "fedmgda", length = VALUE }',
    "pre_aggregators": "before = VALUE",
    "bucket_size": 'before = [{ rule = "bucketing", size = VALUE }]',
}
_RULES = {"bad_share": "trimmed_mean", "clip_radius": "norm_clipped"}  # where the method names no aggregator


class MovedKey(InputError):
    """A key of an earlier version."""


def preset_settings(preset: str) -> dict[str, inspect.Parameter]:
    """The settings of a preset: its parameters, then the components that it takes.

    >>> list(preset_settings("term"))[:3]
    ['t', 'objective', 'personal']
    """
    own = {
        key: p
        for key, p in inspect.signature(METHOD_FACTORIES[preset]).parameters.items()
        if key not in ("name", "made") and p.kind is not p.VAR_KEYWORD
    }
    components = inspect.signature(Method).parameters
    return own | {key: components[key] for key in COMPONENT_KEYS if key not in own}


def required_settings(preset: str) -> list[str]:
    """The settings of a preset that have no default; of FedTilt, `levels` may take the place of `tau`.

    >>> required_settings("fedtilt")
    ['tau', 'lam']
    """
    return ["tau", "lam"] if preset == "fedtilt" else ["t"] if preset == "term" else []


def preset_parameters() -> dict[tuple[str, str], list[str]]:
    """The parameters of all presets and their meanings, each with the presets that have it.

    >>> preset_parameters()["alpha", "weight of both terms"]
    ['feddyn']
    """
    found: dict[tuple[str, str], list[str]] = {}
    for preset, function in PRESETS.items():
        meanings = argument_meanings(function)
        for key in inspect.signature(function).parameters:
            if key in meanings and key != "name":
                found.setdefault((key, meanings[key]), []).append(preset)
    keys = [key for key, _ in found]
    return {row: found[row] for row in sorted(found, key=lambda row: keys.index(row[0]))}


@functools.cache
def method_keys() -> dict[str, str]:
    """Every key of a method, with its meaning: those of all presets, then the components."""
    components = argument_meanings(Method)
    own = {key: meaning for key, meaning in reversed(preset_parameters()) if key not in COMPONENT_KEYS}
    return dict(reversed(own.items())) | {key: components[key] for key in COMPONENT_KEYS}


def argument_meanings(function: Callable[..., Any]) -> dict[str, str]:
    """What the docstring of a function says about each of its arguments."""
    _, _, section = (inspect.getdoc(function) or "").partition("Args:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """One `[[methods]]`; a setting that is not given has the preset's default."""

    preset: str = setting(
        "custom", "the method to start from; custom: a composition of your own", choices=METHOD_FACTORIES,
        allowed="a method of `fedtilt methods`, such as fedavg, or custom",
    )  # fmt: skip
    name: str = setting("", "the name in the run, which is unique", allowed="a plain name")
    settings: dict[str, Any] = field(default_factory=dict)  # what the table has besides its preset and name

    def __post_init__(self) -> None:
        self.to_method()

    def to_method(self) -> Method:
        """The method that this table describes."""
        if not self.name:
            raise InputError('a method needs preset or name, such as preset = "fedavg"')
        settings = self.settings
        allowed, required = preset_settings(self.preset), required_settings(self.preset)
        for key, value in settings.items():
            if key not in allowed:
                if key in MOVED:
                    raise self._moved(key, value)
                raise self._unknown(key, value, list(allowed))
        for key in required:
            if key not in settings and not (key == "tau" and "levels" in settings):
                raise InputError(
                    f"methods.{self.name}.{key} is missing; preset {self.preset!r} needs {' and '.join(required)}"
                )
        return METHOD_FACTORIES[self.preset](name=self.name, **settings)

    def _unknown(self, key: str, value: Any, allowed: list[str]) -> InputError:
        what = f"methods.{self.name}.{key} = {value!r:.60} is not a setting of preset {self.preset!r}"
        if close := difflib.get_close_matches(key, [*allowed, *MOVED], n=1):
            return InputError(f"{what}; did you mean methods.{self.name}.{close[0]}?")
        return InputError(f"{what}, which takes {', '.join(allowed[:8])}, …; leave it out")

    def _moved(self, key: str, value: Any) -> MovedKey:
        if key == "mu" and value == math.inf:
            return MovedKey(f"methods.{self.name}.mu = inf, no personal model, is the default; leave it out")
        rule = self.settings.get("aggregator")
        rule = rule if isinstance(rule, str) else _RULES.get(key, "")
        new = MOVED[key].replace("RULE", format_toml(rule)).replace("VALUE", format_toml(value))
        return MovedKey(f"methods.{self.name}.{key} = {format_toml(value)} is a setting of a component: write {new}")
