"""Write a spec: as TOML, as the annotated file of `fedtilt init`, and as the reference page docs/spec.md."""

import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, replace
from pathlib import Path
from typing import Any

from fedtilt.config.setting_fields import REQUIRED, allowed_values, default_of, settings_of
from fedtilt.methods import COMPONENTS, PRESETS
from fedtilt.spec.fields import TABLES, Spec
from fedtilt.spec.method import (
    COMPONENT_KEYS,
    MethodSpec,
    method_keys,
    preset_parameters,
    preset_settings,
    required_settings,
)
from fedtilt.spec.read import builtin_names, load
from fedtilt.toml_text import format_toml

_KEYS = settings_of(Spec)
_TOP = [key for key in _KEYS if key not in (*TABLES, "methods")]


def dump(spec: Spec) -> str:
    """The spec as TOML, with every key that has a value; `load` reads the same spec back."""
    blocks = [_pairs(_top(spec))]
    blocks += [[f"[{key}]", *_pairs(spec.table(key))] for key in TABLES]
    blocks += [_method_pairs(method) for method in spec.methods]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def annotated(file: str = "fedtilt.toml", spec: Spec | None = None) -> str:
    """A spec with every key, its meaning, allowed values and default.

    Args:
        file: where it is written
        spec: the spec (default: the digits spec)
    """
    heading = _heading(file, spec, _EVERY_KEY)
    spec = spec or replace(load("digits"), name=Path(file).stem)
    blocks = [heading, *_commented_pairs(Spec, _top(spec))]
    for key, table in TABLES.items():
        blocks += [f"# {_sentence(_KEYS[key])}\n[{key}]", *_commented_pairs(table, spec.table(key))]
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


def reference() -> str:
    """The text of docs/spec.md: a reference of all keys."""
    blocks = [_INTRODUCTION.format(builtins=", ".join(f"`{name}`" for name in builtin_names()))]
    blocks += ["## The run", _rows(Spec, _TOP)]
    for key, table in TABLES.items():
        blocks += [f"## `[{key}]`", _sentence(_KEYS[key]), *_sections(table), *_named_tables(table)]
    blocks += ["## `[[methods]]`", _sentence(_KEYS["methods"]), _METHODS, _presets()]
    blocks += ["The parameters of the presets:", _table([("key", "of", "meaning"), *_parameter_rows()])]
    blocks += ["All other keys of a method:", _table([("key", "meaning", "allowed values"), *_method_rows()])]
    blocks += [_COMPONENTS, *_component_tables()]
    return "\n\n".join(blocks) + "\n"


def _top(spec: Spec) -> dict[str, Any]:
    return {key: getattr(spec, key) for key in _TOP}


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


def _sentence(field: Field[Any]) -> str:
    text: str = field.metadata["meaning"]
    return f"{text[0].upper()}{text[1:]}."


def _default(field: Field[Any]) -> str:
    """A key's default: a value in backquotes, or a description."""
    default = default_of(field)
    if default is REQUIRED:
        return "the name of the file" if field.name == "name" else "required"
    return "left out" if default is None else f"`{format_toml(default)}`"


def _parameter_rows() -> list[tuple[str, str, str]]:
    return [
        (f"`{key}`", ", ".join(f"`{preset}`" for preset in presets), meaning)
        for (key, meaning), presets in preset_parameters().items()
    ]


def _method_rows() -> list[tuple[str, str, str]]:
    own = {key: (each.metadata["meaning"], allowed_values(each)) for key, each in settings_of(MethodSpec).items()}
    own |= {key: (method_keys()[key], _ALLOWED.get(key) or _rules_text(key)) for key in COMPONENT_KEYS}
    return [(f"`{key}`", *texts) for key, texts in own.items()]


def _rules_text(kind: str) -> str:
    """The built-in components of a kind, in words."""
    names = ", ".join(f"`{name}`" for name in COMPONENTS[kind])
    return f"{names} or your own" if names else "your own"


def _component_tables() -> list[str]:
    """The built-in components of every kind, and their settings."""
    return [block for kind, known in COMPONENTS.items() if known for block in (f"### `{kind}`", *_of_names(known))]


