"""Change one key of a spec before it is read: `--set train.rounds=5`, `--set methods.fedtilt.lam=-2`."""

import tomllib
from dataclasses import Field
from typing import Any, get_origin

from fedtilt.config.setting_fields import Name, alternatives, settings_of
from fedtilt.errors import InputError
from fedtilt.methods import COMPONENTS
from fedtilt.spec.error_messages import method_label, unknown_key
from fedtilt.spec.fields import TABLES, Spec
from fedtilt.spec.method import MethodSpec
from fedtilt.toml_text import parse_toml

Raw = dict[str, Any]  # a table of a file


def method_labels(methods: list[Raw]) -> list[str]:
    """The names of raw methods; see `method_label`."""
    return [method_label(method, position) for position, method in enumerate(methods)]


def override(raw: Raw, text: str) -> None:
    """Set one key of raw tables, from KEY=VALUE; an empty value is the default."""
    key, equals, value_text = split_override(raw, text)
    if not equals or not key:
        raise InputError(f"--set {text!r} is not KEY=VALUE; write for example --set train.rounds=5")
    head, _, rest = key.partition(".")
    table: type = Spec
    kind: Any
    target, path, last = raw, [head] if rest else [], rest or head  # the raw table to change
    if head in TABLES and rest:
        table, target = TABLES[head], raw.setdefault(head, {})
    elif head == "methods" and rest:
        labels = [label for label in method_labels(raw.get("methods", [])) if rest.startswith(f"{label}.")]
        name = max(labels, key=len, default=rest.rpartition(".")[0])  # a method's name may have dots
        last = rest.removeprefix(f"{name}.")
        table, target, path = MethodSpec, _method_table(raw, name or last, text), [head, name]
        target, last = component_table(target, last)
    elif head in TABLES or head == "methods":
        example = "methods.fedtilt.lam=-2" if head == "methods" else f"{head}.{next(iter(settings_of(TABLES[head])))}=…"
        raise InputError(f"--set {text!r} sets a whole table; set one of its keys, as in {example}")
    elif rest:
        raise InputError(f"--set {text!r} names an unknown table; the tables are {', '.join([*TABLES, 'methods'])}")
    key, _, entry = last.partition(".")
    known = settings_of(table)
    if entry and key in known and known[key].metadata["named"]:
        kind, target, last = Any, settings_table(target, known[key]), entry  # train.loss.gamma
    elif entry and key in known and get_origin(known[key].type) is dict:
        kind, target, last = Any, target.setdefault(key, {}), entry  # model.arguments.width
    elif table is MethodSpec and (target not in raw["methods"] or last not in known):
        kind = Any  # `MethodSpec` checks it
    elif last in known:
        kind = known[last].type
    else:
        raise unknown_key(path, last, _parse_value(value_text), table)
    if not value_text:
        target.pop(last, None)
    else:  # for a key of type text, 5 and 2026-01-01 are text
        value, kinds = _parse_value(value_text), alternatives(kind)
        takes_text = any(each in (str, Name) for each in kinds)
        is_list = isinstance(value, list) and any(get_origin(each) is tuple for each in kinds)
        target[last] = value_text if takes_text and not (isinstance(value, str) or is_list) else value


def split_override(raw: Raw, text: str) -> tuple[str, str, str]:
    """Key, "=" and value; a method's name may contain an equals sign."""
    names = method_labels(raw.get("methods", []))
    prefixes = [f"methods.{name}." for name in names if text.strip().startswith(f"methods.{name}.")]
    prefix = max(prefixes, key=len, default="")
    key, equals, value_text = text.strip().removeprefix(prefix).partition("=")
    return f"{prefix}{key.strip()}", equals, value_text.strip()


def settings_table(table: Raw, field: Field[Any]) -> Raw:
    """The table of an object of settings, which may be given by its name alone, or be the default."""
    name = next(iter(field.metadata["named"].values())).key
    if not isinstance(table.get(field.name), dict):
        default: Any = field.default
        given = table.get(field.name) or (None if default is None else default.label)
        table[field.name] = {} if given is None else {name: given}
    found: Raw = table[field.name]
    return found


def component_table(method: Raw, key: str) -> tuple[Raw, str]:
    """The table to change and its key: `aggregator.bad_share` is a key of the table of the aggregator.

    >>> component_table({"aggregator": "krum"}, "aggregator.bad_share")
    ({'rule': 'krum'}, 'bad_share')
    """
    kind, _, setting = key.partition(".")
    if not setting or kind not in COMPONENTS:
        return method, key
    if kind == "before":
        number, _, setting = setting.partition(".")
        steps = method.get("before", [])
        if not (number.isdigit() and int(number) < len(steps) and setting):
            raise InputError(f"{key} is no setting of a step before the rule; there are {len(steps)} steps")
        if isinstance(steps[int(number)], str):
            steps[int(number)] = {"rule": steps[int(number)]}
        return steps[int(number)], setting
    if not isinstance(method.get(kind), dict):
        method[kind] = {"rule": method[kind]} if kind in method else {}
    return method[kind], setting


def _method_table(raw: Raw, name: str, text: str) -> Raw:
    methods = raw.get("methods", [])
    names = method_labels(methods)
    if name not in names:
        raise InputError(f"--set {text!r} names an unknown method; the methods are {', '.join(names) or 'none'}")
    method: Raw = methods[names.index(name)]
    method.setdefault("name", name)  # the name stays if a later override changes the preset
    return method


def _parse_value(text: str) -> Any:
    """A TOML value, or the text itself if it is not one."""
    try:
        document = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        raise InputError(f"--set {text[:30]}… is nested too deeply; give a plain value") from None
    return document["value"] if len(document) == 1 else text
