"""Fields of a settings dataclass: type, default, limits and meaning; specs, docs and errors are written from them."""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from fedtilt.checks import number, whole
from fedtilt.errors import InputError, NoEffect
from fedtilt.toml_text import format_toml

REQUIRED: Any = MISSING  # a setting without a default
Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class")
_DEFAULT = re.compile("; default: ([^;]*)")
Name = Annotated[str, "a file may have a whole number"]  # a column may be called 1


def setting(
    default: Any, meaning: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None,
    lt: float | None = None, choices: Iterable[Any] = (), example: Any = None, allowed: str = "", heading: str = "",
    inf: bool = False, only_with: Mapping[str, Iterable[Any]] | None = None,
    check: Callable[[Any], object] | None = None, convert: Callable[[Any], Any] | None = None, in_table: bool = True,
    named: Mapping[str, Any] | None = None, own: str = "",
) -> Any:  # fmt: skip
    """A field; with a default of None it is optional.

    Args:
        default: its value if it is not given
        meaning: what it means
        ge: ≥ this
        gt: > this
        le: ≤ this
        lt: < this
        choices: the values it may have
        example: a value for the annotated spec, if the default is None
        allowed: the allowed values in words, if its type and limits are not enough
        inf: whether a number may be infinite
        heading: stands above this and the following settings in the annotated spec
        only_with: another setting → the values with which this one has an effect; empty: all but its default
        check: whether a value of the right type is possible, in a file
        convert: a value that its type does not describe, as it is kept; raises InputError
        in_table: whether it is a key of its table in a file
        named: the classes of `NamedSettings` that it may be an object of, by name
        own: how a file names the user's own
    """
    limits = {key: value for key, value in {"ge": ge, "gt": gt, "le": le, "lt": lt}.items() if value is not None}
    metadata = {
        "meaning": meaning, "limits": limits, "choices": tuple(choices), "example": example, "allowed": allowed,
        "heading": heading, "inf": inf, "check": check, "convert": convert, "in_table": in_table, "own": own,
        "named": {} if named is None else named,
        "only_with": {name: tuple(values) for name, values in (only_with or {}).items()},
    }  # fmt: skip
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_of(table: Any) -> dict[str, Field[Any]]:
    """The settings of a dataclass that are keys of its table in a file."""
    return {each.name: each for each in fields(table) if each.metadata.get("in_table")}


def setting_of(table: Any, name: str) -> Any:
    """A setting that another dataclass declares, as a key of this one."""
    (declared,) = (each for each in fields(table) if each.name == name)
    return field(default=declared.default, metadata={**declared.metadata, "in_table": True})


