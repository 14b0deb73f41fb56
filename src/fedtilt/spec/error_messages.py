"""Error messages about a spec: one sentence with the key, its value and what is allowed."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from fedtilt.config.setting_fields import settings_of
from fedtilt.config.tables import format_value
from fedtilt.engine.settings import TrainSettings, table_with
from fedtilt.errors import InputError
from fedtilt.spec.fields import TABLES
from fedtilt.spec.method import MethodSpec, method_keys

_MOST_KEYS = 12  # in a message
_FORMER = {"split_time": "time"}  # keys of earlier versions


def method_label(method: Mapping[str, Any], position: int) -> str:
    """The name of a raw method, else its preset, else its number in the spec."""
    return str(method.get("name") or method.get("preset") or position + 1)


def unknown_key(path: Iterable[str], key: str, value: object, table: type) -> InputError:
    """The error about a key that a table does not have, with the key that was probably meant."""
    path = tuple(path)
    keys = keys_of(table)
    close = difflib.get_close_matches(key, keys, n=1)
    if _FORMER.get(key) in keys:
        remedy = f"write {'.'.join([*path, _FORMER[key]])}"
    elif close:
        remedy = f"did you mean {'.'.join([*path, close[0]])}?"
    elif table is TrainSettings and (written := table_with(key)):
        remedy = f"write {written}"
    elif elsewhere := key_named(key):
        remedy = f"did you mean {elsewhere}?"
    else:
        more = ", … (`fedtilt init --all` explains all)" if len(keys) > _MOST_KEYS else ""
        remedy = f"choose one of {', '.join(keys[:_MOST_KEYS])}{more}"
    return InputError(f"{'.'.join([*path, key])} = {format_value(value)} is not a key of a spec; {remedy}")


def keys_of(table: type) -> list[str]:
    """The keys of a table."""
    return [*settings_of(table), *(method_keys() if table is MethodSpec else ())]


def key_named(name: str) -> str | None:
    """The key with this name, with its path, or the first key of the table with this name; None: there is none.

    >>> key_named("rounds"), key_named("lam"), key_named("clients"), key_named("bogus")
    ('train.rounds', 'methods.NAME.lam', 'clients.count', None)
    """
    if name in TABLES:
        return f"{name}.{next(iter(settings_of(TABLES[name])))}"
    tables = [f"{table}.{name}" for table, cls in TABLES.items() if name in settings_of(cls)]
    tables += [f"methods.NAME.{name}"] if name in keys_of(MethodSpec) else []
    return tables[0] if tables else None


def check_tables(raw: Mapping[str, Any]) -> None:
    """Raise InputError for tables that are not tables, before their keys are read."""
    for key in TABLES:
        if not isinstance(raw.get(key, {}), dict):
            raise InputError(f"{key} = {format_value(raw[key])} is not a table; write [{key}] and its keys below it")
    methods = raw.get("methods", [])
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        raise InputError(f"methods = {format_value(methods)} is not a list of tables; write [[methods]] for each")
