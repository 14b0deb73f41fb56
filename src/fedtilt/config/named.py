"""Settings that belong together under a name: objects in Python, a name or a table in a file."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar, cast

from fedtilt.config.setting_fields import check_table
from fedtilt.errors import InputError


@dataclass(frozen=True)
class NamedSettings:
    """A frozen dataclass of settings, checked when it is made; a subclass is one too.

    In a file it is its name, or a table of its name and settings: `loss = { name = "focal", gamma = 1.5 }`.
    """

    rule: ClassVar[str] = ""  # its name in a file
    key: ClassVar[str] = "name"  # of its name in a table

    def __post_init__(self) -> None:
        check_table(self, self.label)

    @property
    def label(self) -> str:
        """Its name in messages and records."""
        return self.rule

    def settings(self, *, all: bool = False) -> dict[str, Any]:
        """Its settings by name: those that differ from their defaults, or all."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        return values if all else {key: value for key, value in values.items() if value != defaults[key]}

    def to_table(self, *, all: bool = False) -> dict[str, Any]:
        """A table of a spec: its name, and the settings that differ from their defaults, or all."""
        return {self.key: self.label, **self.settings(all=all)}

    def to_value(self) -> str | dict[str, Any]:
        """The shortest value of a spec: its name, or a table."""
        return self.to_table() if self.settings() else self.label

    def with_settings(self, **settings: Any) -> Self:
        """The same with other values of these settings."""
        return replace(self, **settings)


Kind = TypeVar("Kind", bound=NamedSettings)


def make_named(cls: type[Kind], settings: Mapping[str, Any], what: str, name: object) -> Kind:
    """The object of a table, or an InputError that says what it is, such as "loss"."""
    allowed = [field.name for field in fields(cls)]
    for key, value in settings.items():
        if key not in allowed:
            raise InputError(
                f"{key} = {value!r} of {what} is not a setting of {name!r}, which has {', '.join(allowed) or 'none'}; "
                "leave it out"
            )
    try:
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()})
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    except TypeError:
        required = [field.name for field in fields(cls) if field.default is MISSING]
        missing = [key for key in required if key not in settings]
        raise InputError(f"{what} = {name!r} needs {' and '.join(missing)}") from None


def named_settings(value: Any, known: Mapping[str, type[Kind]], what: str, more: str = "") -> Kind:
    """The object that a value stands for: itself, a name, or a table of its name and settings.

    Args:
        value: the value
        known: the classes by name
        what: the setting, for messages
        more: what else it may be, for messages
    """
    if isinstance(value, tuple(known.values())):
        return cast(Kind, value)
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
        raise InputError(f"{what} must be a name, a table or an object{more}, got {value!r:.60}")
    name = table.get("name")
    if not isinstance(name, str) or name not in known:
        problem = f"{what} needs name" if "name" not in table else f"unknown {what} {name!r}"
        raise InputError(f"{problem}; choose one of {', '.join(known)}{more}")
    return make_named(known[name], {key: part for key, part in table.items() if key != "name"}, what, name)