def default_of(field: Field[Any]) -> Any:
    """The default of a setting; REQUIRED: it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def meaning_of(field: Field[Any]) -> str:
    """What a setting means, without its default."""
    return _DEFAULT.sub("", field.metadata["meaning"])


def default_text(field: Field[Any]) -> str:
    """The default of a setting: a value in backquotes, or what its meaning says."""
    default, stated = default_of(field), _DEFAULT.search(field.metadata["meaning"])
    if default is None or default is REQUIRED:
        return stated[1] if stated else "none" if default is None else "required"
    return f"`{format_toml(default)}`"


def alternatives(kind: Any) -> list[Any]:
    """The types of a union, without None.

    >>> alternatives(str | tuple[str, ...] | None)
    [<class 'str'>, tuple[str, ...]]
    """
    is_union = get_origin(kind) in (Union, UnionType)
    return [each for each in get_args(kind) if each is not NoneType] if is_union else [kind]


def allowed_values(field: Field[Any]) -> str:
    """The allowed values of a setting, in words.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Sampling:
    ...     participation: float = setting(0.1, "the share of clients that take part in a round", gt=0, le=1)
    >>> allowed_values(settings_of(Sampling)["participation"])
    'a number in (0, 1]'
    """
    if field.metadata["allowed"]:
        return str(field.metadata["allowed"])
    if field.metadata["choices"]:
        return f"one of {', '.join(map(str, field.metadata['choices']))}"
    if field.metadata["named"]:
        own = f" or {field.metadata['own']}" if field.metadata["own"] else ""
        return f"{', '.join(field.metadata['named'])}{own}; or a table of its name and settings"
    kinds, limits = alternatives(field.type), limits_text(field.metadata["limits"])
    if bool in kinds:
        return "true or false"
    if float not in kinds:
        return f"a whole number{limits}" if int in kinds else "text"
    if field.metadata["inf"]:
        return f"a number{limits}, inf too" if limits else "a number, inf and -inf too"
    return f"a number{limits}" if limits.startswith(" in") else f"a finite number{limits}"


def limits_text(limits: Mapping[str, float]) -> str:
    """' ≥ 0', ' in (0, 1]', or nothing."""
    low = f"≥ {limits['ge']}" if "ge" in limits else f"> {limits['gt']}" if "gt" in limits else ""
    high = f"{limits['le']}]" if "le" in limits else f"{limits['lt']})" if "lt" in limits else ""
    if low and high:
        return f" in {'[' if low[0] == '≥' else '('}{low[2:]}, {high}"
    return f" {low}" if low else ""


def is_within(value: float, limits: Mapping[str, float], inf: bool) -> bool:
    """Whether a number is within these limits, and finite unless it may be infinite; NaN never is."""
    below = value < limits.get("ge", -math.inf) or ("gt" in limits and value <= limits["gt"])
    above = value > limits.get("le", math.inf) or ("lt" in limits and value >= limits["lt"])
    return not (below or above or value != value or (not inf and value in (math.inf, -math.inf)))


def check_value(field: Field[Any], value: Any) -> Any:
    """The value of a keyword or a file as a plain one of its type, within its limits, or an InputError."""
    if (convert := field.metadata.get("convert")) is not None:
        return convert(value)
    problems = []
    for kind in alternatives(field.type):
        try:
            typed = _to_type(field, kind, value)
        except InputError as problem:
            problems.append(problem)
        else:
            return _check_choices(field, typed)
    raise problems[0]


def _to_type(field: Field[Any], kind: Any, value: Any) -> Any:
    """The value as one of this type; objects of other classes are checked by their owner."""
    name, limits, origin, args = field.name, field.metadata.get("limits", {}), get_origin(kind), get_args(kind)
    if origin is tuple:
        parts = None if isinstance(value, str | Mapping) or not isinstance(value, Iterable) else tuple(value)
        kinds = args[:1] * len(parts or ()) if args[-1] is ... else args
        if parts is None or len(parts) != len(kinds):
            raise InputError(f"{name} must be a list, got {value!r}")
        named = [Name if each is str else each for each in kinds]
        return tuple(_to_type(field, each, part) for part, each in zip(parts, named, strict=True))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{name} must be a table, got {value!r}")
        return {_to_type(field, args[0], key): _to_type(field, args[1], part) for key, part in value.items()}
    if kind is bool and not isinstance(value, bool):
        raise InputError(f"{name} must be True or False, got {value!r}")
    if kind is int:
        value = whole(value, name, limits.get("ge"))
        return value if is_within(value, limits, inf=False) else check_number(value, name, limits)
    if kind is float:
        # a plain field, of a user's component, has no limits
        return check_number(value, name, limits, field.metadata.get("inf", True))
    if kind == Name and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    is_other = isinstance(value, tuple | list) or not field.metadata.get("choices")  # choices need not be text
    if kind in (str, Name) and not isinstance(value, str) and is_other:
        raise InputError(f"{name} must be text, got {value!r}")
    return value


def _check_choices(field: Field[Any], value: Any) -> Any:
    choices, check = field.metadata.get("choices", ()), field.metadata.get("check")
    if choices and not isinstance(value, tuple) and value not in choices:
        raise InputError(f"unknown {field.name} {value!r}; choose one of {', '.join(map(str, choices))}")
    if check is not None and not check(value):
        raise InputError(f"{field.name} = {value!r} is not possible; give {allowed_values(field)}")
    return value


def check_number(value: Any, name: str, limits: Mapping[str, float], inf: bool = False) -> float:
    """A number within the limits, or an InputError."""
    value = number(value, name)
    if not is_within(value, limits, inf):
        low = f" ≥ {limits['ge']:g}" if "ge" in limits else f" > {limits['gt']:g}" if "gt" in limits else ""
        high = f" ≤ {limits['le']:g}" if "le" in limits else f" < {limits['lt']:g}" if "lt" in limits else ""
        wanted = f"{low} and{high}" if low and high else low or high
        raise InputError(f"{name} must be a {'' if limits else 'finite '}number{wanted}, got {value!r}")
    return value


def check_table(settings: Any, table: str = "") -> None:
    """Check and convert every value of a frozen dataclass in place; errors name its table in the spec."""
    for each in fields(settings):
        value = getattr(settings, each.name)
        if value is not None or each.default is not None:
            try:
                object.__setattr__(settings, each.name, check_value(each, value))
            except InputError as error:
                raise InputError(f"{table}: {error}" if table else str(error)) from None


def check_fields_used(settings: Any, table: str = "") -> None:
    """`check_used` of the settings of a dataclass; errors name its table in the spec."""
    declared = {f"{table}.{each.name}" if table else each.name: each for each in fields(settings)}
    check_used({key: getattr(settings, each.name) for key, each in declared.items()}, declared)


def check_used(
    values: Mapping[str, Any],
    declared: Mapping[str, Field[Any]],
    name: Callable[[str], str] = str,
    given: Collection[str] = (),
) -> None:
    """Raise NoEffect for a setting that is given or differs from its default, and has no effect beside the others.

    Both are by setting, or by table.setting; `name` is what a message calls a setting.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Division:
    ...     partition: str = setting("iid", "how data is divided")
    ...     alpha: float = setting(1, "how equal the clients are", only_with={"partition": ["dirichlet"]})
    >>> check_used({"partition": "iid", "alpha": 2}, settings_of(Division))
    Traceback (most recent call last):
    fedtilt.errors.NoEffect: alpha = 2 has no effect here; set partition = 'dirichlet', or leave it out
    """
    for key, each in declared.items():
        is_set = key in given or values[key] != default_of(each)
        if is_set and (needed := unmet(key, values, declared)) is not None:
            other, allowed = needed
            words = " or ".join(repr(value) for value in allowed if value is not None)
            remedy = f"set {name(other)}{f' = {words}' if words else ''}, or leave it out"
            if allowed and not words:
                remedy = f"leave out {name(other)} or {name(key)}"
            value = list(values[key]) if isinstance(values[key], tuple) else values[key]  # as users write it
            raise NoEffect(f"{name(key)} = {value!r} has no effect here; {remedy}", key=key)


def unmet(
    key: str, values: Mapping[str, Any], declared: Mapping[str, Field[Any]]
) -> tuple[str, tuple[Any, ...]] | None:
    """The first setting that this one needs and that has another value, and the values it needs; None: there is none.

    In `only_with`, a setting of the same table is named without the table.
    """
    table, dot, _ = key.rpartition(".")
    for other, allowed in declared[key].metadata["only_with"].items():
        path = other if "." in other else f"{table}{dot}{other}"
        if not (values[path] in allowed if allowed else values[path] != default_of(declared[path])):
            return path, allowed
    return None


def documented(table: type[Class]) -> type[Class]:
    """List a dataclass' settings as the arguments in its docstring; its signature has plain types and defaults."""
    signature, types, settings = inspect.signature(table), get_type_hints(table), settings_of(table)
    plain = [
        parameter.replace(
            annotation=types[name],
            default=parameter.default if parameter.default in (parameter.empty, None) else default_of(settings[name]),
        )
        for name, parameter in signature.parameters.items()
    ]
    table.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]
    lines = [f"    {name}: {each.metadata['meaning']}" for name, each in settings.items()]
    table.__doc__ = "\n".join([inspect.getdoc(table) or "", "", "Args:", *lines])
    return table


def takes_settings(table: type, *, without: Iterable[str] = (), prefix: str = "") -> Callable[[Function], Function]:
    """List a dataclass' settings, in place of the keyword arguments, in a function's signature and docstring.

    They stand at the end of its `Args`, without those named; the keyword of each has the prefix.
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        types = get_type_hints(table)
        listed = {f"{prefix}{each.name}": each for each in fields(table) if each.name not in without}
        added = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default_of(s), annotation=types[s.name])
            for key, s in listed.items()
        ]
        text = (function.__doc__ or "").rstrip()
        last = text.rpartition("\n")[2]
        indent = " " * (len(last) - len(last.lstrip()))
        lines = "".join(f"{indent}{key}: {s.metadata['meaning']}\n" for key, s in listed.items())
        function.__signature__ = signature.replace(parameters=[*parameters, *added])  # type: ignore[attr-defined]
        function.__doc__ = f"{text}\n{lines}    "
        return function

    return decorate
