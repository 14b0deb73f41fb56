"""Write a spec: as TOML, as the annotated file of `fedtilt init`, and as the reference page docs/spec.md."""

import inspect
import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from fedtilt.spec.fields import TABLES, Spec
from fedtilt.spec.method import MAKERS, MethodSpec, needs, settings_of
from fedtilt.spec.read import builtin_names, load
from fedtilt.spec.sentences import allowed
from fedtilt.spec.table import Table

_TOP = [key for key in Spec.model_fields if key not in (*TABLES, "methods")]


def dump(spec: Spec) -> str:
    """The spec as TOML with every key that has a value; `load` of it gives the same spec."""
    blocks = [_pairs(spec, _TOP)]
    blocks += [[f"[{key}]", *_pairs(getattr(spec, key))] for key in TABLES]
    blocks += [["[[methods]]", *_pairs(method)] for method in spec.methods]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def annotated(file: str = "fedtilt.toml") -> str:
    """The digits spec with every key, its meaning, what it may be and its default; `file` is where it will be."""
    spec = load("digits").model_copy(update={"name": Path(file).stem})
    blocks = [_ANNOTATED.format(file=file), *_explained(spec, _TOP)]
    for key, table in TABLES.items():
        blocks += [f"# {_sentence(Spec.model_fields[key])}\n[{key}]"]
        blocks += _explained(getattr(spec, key), table.model_fields)
    blocks.append(_explained_methods())
    blocks += ["\n".join(["[[methods]]", *_pairs(method)]) for method in spec.methods]
    return "\n\n".join(blocks) + "\n"


def reference() -> str:
    """The text of docs/spec.md: every key of a spec."""
    blocks = [_INTRODUCTION.format(builtins=", ".join(f"`{name}`" for name in builtin_names()))]
    blocks += ["## The run", _rows(Spec, _TOP)]
    for key, table in TABLES.items():
        blocks += [f"## `[{key}]`", _sentence(Spec.model_fields[key]), _rows(table, table.model_fields)]
    blocks += ["## `[[methods]]`", _sentence(Spec.model_fields["methods"]), _METHODS, _presets()]
    blocks += ["Their keys:", _rows(MethodSpec, MethodSpec.model_fields)]
    return "\n\n".join(blocks) + "\n"


def toml(value: Any) -> str:
    r"""One value as TOML.

    >>> toml([1, 0.1, float("-inf"), 'a "word"'])
    '[1, 0.1, -inf, "a \\"word\\""]'
    """
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(part) for part in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves DEL, TOML forbids it
    return repr(value)  # int and float: shortest text that reads back as the same number; inf and -inf are TOML


def _pairs(table: Table, keys: Iterable[str] = ()) -> list[str]:
    values = {key: getattr(table, key) for key in keys or type(table).model_fields}
    return [f"{key} = {toml(value)}" for key, value in values.items() if value is not None]


def _sentence(field: FieldInfo) -> str:
    text = str(field.description)
    return f"{text[0].upper()}{text[1:]}."


def _default(table: type[Table], key: str) -> str:
    """A key's default: a value in backquotes, or words."""
    field = table.model_fields[key]
    if field.is_required():
        return "the file's name" if table is Spec else "needed"
    if table is MethodSpec:
        return _method_default(key)
    return "left out" if field.default is None else f"`{toml(field.default)}`"


def _method_default(key: str) -> str:
    """A setting's default, where all presets that take it agree."""
    if key == "name":
        return "the preset's name"
    defaults = {settings_of(preset)[key].default for preset in MAKERS if key in settings_of(preset)}
    value = defaults.pop()
    if defaults or value is inspect.Parameter.empty:
        return "the preset's"
    return "left out" if value is None else f"`{toml(value)}`"


def _comment(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, initial_indent="# ", subsequent_indent=f"# {indent}", break_on_hyphens=False)


def _meaning(table: type[Table], key: str) -> str:
    """A key in one line: 'passes of a client over its data (a whole number ≥ 1; default: 10)'."""
    field, default = table.model_fields[key], _default(table, key).replace("`", "")
    return f"{field.description} ({allowed(field)}; {default if default == 'needed' else f'default: {default}'})"


