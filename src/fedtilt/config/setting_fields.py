"""Fields of a settings dataclass that carry their meaning and limits, from which specs, docs and errors are written."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import Field, field, fields
from typing import Any, get_args, get_origin

from fedtilt import checks
from fedtilt.checks import number, whole
from fedtilt.errors import InputError


def setting(
    default: Any, meaning: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None,
    lt: float | None = None, choices: Iterable[str] = (), example: Any = None, allowed: str = "", heading: str = "",
    inf: bool = False, only_with: Mapping[str, Iterable[Any]] | None = None,
) -> Any:  # fmt: skip
    """A field; with a default of None it is optional.

    Args:
        default: its value if it is left out
        meaning: what it means
        ge: ≥ this
        gt: > this
        le: ≤ this
        lt: < this
        choices: the words it may be
        example: a value for the annotated spec, if the default is None
        allowed: the allowed values in words, if its type and limits are not enough
        inf: whether a number may be infinite
        heading: stands above this and the following settings in the annotated spec
        only_with: another setting → the values with which this one has an effect; empty: all but its default
    """
    limits = {key: value for key, value in {"ge": ge, "gt": gt, "le": le, "lt": lt}.items() if value is not None}
    metadata = {
        "meaning": meaning, "limits": limits, "choices": tuple(choices), "example": example, "allowed": allowed,
        "heading": heading, "inf": inf,
        "only_with": {name: tuple(values) for name, values in (only_with or {}).items()},
    }  # fmt: skip
    return field(default=default, metadata=metadata)


def check_value(field: Field[Any], value: Any) -> Any:
    """The value as a plain int, float, bool, text or tuple within the limits of its field, or an InputError."""
    name, limits, choices = field.name, field.metadata.get("limits", {}), field.metadata.get("choices", ())
    inf = field.metadata.get("inf", True)  # a plain field, of a user's component, has no limits
    types = {field.type, *get_args(field.type)}
    if get_origin(field.type) is tuple:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise InputError(f"{name} must be a list, got {value!r}")
        return tuple(_check_number(part, name, limits, inf) if float in types else str(part) for part in value)
    if bool in types:
        if not isinstance(value, bool):
            raise InputError(f"{name} must be True or False, got {value!r}")
        return value
    if int in types:
        return whole(value, name, limits.get("ge"))
    if float in types:
        return _check_number(value, name, limits, inf)
    if choices and value not in choices:
        raise InputError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")
    return value


def _check_number(value: Any, name: str, limits: Mapping[str, float], inf: bool) -> float:
    """A number within the limits, or an InputError."""
    value = number(value, name)
    below = value < limits.get("ge", -math.inf) or ("gt" in limits and value <= limits["gt"])
    above = value > limits.get("le", math.inf) or ("lt" in limits and value >= limits["lt"])
    if below or above or (math.isinf(value) and not inf):
        low = f" ≥ {limits['ge']:g}" if "ge" in limits else f" > {limits['gt']:g}" if "gt" in limits else ""
        high = f" ≤ {limits['le']:g}" if "le" in limits else f" < {limits['lt']:g}" if "lt" in limits else ""
        wanted = f"{low} and{high}" if low and high else low or high
        raise InputError(f"{name} must be a {'' if limits else 'finite '}number{wanted}, got {value!r}")
    return value


def check_table(settings: Any, table: str) -> None:
    """Check and convert every value of a frozen dataclass in place; errors name its table in the spec."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        if value is not None:
            try:
                object.__setattr__(settings, each.name, check_value(each, value))
            except InputError as error:
                raise InputError(f"{table}: {error}") from None


def check_fields_used(settings: Any) -> None:
    """Refuse a setting that has no effect beside the others, by the declarations `only_with`."""
    declared = fields(settings)
    checks.check_used(
        {each.name: getattr(settings, each.name) for each in declared},
        {each.name: each.default for each in declared},
        {each.name: each.metadata["only_with"] for each in declared},
    )