def _named_tables(table: type) -> list[str]:
    """The objects that settings of a table may be, and their settings; components are listed with the methods."""
    blocks = []
    for key, field in settings_of(table).items():
        known = field.metadata["named"]
        if known and next(iter(known.values())).key == "name":
            blocks += [f"### `{key}`", _NAMED.get(key, ""), *_of_names(known)]
    return [block for block in blocks if block]


def _of_names(known: Mapping[str, type]) -> list[str]:
    """Names with their descriptions, and their settings."""
    names = [(f"`{name}`", (inspect.getdoc(cls) or "").partition("\n")[0]) for name, cls in known.items()]
    settings: dict[tuple[str, ...], list[str]] = {}
    for name, cls in known.items():
        for key, field in settings_of(cls).items():
            settings.setdefault(_row(key, field), []).append(name)
    blocks = [_table([(next(iter(known.values())).key, "description"), *names])]  # type: ignore[attr-defined]
    rows = [(key, ", ".join(f"`{name}`" for name in of), *texts) for (key, *texts), of in settings.items()]
    return blocks + ([_table([("setting", "of", "meaning", "allowed values", "default"), *rows])] if rows else [])


def _comment(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, initial_indent="# ", subsequent_indent=f"# {indent}", break_on_hyphens=False)


def _meaning(field: Field[Any]) -> str:
    """A key in one line: 'samples per step (a whole number ≥ 1; default: 10)'."""
    default = _default(field).replace("`", "")
    return f"{field.metadata['meaning']} ({allowed_values(field)}; default: {default})"


def _commented_pairs(table: type, values: Mapping[str, Any]) -> list[str]:
    """A comment and the pair for every key; a key without a value is a comment with an example."""
    blocks = []
    for key, value in values.items():
        field = settings_of(table)[key]
        if heading := field.metadata["heading"]:
            blocks.append(f"# --- {heading} ---")
        example = format_toml(field.metadata["example"])
        pair = f"# {key} = {example}" if value is None else f"{key} = {format_toml(value)}"
        blocks.append(f"{_comment(_meaning(field))}\n{pair}")
    return blocks


def _method_comments() -> str:
    lines = [f"# {_sentence(_KEYS['methods'])} The presets and their parameters:", "#"]
    lines += [_comment(f"{preset:<16} {_parameters_text(preset)}", " " * 17) for preset in PRESETS]
    lines += ["#", "# A parameter without a value is required. What they mean:", "#"]
    for (key, meaning), presets in preset_parameters().items():
        lines.append(_comment(f"{key:<16} {meaning} ({', '.join(presets)})", " " * 17))
    lines += ["#", "# A method may also have these keys, a preset those that it does not decide itself:", "#"]
    for key in COMPONENT_KEYS:
        allowed = _ALLOWED.get(key) or _rules_text(key).replace("`", "")
        lines.append(_comment(f"{key:<16} {method_keys()[key]} ({allowed})", " " * 17))
    lines += ["#", *(_comment(line) for line in _COMPONENT_COMMENT)]
    return "\n".join(lines)


def _parameters_text(preset: str) -> str:
    """The parameters of a preset: 'tau, lam, q = 0.0, mu = 0.01; optional: levels'."""
    parameters = {key: p.default for key, p in inspect.signature(PRESETS[preset]).parameters.items()}
    parameters = {key: parameters[key] for key in preset_settings(preset) if key in parameters}
    required = required_settings(preset)
    optional = [key for key, default in parameters.items() if default in (None, ()) and key not in required]
    texts = [
        key if key in required else f"{key} = {format_toml(default)}"
        for key, default in parameters.items()
        if key not in optional
    ]
    texts = [", ".join(texts)] if texts else []
    return "; ".join([*texts, f"optional: {', '.join(optional)}"] if optional else texts) or "none"


def _sections(table: type) -> list[str]:
    """The rows of all keys, a table under every heading."""
    sections: dict[str, list[str]] = {}
    heading = ""
    for key, field in settings_of(table).items():
        heading = field.metadata["heading"] or heading
        sections.setdefault(heading, []).append(key)
    return [block for title, keys in sections.items() for block in (f"### {title}" if title else "", _rows(table, keys))
            if block]  # fmt: skip


def _rows(table: type, keys: Iterable[str]) -> str:
    return _table([("key", "meaning", "allowed values", "default"), *(_row(k, settings_of(table)[k]) for k in keys)])


