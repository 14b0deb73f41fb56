"""Write a spec: as TOML, and as the annotated files of `fedtilt init`."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import Field, replace
from pathlib import Path
from typing import Any

from fedtilt.config.setting_fields import allowed_values, default_of, default_text, meaning_of, settings_of
from fedtilt.methods import PARAMETERS, PARTS, PRESETS, Method
from fedtilt.spec.fields import TABLES, Spec
from fedtilt.spec.method import MethodSpec, preset_parameters, required_settings
from fedtilt.spec.read import load
from fedtilt.toml_text import format_toml

_KEYS = settings_of(Spec)
TOP_KEYS = [key for key in _KEYS if key not in (*TABLES, "methods")]


def dump(spec: Spec) -> str:
    """The spec as TOML, with every key that has a value and an effect; `load` reads the same spec back."""
    blocks = [_pairs(_top(spec))]
    blocks += [[f"[{key}]", *pairs] for key in TABLES if (pairs := _pairs(spec.table(key)))]
    blocks += [_method_pairs(method) for method in spec.methods]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def annotated(file: str = "fedtilt.toml", spec: Spec | None = None) -> str:
    """A spec, by default that of the digits, with every key, its meaning, allowed values and default."""
    heading = _heading(file, spec, _EVERY_KEY)
    spec = spec or replace(load("digits"), name=Path(file).stem)
    blocks = [heading, *_commented_pairs(Spec, _top(spec))]
    for key, table in TABLES.items():
        blocks += [f"# {sentence(_KEYS[key])}\n[{key}]", *_commented_pairs(table, spec.table(key))]
    blocks.append(_method_comments())
    blocks += ["\n".join(_method_pairs(method)) for method in spec.methods]
    return "\n\n".join(blocks) + "\n"


def starter(file: str = "fedtilt.toml", spec: Spec | None = None) -> str:
    """The same spec as `annotated` in at most 40 lines: keys that are changed most, and values that are no default."""
    heading = _heading(file, spec, _FEW_KEYS)
    spec = spec or replace(load("digits"), name=Path(file).stem)
    top = {key: value for key, value in _top(spec).items() if key != "name" or value != Path(file).stem}
    methods = [f"  {format_toml({'preset': method.preset, **method.settings})}," for method in spec.methods]
    lines = ["\n".join(_short_pairs(Spec, top, ("seeds", "device"))), "\n".join([*_METHOD_LIST, *methods, "]"])]
    changed = _CHANGED_OFTEN if spec.data.path is None else _CHANGED_OFTEN | _CHANGED_OFTEN_OF_OWN_DATA
    for key, table in TABLES.items():
        if pairs := _short_pairs(table, spec.table(key), changed.get(key, ())):
            lines.append("\n".join([f"[{key}]", *pairs]))
    return "\n\n".join([heading, *lines]) + "\n"


def _top(spec: Spec) -> dict[str, Any]:
    return {key: getattr(spec, key) for key in TOP_KEYS}


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {format_toml(value)}" for key, value in values.items() if value is not None]


def _heading(file: str, spec: Spec | None, keys: str) -> str:
    about = "20 clients with 30 % wrong labels" if spec is None else str(spec.data.file)
    example = "methods.fedtilt.lam=-3" if spec is None else "methods.fedtilt.tau=5"
    return _HEADING.format(file=file, about=about, example=example, keys=keys)


def _short_pairs(table: type, values: Mapping[str, Any], often: Sequence[str]) -> list[str]:
    """The pairs of the keys that are changed often or whose value is not the default, each with a short comment."""
    fields = settings_of(table)
    shown = {
        key: f"{key} = {format_toml(value)}"
        for key, value in values.items()
        if value is not None and (key in often or value != default_of(fields[key]))
    }
    width = min(30, max(map(len, shown.values()), default=0))
    lines = []
    for key, pair in shown.items():
        comment = re.split("[;:]", fields[key].metadata["meaning"])[0]
        line = f"{pair:<{width}}  # {comment}"
        allowed = f" ({allowed_values(fields[key])})"
        is_listed = fields[key].metadata["choices"] or fields[key].metadata["allowed"]
        lines.append(line + allowed if is_listed and len(line + allowed) <= 120 else line)
    return lines


def _method_pairs(method: MethodSpec) -> list[str]:
    return ["[[methods]]", *_pairs({"preset": method.preset, "name": method.name, **method.settings})]


def sentence(field: Field[Any]) -> str:
    """The meaning of a setting as a sentence."""
    text: str = field.metadata["meaning"]
    return f"{text[0].upper()}{text[1:]}."


def _comment(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, initial_indent="# ", subsequent_indent=f"# {indent}", break_on_hyphens=False)


def _meaning(field: Field[Any]) -> str:
    """A key in one line: 'samples per step (a whole number ≥ 1; default: 10)'."""
    return f"{meaning_of(field)} ({allowed_values(field)}; default: {default_text(field).replace('`', '')})"


def _commented_pairs(table: type, values: Mapping[str, Any]) -> list[str]:
    """A comment and the pair for every key; of one without a value or effect, the pair is a comment too."""
    blocks = []
    for key, value in values.items():
        field = settings_of(table)[key]
        if heading := field.metadata["heading"]:
            blocks.append(f"# --- {heading} ---")
        example = default_of(field) if field.metadata["example"] is None else field.metadata["example"]
        pair = f"# {key} = {format_toml(example)}" if value is None else f"{key} = {format_toml(value)}"
        blocks.append(f"{_comment(_meaning(field))}\n{pair}")
    return blocks


def _method_comments() -> str:
    lines = [f"# {sentence(_KEYS['methods'])} The presets and their parameters:", "#"]
    lines += [_comment(f"{preset:<16} {parameters_text(preset)}", " " * 17) for preset in PRESETS]
    lines += ["#", "# A parameter without a value is required. What they mean:", "#"]
    for (key, meaning), presets in preset_parameters().items():
        lines.append(_comment(f"{key:<16} {meaning} ({', '.join(presets)})", " " * 17))
    lines += ["#", "# A method may also have these keys, a preset those that it does not decide itself:", "#"]
    parts = settings_of(Method)
    lines += [_comment(f"{key:<16} {_meaning(parts[key])}", " " * 17) for key in PARTS]
    lines += ["#", *(_comment(line) for line in _COMPONENT_COMMENT)]
    return "\n".join(lines)


def parameters_text(preset: str) -> str:
    """The parameters of a preset: 'tau, lam, q = 0.0, mu = 0.01; optional: levels'."""
    parameters = {key: default_of(each) for key, each in settings_of(PARAMETERS[preset]).items()}
    required = required_settings(preset)
    optional = [key for key, default in parameters.items() if default in (None, ()) and key not in required]
    texts = [
        key if key in required else f"{key} = {format_toml(default)}"
        for key, default in parameters.items()
        if key not in optional
    ]
    texts = [", ".join(texts)] if texts else []
    return "; ".join([*texts, f"optional: {', '.join(optional)}"] if optional else texts) or "none"


_HEADING = """\
# A spec for `fedtilt run`: FedAvg, Ditto and FedTilt on {about}.
# {keys}
# Change a key here, or for one run:  fedtilt run {file} --set train.rounds=5 --set {example}"""

_EVERY_KEY = (
    "It lists every key with its meaning, its allowed values and its default. A key that is missing has its default."
)
_FEW_KEYS = "It has the keys that are changed most; all others have their defaults, which `fedtilt init --all` lists."

_METHOD_LIST = (
    "# The methods to compare; `fedtilt methods` lists all of them. tau > 0: fair to the worst classes or groups;",
    "# lam < 0: robust to wrong labels; mu: how close a personal model stays to the shared one.",
    "methods = [",
)

_CHANGED_OFTEN: dict[str, tuple[str, ...]] = {
    "data": ("name",),
    "clients": ("count", "classes_per_client"),
    "outliers": ("kind", "rate"),
    "model": ("name", "hidden"),
    "train": ("rounds", "participation", "epochs", "batch_size", "lr"),
}
_CHANGED_OFTEN_OF_OWN_DATA: dict[str, tuple[str, ...]] = {"data": (), "clients": (), "outliers": ("kind",)}

_COMPONENT_COMMENT = (
    'A component is a name (aggregator = "median"), or a table of its rule and settings (aggregator = { rule = "krum", '
    "bad_share = 0.2 }); before is a list of them. `fedtilt methods` lists them with their settings. Your own is "
    "module:Class.",
)
