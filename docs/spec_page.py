"""The page docs/spec.md, a reference of all keys of a spec: python docs/spec_page.py > docs/spec.md."""

import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any

from fedtilt.config.setting_fields import allowed_values, default_text, meaning_of, settings_of
from fedtilt.methods import COMPONENTS, PARTS, PRESETS, Method
from fedtilt.spec.fields import TABLES, Spec
from fedtilt.spec.method import MethodSpec, preset_parameters
from fedtilt.spec.read import builtin_names
from fedtilt.spec.write import TOP_KEYS, parameters_text, sentence
from fedtilt.text_tables import markdown_table


def page() -> str:
    """The text of the page."""
    blocks = [_INTRODUCTION.format(builtins=", ".join(f"`{name}`" for name in builtin_names()))]
    blocks += ["## The run", _rows(Spec, TOP_KEYS)]
    for key, table in TABLES.items():
        blocks += [f"## `[{key}]`", sentence(settings_of(Spec)[key]), *_sections(table), *_named_tables(table)]
    blocks += ["## `[[methods]]`", sentence(settings_of(Spec)["methods"]), _METHODS, _presets()]
    blocks += ["The parameters of the presets:", _markdown([("key", "of", "meaning"), *_parameter_rows()])]
    blocks += ["All other keys of a method:", _markdown([("key", "meaning", "allowed values"), *_method_rows()])]
    blocks += [_COMPONENTS, *_component_tables()]
    return "\n\n".join(blocks) + "\n"


def _parameter_rows() -> list[tuple[str, str, str]]:
    return [
        (f"`{key}`", ", ".join(f"`{preset}`" for preset in presets), meaning)
        for (key, meaning), presets in preset_parameters().items()
    ]


def _method_rows() -> list[tuple[str, str, str]]:
    own = settings_of(MethodSpec) | {key: settings_of(Method)[key] for key in PARTS}
    return [(f"`{key}`", each.metadata["meaning"], allowed_values(each)) for key, each in own.items()]


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
    blocks = [_markdown([(next(iter(known.values())).key, "description"), *names])]  # type: ignore[attr-defined]
    rows = [(key, ", ".join(f"`{name}`" for name in of), *texts) for (key, *texts), of in settings.items()]
    return blocks + ([_markdown([("setting", "of", "meaning", "allowed values", "default"), *rows])] if rows else [])


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
    return _markdown([("key", "meaning", "allowed values", "default"), *(_row(k, settings_of(table)[k]) for k in keys)])


def _row(key: str, field: Field[Any]) -> tuple[str, ...]:
    return f"`{key}`", meaning_of(field), allowed_values(field), default_text(field)


def _presets() -> str:
    rows = [("preset", "parameters", "description")]
    for preset, function in PRESETS.items():
        rows.append((f"`{preset}`", parameters_text(preset), (inspect.getdoc(function) or "").partition("\n")[0]))
    rows.append(("`custom`", "none", "`ft.Method`: a composition of your own; the same as no preset."))
    return _markdown(rows)


_INTRODUCTION = """\
# The spec

A spec is one TOML file that describes a run: the data, how it is divided among clients, its outliers, the model, the
training and the methods to compare. `fedtilt run SPEC` runs it; `fedtilt init` writes an example, and `fedtilt init
--all` one that explains every key. Only `methods` is required; every other key has a default.

The built-in specs are {builtins}; use the name in place of a file.
`digits` and `toy` need no download; [the real-world federations](federations.md) need the extra `federations`.

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

This page is generated: `python docs/spec_page.py > docs/spec.md`."""

_METHODS = """\
A preset is a method of the literature. It takes its parameters, and the other keys below that it does not decide
itself. A parameter without a value is required."""

_COMPONENTS = """\
The parts of a method are components. A component is a name (`aggregator = "median"`), or a table of its `rule` and
settings (`aggregator = { rule = "krum", bad_share = 0.2 }`); `before` is a list of them. `rule` is not needed in
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
    "stop": 'As the optimiser: `stop = { name = "patience", rounds = 10, restore_best = true }`, '
    "`ft.stopping.Patience(rounds=10, restore_best=True)`.",
}


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(rows[0], rows[1:])


if __name__ == "__main__":
    sys.stdout.write(page())
