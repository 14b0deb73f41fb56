"""Read a spec: a built-in or a TOML file, with overrides from the command line."""

import difflib
import os
import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from fedtilt.errors import InputError
from fedtilt.methods import PRESETS
from fedtilt.spec.fields import TABLES, Spec
from fedtilt.spec.method import MethodSpec, needs
from fedtilt.spec.sentences import check_shape, complaint, label, unknown
from fedtilt.spec.table import Table

Raw = dict[str, Any]


def builtin_names() -> list[str]:
    """The specs that come with the package.

    >>> builtin_names()
    ['cifar10', 'digits', 'fashion-mnist', 'mnist', 'toy']
    """
    return sorted(
        file.name.removesuffix(".toml") for file in _builtin_folder().iterdir() if file.name.endswith(".toml")
    )


def load(
    source: str | Path,
    *,
    overrides: Sequence[str] = (),
    methods: Sequence[str] = (),
    seed: int | None = None,
    seeds: int | None = None,
    device: str | None = None,
) -> Spec:
    """A built-in spec by name, or a TOML file, checked.

    `methods` keeps those of that name, in that order, and adds presets that need no settings. Then come `overrides`,
    "train.rounds=5" or "methods.fedtilt.lam=-3"; an empty value goes back to the default. Paths in a file are relative
    to it, paths in overrides to the working folder; the spec holds them absolute.

    >>> load("digits", overrides=["train.rounds=5"], methods=["fedavg"]).train.rounds
    5
    """
    raw, folder = _found(source)
    check_shape(raw)
    _anchor_paths(raw, folder)
    if methods:
        raw["methods"] = _chosen(raw.get("methods", []), methods)
    for text in overrides:
        _override(raw, text)
    _anchor_paths(raw, Path.cwd())
    given = {"seed": seed, "seeds": seeds, "device": device}
    return parse(raw | {key: value for key, value in given.items() if value is not None})


def parse(raw: Raw) -> Spec:
    """A spec from tables as TOML gives them, or one sentence about the first thing that is wrong."""
    check_shape(raw)
    try:
        return Spec.model_validate(raw)
    except ValidationError as error:
        raise complaint(error, raw) from None


def _builtin_folder() -> Traversable:
    return resources.files("fedtilt.spec") / "builtin"


def _found(source: str | Path) -> tuple[Raw, Path]:
    """The tables of a spec and the folder its paths are relative to."""
    known = builtin_names()
    if isinstance(source, str) and source in known:
        return tomllib.loads((_builtin_folder() / f"{source}.toml").read_text(encoding="utf-8")), Path.cwd()
    path = Path(source).expanduser()
    if not path.exists():
        close = difflib.get_close_matches(str(source), known, n=1)
        remedy = f"did you mean {close[0]}?" if close else "`fedtilt init` writes one to start from"
        raise InputError(f"spec {str(source)!r} is neither a file nor one of {', '.join(known)}; {remedy}")
    try:
        raw = tomllib.loads(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as error:
        raise InputError(f"spec {path} cannot be read: {error.strerror}; give a readable TOML file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"spec {path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"spec {path} is not valid TOML at {_spot(error)}; mend it there") from error
    raw.setdefault("name", path.stem)
    return raw, path.parent


def _spot(error: tomllib.TOMLDecodeError) -> str:
    """Where and what, from 'Invalid value (at line 3, column 5)'."""
    what, _, where = str(error).partition(" (at ")
    place = re.sub(r"\)$", "", where) or "an unknown place"
    return f"{place}: {what[0].lower()}{what[1:]}"


def _anchor_paths(raw: Raw, folder: Path) -> None:
    data = raw.get("data", {})
    for key in ("file", "folder"):
        if isinstance(data.get(key), str) and data[key]:
            data[key] = os.path.abspath(folder / Path(data[key]).expanduser())


def _chosen(present: list[Raw], wanted: Sequence[str]) -> list[Raw]:
    """The methods asked for with --method, in that order."""
    names = [label(method, place) for place, method in enumerate(present)]
    free = [preset for preset in PRESETS if not needs(preset)]
    chosen: list[Raw] = []
    for name in dict.fromkeys(wanted):
        if name not in names and name not in free:
            extra = [preset for preset in free if preset not in names]
            raise InputError(
                f"method {name!r} is not in the spec; choose from {', '.join(names + extra)}, or add it as [[methods]]"
            )
        chosen += [method for method, known in zip(present, names, strict=True) if known == name] or [{"preset": name}]
    return chosen


def _override(raw: Raw, text: str) -> None:
    key, equals, written = _parted(raw, text)
    if not equals or not key:
        raise InputError(f"--set {text!r} is not KEY=VALUE; write for example --set train.rounds=5")
    head, _, rest = key.partition(".")
    table: type[Table] = Spec
    place, path, last = raw, [head] if rest else [], rest or head
    if head in TABLES and rest:
        table, place = TABLES[head], raw.setdefault(head, {})
    elif head == "methods" and rest:
        name, _, last = rest.rpartition(".")  # a method's name may have dots
        table, place, path = MethodSpec, _method(raw, name or last, text), [head, name]
    elif head in TABLES or head == "methods":
        example = "methods.fedtilt.lam=-2" if head == "methods" else f"{head}.{next(iter(TABLES[head].model_fields))}=…"
        raise InputError(f"--set {text!r} names a whole table; set one of its keys, as in {example}")
    elif rest:
        raise InputError(f"--set {text!r} names no table of a spec; the tables are {', '.join([*TABLES, 'methods'])}")
    if last not in table.model_fields:
        raise unknown(path, last, _value(written), table)
    kind = table.model_fields[last].annotation
    if not written:
        place.pop(last, None)
    else:  # for a key that takes text, 5 and 2026-01-01 are text
        value = _value(written)
        place[last] = written if _is_text(kind) and not isinstance(value, str) else value


def _parted(raw: Raw, text: str) -> tuple[str, str, str]:
    """Key, "=" and value; a method's name may itself hold an equals sign."""
    names = [label(method, place) for place, method in enumerate(raw.get("methods", []))]
    known = [f"methods.{name}." for name in names if text.strip().startswith(f"methods.{name}.")]
    head = max(known, key=len, default="")
    key, equals, written = text.strip().removeprefix(head).partition("=")
    return f"{head}{key.strip()}", equals, written.strip()


def _method(raw: Raw, name: str, text: str) -> Raw:
    present = raw.get("methods", [])
    names = [label(method, place) for place, method in enumerate(present)]
    if name not in names:
        raise InputError(f"--set {text!r} names no method of the run; its methods are {', '.join(names) or 'none'}")
    found: Raw = present[names.index(name)]
    found.setdefault("name", name)  # it stays the one that was addressed, even with another preset
    return found


def _is_text(kind: Any) -> bool:
    if get_origin(kind) is tuple:
        return False
    kinds = {kind, *get_args(kind)}
    return str in kinds or any(str in get_args(part)[:1] for part in kinds)


def _value(written: str) -> Any:
    """A TOML value, or the plain text where it is none."""
    try:
        document = tomllib.loads(f"value = {written}")
    except tomllib.TOMLDecodeError:
        return written
    return document["value"] if len(document) == 1 else written
