"""What one column of a table is, and how it becomes a part of a model's input."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from fedtilt import checks
from fedtilt.data.tables.kinds import KINDS, NUMERIC
from fedtilt.errors import InputError

_DATE_INPUTS = ("month, sine", "month, cosine", "weekday, sine", "weekday, cosine")


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its kind and, once they are known, its statistics over the training rows.

    A missing number becomes `fill`, the median, and where training rows have gaps an indicator is a further input. A
    number's input is (x − mean) / deviation, and 0 if the deviation is 0 (a constant). A category has one input of 0 or
    1 per name and, where training rows have rare names, one more for all others. A date's inputs are the elapsed
    days, and month and weekday as points on a circle.

    Args:
        name: the name of the column
        kind: number, yes/no, category, date, ignore (such as free text) or identifier; the last two are no features
        gaps: whether training rows have missing values
        fill: what a missing number becomes
        mean: the mean of the values that are not missing; of dates in days since 1970
        deviation: their standard deviation; 0: constant
        categories: the names of a category that have inputs of their own
        other: whether all other names have an input
        format: how dates are written, as in Python's strptime; left out: as in 2026-01-31, with or without a time

    >>> Column(name="age", kind="number", gaps=True, fill=50.0, mean=51.2, deviation=9.8).inputs
    ('age', 'age is missing')
    """

    name: str
    kind: str
    gaps: bool | None = None
    fill: float | None = None
    mean: float | None = None
    deviation: float | None = None
    categories: tuple[str, ...] | None = None
    other: bool | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        what = f"column {self.name!r}"
        if self.kind not in KINDS:
            raise InputError(f"{what} has kind = {self.kind!r}; choose one of {', '.join(KINDS)}")
        for field in fields(self):
            if getattr(self, field.name) is not None and field.name not in _applicable(self.kind):
                raise InputError(f"{what} is of kind {self.kind!r}, which has no {field.name}; remove it")
        for key in ("fill", "mean", "deviation"):
            if getattr(self, key) is not None:
                value = checks.number(getattr(self, key), f"{key} of {what}")
                if not math.isfinite(value) or (key == "deviation" and value < 0):
                    raise InputError(f"{key} of {what} is {value}; give a finite number{' ≥ 0' * (key == 'deviation')}")
                object.__setattr__(self, key, value)
        for key in ("gaps", "other"):
            if not isinstance(getattr(self, key), bool | None):
                raise InputError(f"{key} of {what} is {getattr(self, key)!r}; write true or false")
        if self.categories is not None:
            object.__setattr__(self, "categories", as_names(self.categories, f"categories of {what}"))
        if self.format is not None and ("%" not in str(self.format) or not isinstance(self.format, str)):
            raise InputError(f"format of {what} is {self.format!r}; write it as in strptime, such as %d.%m.%Y")

    @property
    def is_feature(self) -> bool:
        """Whether the column is a part of the model's input."""
        return self.kind not in ("ignore", "identifier")

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be inferred."""
        return all(getattr(self, key) is not None for key in _applicable(self.kind) if key != "format")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs that the column gives."""
        if not self.is_feature:
            return ()
        if self.kind == "category":
            names = [*(self.categories or ()), *(["other"] if self.other else [])]
            inputs = [f"{self.name} = {name}" for name in names]
        else:
            inputs = [self.name, *(f"{self.name}, {part}" for part in (_DATE_INPUTS if self.kind == "date" else ()))]
        return tuple(inputs + ([f"{self.name} is missing"] if self.gaps else []))

    def to_json(self) -> dict[str, Any]:
        """The known values, without the name."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "name"}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items() if v is not None}

    @classmethod
    def from_json(cls, name: str, values: object) -> Self:
        """The inverse of `to_json`."""
        if not isinstance(values, Mapping) or "kind" not in values:
            raise InputError(f'column {name!r} is {values!r}; write {{"kind": …}} with one of {", ".join(KINDS)}')
        known = {field.name for field in fields(cls)} - {"name"}
        for key in values:
            if key not in known:
                raise InputError(
                    f"column {name!r} has the unknown key {key!r}; a column has {', '.join(sorted(known))}"
                )
        return cls(name=name, **values)


def _applicable(kind: str) -> tuple[str, ...]:
    """The fields that a column of this kind has."""
    if kind in NUMERIC:
        return ("name", "kind", "gaps", "fill", "mean", "deviation", *(["format"] if kind == "date" else []))
    return ("name", "kind", "gaps", "categories", "other") if kind == "category" else ("name", "kind")


def as_names(values: object, what: str) -> tuple[str, ...]:
    """Names as text; refuse what is no list of different names."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, str | int) for v in values):
        raise InputError(f"{what} are {values!r}; give a list of names")
    names = tuple(map(str, values))
    if len(set(names)) != len(names):
        raise InputError(f"{what} has a name twice: {', '.join(names)}; remove one")
    return names
