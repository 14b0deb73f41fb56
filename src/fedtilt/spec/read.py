"""Read a spec: a built-in or a TOML file, with overrides from the command line."""

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedtilt.config.setting_fields import settings_of
from fedtilt.config.tables import read_values
from fedtilt.data.tables.settings import TableSettings
from fedtilt.errors import InputError, NoEffect
from fedtilt.imports import find_modules_in
from fedtilt.methods import PRESETS, check_rates_used
from fedtilt.spec.error_messages import check_tables, method_label, unknown_key
from fedtilt.spec.fields import TABLES, Spec
from fedtilt.spec.method import MethodSpec
from fedtilt.spec.overrides import Raw, method_labels, override, split_override
from fedtilt.spec.starting_point import FEDERATIONS, federation_spec
from fedtilt.toml_text import parse_toml

_DATA_PATHS = ("file", "images", "leaf", "schema", "exclude", "relabel", "folder")
_PATHS = (*(("data", key) for key in _DATA_PATHS), ("train", "init"))


def builtin_names() -> list[str]:
    """The specs that come with the package: files, and one for each real-world federation.

    >>> builtin_names()[:6]
    ['cifar10', 'digits', 'fashion-mnist', 'mnist', 'toy', 'contraception']
    """
    files = (file.name for file in _builtin_folder().iterdir())
    return sorted(file.removesuffix(".toml") for file in files if file.endswith(".toml")) + FEDERATIONS


def builtin_help() -> str:
    """The built-in specs in a line, the real-world federations together."""
    files = [name for name in builtin_names() if name not in FEDERATIONS]
    return f"{', '.join(files)} or a federation of `fedtilt data list`"


def load(
    source: str | Path,
    *,
    overrides: Sequence[str] = (),
    methods: Sequence[str] = (),
    seed: int | None = None,
    seeds: int | None = None,
    device: str | None = None,
    of_run: bool = False,
) -> Spec:
    """Read and check a spec.

    A key without effect is an error, also with its default. One of a built-in spec, or of a run folder, is dropped.

    Paths in a file are relative to the file, paths in overrides to the working folder; the spec has absolute paths.

    Args:
        source: the name of a built-in spec, or a TOML file
        overrides: "train.rounds=5" or "methods.fedtilt.lam=-3"; an empty value is the default
        methods: the methods to keep, in this order, by name; a preset that the spec has not is added
        seed: replaces the spec's seed
        seeds: replaces the spec's number of seeds
        device: replaces the spec's device
        of_run: whether it is the file of a run folder, which may have defaults without effect

    >>> load("digits", overrides=["train.rounds=5"], methods=["fedavg"]).train.rounds
    5
    """
    raw, folder = _read_toml(source)
    check_tables(raw)
    _make_paths_absolute(raw, folder)
    find_modules_in(folder)
    if methods:
        raw["methods"] = _select_methods(raw.get("methods", []), methods)
    for text in overrides:
        override(raw, text)
    _make_paths_absolute(raw, Path.cwd())
    options = {"seed": seed, "seeds": seeds, "device": device}
    raw |= {key: value for key, value in options.items() if value is not None}
    last = {key: value for key, _, value in map(partial(split_override, raw), overrides)}
    given = [key for key, value in last.items() if value]
    parse_given = _parse_without_unused if _is_builtin(source) or of_run else _parse_overridden
    spec = parse_given(raw, given)
    check_rates_used([m.to_method() for m in spec.methods], [key.removeprefix("train.") for key in given], "train.")
    return spec


def _parse_without_unused(raw: Raw, given: Collection[str]) -> Spec:
    """`parse`, without the keys that have no effect; those that the user has given raise."""
    while True:
        try:
            return _parse_given(raw, given)
        except NoEffect as error:
            table, _, key = _spec_key(error).partition(".")
            is_given = any(f"{name}.".startswith(f"{table}.{key}.") for name in given)
            if is_given or key not in raw.get(table, {}):
                raise
            raw = raw | {table: {name: value for name, value in raw[table].items() if name != key}}


def _parse_overridden(raw: Raw, given: Collection[str]) -> Spec:
    """`parse`; an error about a key that has no effect beside those given says how to remove it."""
    tables = [f"{name}.{key}" for name in TABLES for key in raw.get(name, {})]
    try:
        return _parse_given(raw, tables)
    except NoEffect as error:
        key = _spec_key(error)
        if given and key not in given:
            raise NoEffect(f"{error}: --set {key}=", key=key) from None
        raise


def _parse_given(raw: Raw, given: Collection[str]) -> Spec:
    """`parse`; a key that is given and has no effect is an error with its default too."""
    spec = parse(raw)
    spec.check_used(given)
    return spec


def _spec_key(error: NoEffect) -> str:
    """The key of a spec that an error is about."""
    return error.key if "." in error.key else f"train.{error.key}"