def _row(key: str, field: Field[Any]) -> tuple[str, ...]:
    return f"`{key}`", field.metadata["meaning"], allowed_values(field), _default(field)


def _presets() -> str:
    rows = [("preset", "parameters", "description")]
    for preset, function in PRESETS.items():
        rows.append((f"`{preset}`", _parameters_text(preset), (inspect.getdoc(function) or "").partition("\n")[0]))
    rows.append(("`custom`", "none", "`ft.Method`: a composition of your own; the same as no preset."))
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


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

_INTRODUCTION = """\
# The spec

A spec is one TOML file that describes a run: the data, how it is divided among clients, its outliers, the model, the
training and the methods to compare. `fedtilt run SPEC` runs it; `fedtilt init` writes an example, and `fedtilt init
--all` one that explains every key. Only `methods` is required; every other key has a default.

The built-in specs are {builtins}; use the name in place of a file.
`digits` and `toy` need no download.

`--set` overrides a key for one run. A method's keys follow its name. An empty value is the default:

```sh
fedtilt run digits --set train.rounds=5 --set methods.fedtilt.lam=-3
fedtilt run digits --set outliers.kind=gaussian --set methods.fedtilt.tau=5 --set train.rounds=5
fedtilt run digits --set clients.max_train= --set train.rounds=5
```

A number may be `inf` or `-inf` where the tables below say so. Paths in a spec are relative to the spec, paths after
`--set` to the working folder. `--method NAME` selects methods by name, in the order given, and adds those of
`fedtilt methods` that the spec has not. `--seed`, `--seeds` and `--device` set the keys of the same name.

`fedtilt init --json-schema > fedtilt.schema.json` writes a JSON schema of specs. Editors with Taplo, such as VS Code
with the extension Even Better TOML, complete, explain and check the keys of a spec whose first line is
`#:schema ./fedtilt.schema.json`.

What the columns of your own table are, is inferred from the training rows: `fedtilt data show FILE` shows it, and
[tables.md](tables.md) has the rules. The schema is stored in the run folder (`model.json`) and in the files of `fedtilt
export`, and `ft.data.transform("new.csv", like="exported.safetensors")` applies it to new rows.

This page is generated: `fedtilt init --reference > docs/spec.md`."""

_METHODS = """\
A preset is a method of the literature. It takes its parameters, and the other keys below that it does not decide
itself. A parameter without a value is required."""

_COMPONENTS = """\
The parts of a method are components. A component is a name (`aggregator = "median"`), or a table of its `rule` and
settings (`aggregator = { rule = "krum", bad_share = 0.2 }`); `before` is a list of them. `rule` may be left out of
`objective` (`tilted`), `personal` (`proximal`) and `local`, which may also be a list of patterns. Your own is
`module:Class`: see [your own method](own-method.md). `--set methods.NAME.aggregator.bad_share=0.3` sets one setting,
`--set methods.NAME.before.0.radius=1` one of the first step.

```toml
[[methods]]
name = "mine"
objective = { tau = 2.0, lam = -1.0 }
personal = { mu = 0.1 }
before = ["clipping", { rule = "nnm", bad_share = 0.2 }]
aggregator = { rule = "trimmed_mean", bad_share = 0.2 }
```"""

_NAMED = {
    "optimizer": 'A name, or a table of its name and settings: `optimizer = { name = "sgd", momentum = 0.9 }`. In '
    "Python, `ft.optimizers.SGD(momentum=0.9)`.",
    "schedule": 'As the optimiser: `schedule = { name = "step", decay = 0.5, every = 10 }`, '
    "`ft.schedules.Step(decay=0.5, every=10)`.",
    "loss": 'As the optimiser: `loss = { name = "focal", gamma = 1.5 }`, `ft.losses.Focal(gamma=1.5)`; or a '
    "function of your own.",
}

_COMPONENT_COMMENT = (
    'A component is a name (aggregator = "median"), or a table of its rule and settings (aggregator = { rule = "krum", '
    "bad_share = 0.2 }); before is a list of them. `fedtilt methods` lists them with their settings. Your own is "
    "module:Class.",
)

_ALLOWED = {  # of keys that are not names of components
    "local": "a list of patterns of names, a table, or your own",
    "prox": "a finite number ≥ 0",
    "client_momentum": "a number in [0, 1)",
    "lr": "a finite number > 0",
}
