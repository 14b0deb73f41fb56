"""One method of a spec: a preset, its parameters and components, as the functions of `fedtilt.methods` define them."""

import difflib
import functools
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from typing import Any

from fedtilt.config.setting_fields import setting, settings_of
from fedtilt.errors import InputError
from fedtilt.methods import COMPONENTS, PARAMETERS, PARTS, PRESETS, Method
from fedtilt.methods.presets import preset_meaning
from fedtilt.toml_text import format_toml

METHOD_FACTORIES: dict[str, Callable[..., Method]] = {**PRESETS, "custom": Method}


def preset_settings(preset: str) -> dict[str, Field[Any]]:
    """The settings of a preset: its parameters, then the components that it takes.

    >>> list(preset_settings("term"))[:3]
    ['t', 'objective', 'personal']
    """
    own = settings_of(PARAMETERS[preset]) if preset in PARAMETERS else {}
    components = settings_of(Method)
    return own | {key: components[key] for key in PARTS if key not in own}


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
    for preset, table in PARAMETERS.items():
        for key, each in settings_of(table).items():
            found.setdefault((key, preset_meaning(each)), []).append(preset)
    keys = [key for key, _ in found]
    return {row: found[row] for row in sorted(found, key=lambda row: keys.index(row[0]))}


@functools.cache
def method_keys() -> dict[str, str]:
    """Every key of a method, with its meaning: those of all presets, then the components."""
    own = {key: meaning for key, meaning in reversed(preset_parameters()) if key not in PARTS}
    return dict(reversed(own.items())) | {key: settings_of(Method)[key].metadata["meaning"] for key in PARTS}


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
                raise self._unknown(key, value, list(allowed))
        for key in required:
            if key not in settings and not (key == "tau" and "levels" in settings):
                raise InputError(
                    f"methods.{self.name}.{key} is missing; preset {self.preset!r} needs {' and '.join(required)}"
                )
        return METHOD_FACTORIES[self.preset](name=self.name, **settings)

    def _unknown(self, key: str, value: Any, allowed: list[str]) -> InputError:
        what = f"methods.{self.name}.{key} = {value!r:.60} is not a setting of preset {self.preset!r}"
        if component := self._component_with(key, value):
            return InputError(f"{what}, but of a component: write {component}")
        if close := difflib.get_close_matches(key, allowed, n=1):
            return InputError(f"{what}; did you mean methods.{self.name}.{close[0]}?")
        return InputError(f"{what}, which takes {', '.join(allowed[:8])}, …; leave it out")

    def _component_with(self, key: str, value: Any) -> str | None:
        """The table of a component with this setting, if there is one: of those that the method names, else any."""
        found = [
            (self.settings.get(kind) == rule, kind, rule)
            for kind, rules in COMPONENTS.items()
            for rule, cls in rules.items()
            if key in (each.name for each in fields(cls))
        ]
        if not found:
            return None
        _, kind, rule = max(found, key=lambda each: each[0])  # the first of equals
        table = format_toml({"rule": rule, key: value})
        return f"{kind} = [{table}]" if kind == "before" else f"{kind} = {table}"
