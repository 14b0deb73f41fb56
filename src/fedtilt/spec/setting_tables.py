"""The tables [train], [privacy] and [attack] of a spec, whose keys are the settings of dataclasses."""

import dataclasses
import functools
import operator
import types
from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Self, cast, get_args, get_origin, get_type_hints

from pydantic import Field, create_model, model_validator
from pydantic.fields import FieldInfo

from fedtilt.rounds.attack import Attack
from fedtilt.rounds.privacy import Privacy
from fedtilt.rounds.settings import TrainSettings
from fedtilt.spec.table import SpecTable, one_of

TRAIN_KEYS = tuple(s.name for s in fields(TrainSettings) if s.name not in ("seed", "device", "privacy", "attack"))


def _keys_of(settings: type, names: Collection[str] | None = None) -> dict[str, tuple[Any, Any]]:
    """The settings of a dataclass, or those of these names, as keys of a spec: type and pydantic field of each."""
    kinds = get_type_hints(settings)
    return {s.name: _key_of(s, kinds[s.name]) for s in fields(settings) if names is None or s.name in names}


def key_field(settings: type, name: str) -> FieldInfo:
    """A setting of a dataclass as pydantic's field."""
    return create_model("Key", **cast(Any, _keys_of(settings, [name]))).model_fields[name]


def _key_of(setting: dataclasses.Field[Any], kind: Any) -> tuple[Any, Any]:
    """A setting as a key of a spec: its type, without Python objects, and a pydantic field."""
    m = setting.metadata
    plain = [k for k in get_args(kind) if k in (bool, int, float, str, type(None))]
    examples = None if m["example"] is None else [m["example"]]
    limits: dict[str, Any] = m["limits"] | (
        {"allow_inf_nan": False} if float in {kind, *get_args(kind)} and not m["inf"] else {}
    )
    extra = {key: m[key] for key in ("allowed", "heading") if m[key]} or None
    if get_origin(kind) is tuple:
        kind = types.GenericAlias(tuple, (Annotated[plain[0], Field(**limits)], ...))
        return kind, Field(default=setting.default, strict=False, description=m["meaning"], json_schema_extra=extra)
    if plain:
        kind = functools.reduce(operator.or_, plain)
    if m["choices"]:
        kind = Annotated[kind, one_of(m["choices"], optional=setting.default is None)]
    field = Field(
        default=setting.default, description=m["meaning"], examples=examples, json_schema_extra=extra, **limits
    )
    return kind, field


if TYPE_CHECKING:
    TrainSpec = TrainSettings  # the same names
else:
    TrainSpec = create_model(
        "TrainSpec",
        __base__=SpecTable,
        __doc__="`[train]`: the settings of `TrainSettings`, without seed, device, privacy and attack.",
        **_keys_of(TrainSettings, TRAIN_KEYS),
    )


class _PrivacyTable(SpecTable):
    """A base: the keys of `Privacy` are added to it."""

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        self.to_privacy()
        return self

    def to_privacy(self) -> Privacy | None:
        """The setting `privacy` of a run; None if no key is set."""
        settings = {key: getattr(self, key) for key in type(self).model_fields}
        return None if all(value is None for value in settings.values()) else Privacy(**settings)


if TYPE_CHECKING:
    PrivacySpec = _PrivacyTable
else:
    PrivacySpec = create_model("PrivacySpec", __base__=_PrivacyTable, __doc__="`[privacy]`.", **_keys_of(Privacy))


class _AttackTable(SpecTable):
    """A base: the keys of `Attack` are added to it."""

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        self.to_attack()
        return self

    def to_attack(self) -> Attack | None:
        """The setting `attack` of a run; None if no key is set."""
        settings = {key: getattr(self, key) for key in type(self).model_fields}
        is_default = all(settings[key] == field.default for key, field in type(self).model_fields.items())
        return None if is_default else Attack(**settings)


if TYPE_CHECKING:
    AttackSpec = _AttackTable
else:
    AttackSpec = create_model("AttackSpec", __base__=_AttackTable, __doc__="`[attack]`.", **_keys_of(Attack))
