"""A JSON schema of specs, with which editors complete and check their keys (`fedtilt init --json-schema`)."""

import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import Field, is_dataclass
from types import EllipsisType
from typing import Annotated, Any, get_args, get_origin

from fedtilt.config.setting_fields import REQUIRED, allowed_values, alternatives, default_of, settings_of
from fedtilt.config.tables import table_of
from fedtilt.methods import COMPONENTS, PARTS
from fedtilt.methods.method import DEFAULT_RULE as DEFAULT_RULES
from fedtilt.spec.fields import Spec
from fedtilt.spec.method import METHOD_FACTORIES, MethodSpec, method_keys, preset_settings, required_settings

Schema = dict[str, Any]
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_OWN = {"type": "string", "pattern": r"^[\w.]+:\w+$", "description": "your own, as module:Class"}

_OF_TORCH = {"type": "string", "pattern": r"^(torch\.optim\.)?[A-Z]\w*$", "description": "an optimiser of torch.optim"}


def json_schema() -> str:
    """The schema (draft 2020-12) as text."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A spec of fedtilt",
        **_table(Spec),
        "$defs": {
            "method_keys": {"enum": [*settings_of(MethodSpec), *PARTS]},
            **{kind: _component(kind) for kind in COMPONENTS},
        },
    }
    schema["properties"]["methods"] |= {"minItems": 1, "items": _method()}
    schema["required"] = ["methods"]  # the name of a spec is that of its file, unless it is given
    return json.dumps(schema, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _table(table: type) -> Schema:
    properties = {key: _setting(field) for key, field in settings_of(table).items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _setting(field: Field[Any]) -> Schema:
    """The type, limits, meaning and default of a setting."""
    meaning, default = field.metadata["meaning"], default_of(field)
    if (table := table_of(field)) is not None:
        return {"description": meaning, **_table(table)}
    schema = _kinds(field.type, field.metadata["limits"])
    if field.metadata["choices"]:
        schema = {"enum": list(field.metadata["choices"])}
    if known := field.metadata["named"]:
        schema = _named(known, next(iter(known.values())).key, own=field.metadata["own"])
        default = None if default is None else default.to_value()
    schema |= {"description": f"{meaning} ({allowed_values(field)})"}
    is_value = default is not None and default is not REQUIRED and default not in (math.inf, -math.inf)
    return schema | ({"default": default} if is_value else {})


def _kinds(kind: Any, limits: Mapping[str, float]) -> Schema:
    """The types that a value may have; Python objects are none that a file can hold."""
    found = [schema for each in alternatives(kind) if (schema := _kind(each, limits)) is not None]
    return found[0] if len(found) == 1 else {"anyOf": found} if found else {}


def _kind(kind: Any, limits: Mapping[str, float]) -> Schema | None:
    origin, args = get_origin(kind), get_args(kind)
    if kind in (int, float):
        return {"type": _TYPES[kind], **{_LIMITS[key]: limit for key, limit in limits.items()}}
    if kind in _TYPES:
        return {"type": _TYPES[kind]}
    if origin is Annotated:  # a name
        return {"type": ["string", "integer"]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _kinds(args[1], limits)}
    if origin is tuple and isinstance(args[-1], EllipsisType):
        return {"type": "array", "items": _kinds(args[0], limits)}
    if origin is tuple:
        parts = [_kinds(each, limits) for each in args]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    return None if kind is not Any and not is_dataclass(kind) else {}


def _component(kind: str) -> Schema:
    """A component: a name, or a table of its rule and settings."""
    schema = _named(COMPONENTS[kind], "rule", DEFAULT_RULES.get(kind), own="module:Class")
    patterns = [{"type": "array", "items": {"type": "string"}}] if kind == "local" else []
    return {"oneOf": [*schema["oneOf"], *patterns]}


def _named(known: Mapping[str, type], key: str, default: str | None = None, own: str = "") -> Schema:
    """An object of settings: its name, or a table of its name and settings."""
    names: list[Schema] = [{"const": name, "description": _first_line(cls)} for name, cls in known.items()]
    tables: list[Schema] = []
    for name, cls in known.items():
        table = _table(cls)
        table["properties"] = {key: {"const": name}} | table["properties"]
        tables.append({"description": _first_line(cls), **table, "required": [] if name == default else [key]})
    if own:
        named = _OF_TORCH if own.startswith("torch.optim") else _OWN
        names.append(named)
        tables.append({"type": "object", "properties": {key: named}, "required": [key]})
    return {"oneOf": [{"anyOf": names}, {"type": "object", "anyOf": tables}]}


def _method() -> Schema:
    """A `[[methods]]`: the keys of its preset, and components."""
    table = _table(MethodSpec)
    for key, meaning in method_keys().items():
        table["properties"][key] = {"description": meaning, **_method_key(key)}
    table["anyOf"] = [{"required": ["preset"]}, {"required": ["name"]}]
    rules = []
    for preset in METHOD_FACTORIES:
        keys, required = preset_settings(preset), required_settings(preset)
        own = {"enum": [key for key in keys if key not in PARTS]}
        then: Schema = {"propertyNames": {"anyOf": [{"$ref": "#/$defs/method_keys"}, *([own] if own["enum"] else [])]}}
        if "tau" in required:  # levels may take its place
            then["anyOf"] = [{"required": ["tau"]}, {"required": ["levels"]}]
        then["required"] = [key for key in required if key != "tau"]
        of_preset = {"properties": {"preset": {"const": preset}}}
        rules.append({"if": of_preset | ({} if preset == "custom" else {"required": ["preset"]}), "then": then})
    return table | {"allOf": rules}


def _method_key(key: str) -> Schema:
    if key in COMPONENTS:
        component = {"$ref": f"#/$defs/{key}"}
        return {"oneOf": [component, {"type": "array", "items": component}]} if key == "before" else component
    known = [preset_settings(preset) for preset in METHOD_FACTORIES]
    kinds = [_kinds(settings[key].type, settings[key].metadata["limits"]) for settings in known if key in settings]
    found = [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]]
    return found[0] if len(found) == 1 else {} if {} in found else {"anyOf": found}


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]
