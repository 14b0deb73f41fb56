"""One sentence for whatever is wrong with a spec: the key, its value and what would be right."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, ValidationError
from pydantic.fields import FieldInfo
from pydantic.types import AllowInfNan

from fedtilt.errors import InputError
from fedtilt.spec.fields import TABLES, Spec
from fedtilt.spec.method import MethodSpec
from fedtilt.spec.table import OneOf, Table


def allowed(field: FieldInfo) -> str:
    """What a key may be, in words.

    >>> allowed(TABLES["train"].model_fields["participation"])
    'a number in (0, 1]'
    """
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["allowed"])
    for part in _parts(field):
        if isinstance(part, AfterValidator) and isinstance(part.func, OneOf):
            return f"one of {', '.join(part.func.choices)}"
    kinds = {field.annotation, *get_args(field.annotation)}
    if float in kinds:
        return _number(field)
    return f"a whole number{_limits(field)}" if int in kinds else "text"


def _parts(field: FieldInfo) -> list[Any]:
    """What is attached to a field's type; an optional field keeps it one level down."""
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


def label(method: Mapping[str, Any], place: int) -> str:
    """What a raw method is called: its name, else its preset, else its place in the spec."""
    return str(method.get("name") or method.get("preset") or place + 1)


def unknown(path: Iterable[str], key: str, value: object, table: type[Table]) -> InputError:
    """A key that a table does not have, with the key that was probably meant."""
    path = tuple(path)
    heads = [(name, other) for name, other in TABLES.items() if key in other.model_fields]
    close = difflib.get_close_matches(key, table.model_fields, n=1)
    if close:
        remedy = f"did you mean {'.'.join([*path, close[0]])}?"
    elif heads or (key in MethodSpec.model_fields and table is not MethodSpec):
        remedy = f"did you mean {f'{heads[0][0]}.{key}' if heads else f'methods.NAME.{key}'}?"
    else:
        remedy = f"choose one of {', '.join(table.model_fields)}"
    return InputError(f"{'.'.join([*path, key])} = {_shown(value)} is not a key of a spec; {remedy}")


def complaint(error: ValidationError, raw: Mapping[str, Any]) -> InputError:
    """The first thing that is wrong with `raw`, as a sentence."""
    first = error.errors(include_url=False)[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    loc = list(first["loc"])
    table: type[Table] = Spec
    path: list[str] = []
    value: Any = raw
    if loc[0] == "methods":
        value = raw["methods"][int(loc[1])]
        table, path, loc = MethodSpec, ["methods", label(value, int(loc[1]))], loc[2:]
    elif loc[0] in TABLES:
        table, path, value, loc = TABLES[str(loc[0])], [str(loc[0])], raw[str(loc[0])], loc[1:]
    key = str(loc[0])
    if key not in table.model_fields:
        return unknown(path, key, value[key], table)
    dotted, right = ".".join([*path, key]), allowed(table.model_fields[key])
    if key not in value:
        return InputError(f"{dotted} is missing; give {right}")
    return InputError(f"{dotted} = {_shown(value[key])} is not possible; give {right}")


def check_shape(raw: Mapping[str, Any]) -> None:
    """Tables where tables belong, before anything looks into them."""
    for key in TABLES:
        if not isinstance(raw.get(key, {}), dict):
            raise InputError(f"{key} = {_shown(raw[key])} is not a table; write [{key}] and its keys below it")
    methods = raw.get("methods", [])
    if not isinstance(methods, list) or not all(isinstance(method, dict) for method in methods):
        raise InputError(f"methods = {_shown(methods)} is not a list of tables; write [[methods]] for each method")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
