"""Error messages about a spec: one sentence with the key, its value and what is allowed."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic.types import AllowInfNan

from fedtilt.errors import InputError
from fedtilt.spec.fields import TABLES, Spec
from fedtilt.spec.method import MethodSpec, method_keys
from fedtilt.spec.table import OneOf, SpecTable

_MOST_KEYS = 12  # in a message


def allowed_values(field: FieldInfo) -> str:
    """The allowed values of a key, in words.

    >>> allowed_values(TABLES["train"].model_fields["participation"])
    'a number in (0, 1]'
    """
    if isinstance(field.json_schema_extra, dict) and "allowed" in field.json_schema_extra:
        return str(field.json_schema_extra["allowed"])
    for part in _annotations(field):
        if isinstance(part, AfterValidator) and isinstance(part.func, OneOf):
            return f"one of {', '.join(part.func.choices)}"
    kinds = {field.annotation, *get_args(field.annotation)}
    if float in kinds:
        return _number(field)
    return f"a whole number{_limits(field)}" if int in kinds else "text"


def _annotations(field: FieldInfo) -> list[Any]:
    """The annotations of a field's type; those of an optional field are one level down."""
    return [*field.metadata, *(part for kind in get_args(field.annotation) for part in get_args(kind)[1:])]


def _number(field: FieldInfo) -> str:
    limits = _limits(field)
    if not any(isinstance(part, AllowInfNan) for part in field.metadata):
        return f"a number{limits}, inf too" if limits else "a number, inf and -inf too"
    return f"a number{limits}" if limits.startswith(" in") else f"a finite number{limits}"


def _limits(field: FieldInfo) -> str:
    low = high = ""
    for part in field.metadata:
        if isinstance(part, Ge | Gt):
            low = f"≥ {part.ge}" if isinstance(part, Ge) else f"> {part.gt}"
        if isinstance(part, Le | Lt):
            high = f"{part.le}]" if isinstance(part, Le) else f"{part.lt})"
    if low and high:
        return f" in {'[' if low[0] == '≥' else '('}{low[2:]}, {high}"
    return f" {low}" if low else ""


def method_label(method: Mapping[str, Any], position: int) -> str:
    """The name of a raw method, else its preset, else its number in the spec."""
    return str(method.get("name") or method.get("preset") or position + 1)


def unknown_key(path: Iterable[str], key: str, value: object, table: type[SpecTable]) -> InputError:
    """The error about a key that a table does not have, with the key that was probably meant."""
    path = tuple(path)
    keys = keys_of(table)
    close = difflib.get_close_matches(key, keys, n=1)
    if close:
        remedy = f"did you mean {'.'.join([*path, close[0]])}?"
    elif elsewhere := key_named(key):
        remedy = f"did you mean {elsewhere}?"
    else:
        more = ", … (`fedtilt init` explains all)" if len(keys) > _MOST_KEYS else ""
        remedy = f"choose one of {', '.join(keys[:_MOST_KEYS])}{more}"
    return InputError(f"{'.'.join([*path, key])} = {_format_value(value)} is not a key of a spec; {remedy}")


def keys_of(table: type[SpecTable]) -> list[str]:
    """The keys of a table."""
    return [*table.model_fields, *(method_keys() if table is MethodSpec else ())]


def key_named(name: str) -> str | None:
    """The key with this name, with its path, or the first key of the table with this name; None: there is none.

    >>> key_named("rounds"), key_named("lam"), key_named("clients"), key_named("bogus")
    ('train.rounds', 'methods.NAME.lam', 'clients.count', None)
    """
    if name in TABLES:
        return f"{name}.{next(iter(TABLES[name].model_fields))}"
    tables = [f"{table}.{name}" for table, fields in TABLES.items() if name in fields.model_fields]
    tables += [f"methods.NAME.{name}"] if name in keys_of(MethodSpec) else []
    return tables[0] if tables else None


def first_error(error: ValidationError, raw: Mapping[str, Any]) -> InputError:
    """The first of pydantic's errors about `raw`, as one sentence."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    loc = list(first["loc"])
    table: type[SpecTable] = Spec
    path: list[str] = []
    value: Any = raw
    if loc[0] == "methods":
        value = raw["methods"][int(loc[1])]
        table, path, loc = MethodSpec, ["methods", method_label(value, int(loc[1]))], loc[2:]
    elif loc[0] in TABLES:
        table, path, value, loc = TABLES[str(loc[0])], [str(loc[0])], raw[str(loc[0])], loc[1:]
    key = str(loc[0])
    if key not in table.model_fields:
        return unknown_key(path, key, value[key], table)
    dotted, allowed = ".".join([*path, key]), allowed_values(table.model_fields[key])
    if key not in value:
        return InputError(f"{dotted} is missing; give {allowed}")
    return InputError(f"{dotted} = {_format_value(value[key])} is not possible; give {allowed}")


def check_tables(raw: Mapping[str, Any]) -> None:
    """Refuse tables that are not tables, before their keys are read."""
    for key in TABLES:
        if not isinstance(raw.get(key, {}), dict):
            raise InputError(f"{key} = {_format_value(raw[key])} is not a table; write [{key}] and its keys below it")
    methods = raw.get("methods", [])
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        raise InputError(f"methods = {_format_value(methods)} is not a list of tables; write [[methods]] for each")


def _format_value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
