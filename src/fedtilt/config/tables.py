"""Read a table of a file into a frozen dataclass of settings; the first error is one sentence."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, is_dataclass
from typing import Any

from fedtilt.config.setting_fields import REQUIRED, allowed_values, alternatives, check_value, default_of, settings_of
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
        return None if value is None and field.default is None else check_value(field, value)
    except InputError:
        what, allowed = f"{'.'.join(path)} = {format_value(value)}", allowed_values(field)
        if len(allowed) > _MOST_TEXT:
            allowed = f"{allowed[:_MOST_TEXT].rpartition(', ')[0]}, …"
        raise InputError(f"{what} is not possible; give {allowed}") from None


def table_of(field: Field[Any]) -> Any:
    """The dataclass of a setting that is a table itself; None: it is a value."""
    return next((kind for kind in alternatives(field.type) if is_dataclass(kind)), None)


def format_value(value: object) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
