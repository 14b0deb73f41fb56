"""Read a table of a file into a frozen dataclass of settings; the first error is one sentence."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, is_dataclass
from types import EllipsisType
from typing import Annotated, Any, get_args, get_origin

from fedtilt.config.setting_fields import REQUIRED, allowed_values, alternatives, default_of, is_within, settings_of
from fedtilt.errors import InputError

UnknownKey = Callable[[Sequence[str], str, object, type], InputError]  # path, key, value, table → error
_MOST_TEXT = 150  # of the allowed values in a message


def read_values(table: type, raw: Mapping[str, Any], path: Sequence[str], unknown: UnknownKey) -> dict[str, Any]:
    """The settings that a table of a file has, as arguments of its dataclass.

    Args:
        table: a dataclass of settings
        raw: the table of the file
        path: where the table is in the file
        unknown: makes the error about a key that the table does not have
    """
    values, known = {}, settings_of(table)
    for key, field in known.items():
        if key in raw:
            values[key] = _read_setting(field, raw[key], [*path, key], unknown)
        elif default_of(field) is REQUIRED:
            raise InputError(f"{'.'.join([*path, key])} is missing; give {allowed_values(field)}")
    for key in raw:
        if key not in known:
            raise unknown(path, key, raw[key], table)
    return values


def _read_setting(field: Field[Any], value: Any, path: Sequence[str], unknown: UnknownKey) -> Any:
    if (table := table_of(field)) is not None:
        values = read_values(table, value, path, unknown)
        if default_of(field) is None and all(values[k] == default_of(settings_of(table)[k]) for k in values):
            return None  # as if the table had no keys
        return table(**values)
    try:
        return convert(value, field)
    except (ValueError, OverflowError):
        what, allowed = f"{'.'.join(path)} = {format_value(value)}", allowed_values(field)
        if len(allowed) > _MOST_TEXT:
            allowed = f"{allowed[:_MOST_TEXT].rpartition(', ')[0]}, …"
        raise InputError(f"{what} is not possible; give {allowed}") from None


def table_of(field: Field[Any]) -> Any:
    """The dataclass of a setting that is a table itself; None: it is a value."""
    return next((kind for kind in alternatives(field.type) if is_dataclass(kind)), None)


def convert(value: Any, field: Field[Any]) -> Any:
    """A value of a file in the type of a setting and within its limits, or a ValueError."""
    if value is None and field.default is None:
        return None
    value = _to_type(value, field.type, field.metadata)
    choices, check = field.metadata["choices"], field.metadata["check"]
    if (choices and value not in choices) or (check is not None and not check(value)):
        raise ValueError("not one of the choices")
    return value


def _to_type(value: Any, kind: Any, metadata: Mapping[str, Any]) -> Any:
    for each in alternatives(kind):
        with contextlib.suppress(ValueError):
            return _to_one_type(value, each, metadata)
    raise ValueError("not of this type")


def _to_one_type(value: Any, kind: Any, metadata: Mapping[str, Any]) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:  # a name
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else _to_type(value, str, metadata)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = [args[0]] * len(value) if isinstance(args[-1], EllipsisType) else args
        return tuple(_to_type(part, each, metadata) for part, each in zip(value, kinds, strict=True))
    if origin is dict and isinstance(value, dict):
        return {_to_type(key, str, metadata): _to_type(part, args[1], metadata) for key, part in value.items()}
    if kind in (int, float) and isinstance(value, int | kind) and not isinstance(value, bool):
        if is_within(value, metadata["limits"], metadata["inf"]):
            return kind(value)
    elif kind in (bool, str) and isinstance(value, kind):
        return value
    raise ValueError("not of this type")


def format_value(value: object) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