def _explained(table: Table, keys: Iterable[str]) -> list[str]:
    """For every key a comment and the pair; a key without a value is commented out, with an example."""
    blocks = []
    for key in keys:
        field, value = type(table).model_fields[key], getattr(table, key)
        pair = f"# {key} = {toml((field.examples or [''])[0])}" if value is None else f"{key} = {toml(value)}"
        blocks.append(f"{_comment(_meaning(type(table), key))}\n{pair}")
    return blocks


def _explained_methods() -> str:
    lines = [f"# {_sentence(Spec.model_fields['methods'])} The keys of each:", "#"]
    lines += [_comment(f"{key:<11} {_meaning(MethodSpec, key)}", " " * 12) for key in MethodSpec.model_fields]
    lines += ["#", "# A preset takes these settings, those without a value being needed, and all from q on:", "#"]
    lines += [f"# {preset:<11} {_own(preset)}" for preset in MAKERS]
    return "\n".join(lines)


def _own(preset: str) -> str:
    """What a preset names itself: 'tau, lam, q = 0.0, mu = 0.01'."""
    own = inspect.signature(MAKERS[preset]).parameters
    settings = {key: p.default for key, p in settings_of(preset).items() if key in own}
    if preset == "custom":
        return "every setting but t"
    texts = [key if key in needs(preset) else f"{key} = {toml(default)}" for key, default in settings.items()]
    return ", ".join(texts) or "nothing of its own"


def _rows(table: type[Table], keys: Iterable[str]) -> str:
    rows = [("key", "what it may be", "default", "meaning")]
    for key in keys:
        field = table.model_fields[key]
        rows.append((f"`{key}`", allowed(field), _default(table, key), str(field.description)))
    return _table(rows)


def _presets() -> str:
    rows = [("preset", "its own settings", "what it is")]
    for preset, make in MAKERS.items():
        what = "The bare `Method`." if preset == "custom" else (inspect.getdoc(make) or "").partition("\n")[0]
        rows.append((f"`{preset}`", _own(preset), what))
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


_ANNOTATED = """\
# A spec for `fedtilt run`: FedAvg, Ditto and FedTilt on 20 clients whose labels are often wrong.
#
# Every key is here, with what it means, what it may be and its default; a key left out takes its default.
# Change it here, or for one run:  fedtilt run {file} --set train.rounds=5 --set methods.fedtilt.lam=-3"""

_INTRODUCTION = """\
# The spec

A spec is one TOML file that says all about a run: the data, how it is divided among clients, what is wrong with it,
the model, the training and the methods to compare. `fedtilt run SPEC` trains it; `fedtilt init` writes one to start
from, with every key explained. Every key but `methods` may be left out and then takes its default.

These come with the package and go by their names: {builtins}.
`digits` and `toy` need no download.

`--set` overrides a key for one run; a method goes by its name. An empty value goes back to the default:

```
fedtilt run digits --set train.rounds=5 --set methods.fedtilt.lam=-3
fedtilt run mnist --set outliers.kind=flips --set methods.fedtilt.tau=0 --set methods.fedtilt.lam=-2
fedtilt run digits --set clients.max_train=
```

Numbers may be `inf` and `-inf` where the tables say so. Paths in a spec are relative to it, paths after `--set` to the
working folder. `--method NAME` keeps only the methods named, in that order, and adds `fedavg`, `fedprox` or `ditto`
with its defaults. `--seed`, `--seeds` and `--device` set the keys of that name.

The features of a table of your own are standardised with the training rows' mean and deviation. Both stay with the
run (`model.json`) and with what `fedtilt export` writes; `ft.data.rows("new.csv", like="exported.safetensors")` does
the same to new rows, and the README shows how to predict on them.

This page is made from the code: `fedtilt init --reference > docs/spec.md`."""

_METHODS = """\
A preset is a method by its usual name. It takes its own settings and those of the server (`q`, `distance`, `steps`,
`aggregator`, `bad_share`, `weighting`), and refuses the others. A setting shown without a value is needed."""