def parse(raw: Raw) -> Spec:
    """A spec from parsed TOML; the first error is raised as one sentence."""
    check_tables(raw)
    values = read_values(Spec, {key: value for key, value in raw.items() if key != "methods"}, [], unknown_key)
    methods = tuple(_read_method(method, position) for position, method in enumerate(raw.get("methods", [])))
    return Spec(**values, methods=methods)


def table_keys(options: Mapping[str, Any], overrides: Sequence[str] = ()) -> Raw:
    """The keys of `[data]` that describe a table: options of a command, and overrides such as "data.decimal=,"."""
    raw: Raw = {"data": {key: value for key, value in options.items() if value}}
    for text in overrides:
        if not text.strip().startswith("data."):
            remedy = "give --task" if text.strip().startswith("task") else "set a key of [data], such as data.decimal=,"
            raise InputError(f"--set {text} does not describe a table; {remedy}")
        override(raw, text)
    found: Raw = raw["data"]
    return found


def table_settings(keys: Raw) -> TableSettings:
    """The settings of a table from `table_keys`, except for its schema."""
    keys = {key: value for key, value in keys.items() if key != "schema"}
    return TableSettings(**read_values(TableSettings, keys, ["data"], unknown_key))


def _read_method(raw: Raw, position: int) -> MethodSpec:
    own = {key: value for key, value in raw.items() if key in settings_of(MethodSpec)}
    settings = {key: value for key, value in raw.items() if key not in own}
    if "preset" in own:
        own.setdefault("name", own["preset"])
    values = read_values(MethodSpec, own, ["methods", method_label(raw, position)], unknown_key)
    return MethodSpec(**values, settings=settings)


def _builtin_folder() -> Traversable:
    return resources.files("fedtilt.spec") / "builtin"


def _is_builtin(source: str | Path) -> bool:
    return isinstance(source, str) and source in builtin_names()


def _read_toml(source: str | Path) -> tuple[Raw, Path]:
    """The raw tables of a spec, and the folder that its paths are relative to."""
    known = builtin_names()
    if source in FEDERATIONS:
        return federation_spec(str(source)), Path.cwd()
    if _is_builtin(source):
        return tomllib.loads((_builtin_folder() / f"{source}.toml").read_text(encoding="utf-8")), Path.cwd()
    path = Path(source).expanduser()
    if not path.exists():
        close = difflib.get_close_matches(str(source), known, n=1)
        remedy = f"did you mean {close[0]}?" if close else "`fedtilt init` writes an example"
        raise InputError(f"spec {str(source)!r} is neither a file nor a built-in spec ({builtin_help()}); {remedy}")
    if path.suffix != ".toml":
        from fedtilt.data.tables.reader import is_table  # Arrow is for tables alone

        if is_table(path):
            table = f"--table {path} --target COLUMN"
            raise InputError(f"spec {path} is a table; `fedtilt init mine.toml {table}` writes a spec for it")
    try:
        raw = parse_toml(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
    except OSError as error:
        raise InputError(f"spec {path} cannot be read: {error.strerror}; give a readable TOML file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"spec {path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"spec {path} is not valid TOML: {_toml_problem(error)}; fix it there") from error
    except RecursionError:
        raise InputError(f"spec {path} is nested too deeply; remove what is not a key of a spec") from None
    raw.setdefault("name", path.stem)
    return raw, path.parent


def _toml_problem(error: tomllib.TOMLDecodeError) -> str:
    """'line 3, column 5: invalid value', from 'Invalid value (at line 3, column 5)'."""
    problem, _, position = str(error).partition(" (at ")
    position = re.sub(r"\)$", "", position) or "unknown position"
    return f"{position}: {problem[0].lower()}{problem[1:]}"


def _make_paths_absolute(raw: Raw, folder: Path) -> None:
    for name, key in _PATHS:
        table = raw.get(name, {})
        if isinstance(table.get(key), str) and table[key]:
            if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", table[key]):
                raise InputError(f"{name}.{key} = {table[key]!r} is a URL; download it first, and give the path")
            table[key] = os.path.abspath(folder / Path(table[key]).expanduser())


def _select_methods(methods: list[Raw], requested: Sequence[str]) -> list[Raw]:
    """The methods of these names, in this order."""
    names = method_labels(methods)
    selected: list[Raw] = []
    for name in dict.fromkeys(requested):
        if name not in names and name not in PRESETS:
            close = difflib.get_close_matches(name, [*names, *PRESETS], n=1)
            known = f"it has {', '.join(names)}" if names else "which has none"
            remedy = f"did you mean {close[0]}?" if close else "fedtilt methods lists those that can be added"
            raise InputError(f"method {name!r} is neither in the spec ({known}) nor a preset; {remedy}")
        same_name = [method for method, known in zip(methods, names, strict=True) if known == name]
        selected += same_name or [{"preset": name}]
    return selected
