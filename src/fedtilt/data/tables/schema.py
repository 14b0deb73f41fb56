"""The schema of a table: what each column is, and how it becomes a model's input.

It is inferred from training rows (see `summary` and `merge`), written as a JSON file that people read and edit, and
carried by run folders and exported models, so that new rows are treated like the training rows.
"""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from fedtilt import checks
from fedtilt.config.setting_fields import REQUIRED, check_table, documented, setting
from fedtilt.data.tables.settings import ROLES, Files
from fedtilt.data.tables.text_values import DECIMALS
from fedtilt.data.targets import TABLE_TASKS, NumericTarget
from fedtilt.errors import InputError
from fedtilt.files import read_json, read_metadata, write_bytes

KINDS = ("number", "yes/no", "category", "date", "ignore", "identifier")
NUMERIC = ("number", "yes/no", "date")  # kinds with a mean and a deviation
TEXT_KINDS = ("category", "ignore", "identifier")
_MAY_BE_INPUTS = ("time", "group")  # roles of columns
_FORMER_ROLES = {"split": "split_column", "split_time": "time"}  # in files of fedtilt 0.2 and before
VERSION = 1
MIN_COUNT = 5
_HOW_WRITTEN = ("format", "decimal", "unit", "missing")  # that a column may lack
_DATE_INPUTS = ("month, sine", "month, cosine", "weekday, sine", "weekday, cosine")


@documented
@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its kind and, once they are known, its statistics over the training rows.

    A missing number becomes `fill`, the median, and where training rows have gaps an indicator is a further input. A
    number's input is (x − mean) / deviation, and 0 if the deviation is 0 (a constant). A category has one input of 0 or
    1 per name and, where training rows have rare names, one more for all others. A date's inputs are the elapsed
    days, and month and weekday as points on a circle.

    >>> Column(name="age", kind="number", gaps=True, fill=50.0, mean=51.2, deviation=9.8).inputs
    ('age', 'age is missing')
    """

    name: str = setting(REQUIRED, "the name of the column")
    kind: str = setting(
        REQUIRED, "what it is; ignore (such as free text) and identifier are no features",
        choices=KINDS,
    )  # fmt: skip
    gaps: bool | None = setting(None, "whether training rows have missing values")
    fill: float | None = setting(None, "what a missing number becomes")
    mean: float | None = setting(None, "the mean of the values that are not missing; of dates in days since 1970")
    deviation: float | None = setting(None, "their standard deviation; 0: constant", ge=0)
    categories: tuple[str, ...] | None = setting(None, "the names of a category that have inputs of their own")
    other: bool | None = setting(None, "whether all other names have an input")
    format: str | None = setting(
        None,
        "how dates are written, as in Python's strptime, several separated by |; default: as in 2026-01-31, with or "
        "without a time",
    )
    decimal: str | None = setting(
        None, 'the decimal separator of the training files, or "both", for new rows that do not tell it themselves',
        choices=(*DECIMALS, "both"),
    )  # fmt: skip
    unit: str | None = setting(None, "what cells have behind the number; new rows may not have another one")
    missing: tuple[float, ...] | None = setting(
        None, "numbers that stand for missing cells, such as -999; of dates, in days since 1970"
    )

    def __post_init__(self) -> None:
        what = f"column {self.name!r}"
        if self.categories is not None:
            object.__setattr__(self, "categories", as_names(self.categories, f"categories of {what}"))
        check_table(self, what)
        for field in fields(self):
            if getattr(self, field.name) is not None and field.name not in _applicable(self.kind):
                raise InputError(f"{what} is of kind {self.kind!r}, which has no {field.name}; remove it")
        if self.format is not None and "%" not in str(self.format):
            raise InputError(f"format of {what} is {self.format!r}; write it as in strptime, such as %d.%m.%Y")
        if not isinstance(self.unit, str | None):
            raise InputError(f"unit of {what} is {self.unit!r}; write it as text, such as mg/dl")
        if not self.missing:
            object.__setattr__(self, "missing", None)

    @property
    def is_feature(self) -> bool:
        """Whether the column is a part of the model's input."""
        return self.kind not in ("ignore", "identifier")

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be inferred."""
        return all(getattr(self, key) is not None for key in _applicable(self.kind) if key not in _HOW_WRITTEN)

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
        written = {"date": ("format", "missing"), "number": ("decimal", "unit", "missing")}.get(kind, ())
        return ("name", "kind", "gaps", "fill", "mean", "deviation", *written)
    return ("name", "kind", "gaps", "categories", "other") if kind == "category" else ("name", "kind")


def as_names(values: object, what: str) -> tuple[str, ...]:
    """Names as text; raise InputError about anything but a list of different names."""
    if isinstance(values, str) or not isinstance(values, Sequence) or not all(isinstance(v, str | int) for v in values):
        raise InputError(f"{what} are {values!r}; give a list of names")
    names = tuple(map(str, values))
    if len(set(names)) != len(names):
        raise InputError(f"{what} has a name twice: {', '.join(names)}; remove one")
    return names


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What the columns of a table are; `fedtilt data schema FILE --to schema.json` writes one.

    Values that are None, here or in a `Column`, are inferred from the data.

    Args:
        columns: the columns, in the order of the model's inputs
        target: the column of the labels, or of the numbers to predict
        task: "classification" or "regression"; default: as the one who reads the table says, else classification
        classes: the labels, in the order of the model's outputs
        numbers: with regression, the scale and the ranges of the target
        client: the column of the clients
        group: the columns of groups, such as sex
        weight: the column of the samples' weights
        split_column: a column with train and test in it
        split_group: a column whose rows with the same value stay on one side of the split
        time: a column of times; each client's newest rows are test data
        min_count: the number of rows at one client that gives a category an input of its own
        files: how the files are written, for those of new rows too

    >>> Schema(columns=(Column(name="ward", kind="category", categories=("a", "b"), other=True),)).inputs
    ('ward = a', 'ward = b', 'ward = other')
    """

    columns: tuple[Column, ...]
    target: str | None = None
    task: str | None = None
    classes: tuple[str, ...] | None = None
    numbers: NumericTarget | None = None
    client: str | None = None
    group: tuple[str, ...] = ()
    weight: str | None = None
    split_column: str | None = None
    split_group: str | None = None
    time: str | None = None
    min_count: int = MIN_COUNT
    files: Files = dataclasses.field(default_factory=Files)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"the schema has the column {twice!r} twice; remove one")
        for role in ROLES:
            value = getattr(self, role)
            if role == "group":
                object.__setattr__(self, role, as_names([value] if isinstance(value, str) else value, "group"))
            elif value is not None:
                object.__setattr__(self, role, str(value))
        for role, name in self.roles:
            if name in names and role not in _MAY_BE_INPUTS:
                raise InputError(f"the schema has {name!r} as {role} and as a column; remove one")
        if self.task is not None and self.task not in TABLE_TASKS:
            raise InputError(f"task of the schema is {self.task!r}; choose {' or '.join(TABLE_TASKS)}")
        if self.task == "classification":  # the default: a schema that does not say so is equal
            object.__setattr__(self, "task", None)
        for key, task in (("classes", "classification"), ("numbers", "regression")):
            if getattr(self, key) is not None and self.is_regression != (task == "regression"):
                raise InputError(f"{key} of the schema are for {task}, and its task is another; remove one")
        if self.classes is not None:
            object.__setattr__(self, "classes", as_names(self.classes, "classes of the schema"))
        object.__setattr__(self, "min_count", checks.whole(self.min_count, "min_count of the schema", 1))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the model's inputs."""
        return tuple(name for column in self.columns for name in column.inputs)

    @property
    def is_regression(self) -> bool:
        """Whether the target is a number."""
        return self.task == "regression"

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to be inferred."""
        target = self.numbers if self.is_regression else self.classes
        return bool(self.columns) and target is not None and all(column.is_complete for column in self.columns)

    @property
    def roles(self) -> list[tuple[str, str]]:
        """What columns that are no features are, such as ("target", "diagnosis")."""
        roles = [(role, getattr(self, role)) for role in ROLES if role != "group"]
        return [(role, name) for role, name in roles if name is not None] + [("group", name) for name in self.group]

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The columns to read as they are written: 01 and 1 are two names."""
        numbers = ("weight", "time", *(["target"] if self.is_regression else []))  # groups are text and inputs
        names = [name for role, name in self.roles if role not in numbers]
        return (*names, *(column.name for column in self.columns if column.kind == "category"))

    def column(self, name: str) -> Column | None:
        """The column of this name."""
        return next((column for column in self.columns if column.name == name), None)

    def with_columns(self, columns: Sequence[Column]) -> Self:
        """The same schema with other columns."""
        return replace(self, columns=tuple(columns))

    def kinds(self) -> Self:
        """The same schema without statistics and categories, which are then inferred."""
        columns = tuple(Column(name=c.name, kind=c.kind, format=c.format) for c in self.columns)
        return replace(self, columns=columns, numbers=None)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        values = {key: getattr(self, key) for key in ("target", "task", "classes", *ROLES[1:], "min_count")}
        if self.numbers is not None:
            values["numbers"] = asdict(self.numbers) | {"bounds": list(self.numbers.bounds)}
        values["files"] = self.files.to_json() or None
        values = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items() if v not in (None, ())}
        return {"version": VERSION} | values | {"columns": {column.name: column.to_json() for column in self.columns}}

    @classmethod
    def from_json(cls, values: object) -> Self:
        """The inverse of `to_json`."""
        if not isinstance(values, Mapping) or not isinstance(values.get("columns"), Mapping):
            raise InputError('it has no "columns"; write one with fedtilt data schema')
        if values.get("version") != VERSION:
            raise InputError(f"its version is {values.get('version')!r}; this fedtilt reads version {VERSION}")
        known = [*ROLES, "task", "classes", "numbers", "min_count", "files"]
        values = {_FORMER_ROLES.get(key, key): value for key, value in values.items()}
        for key in values:
            if key not in (*known, "version", "columns"):
                raise InputError(f"it has the unknown key {key!r}; a schema has {', '.join([*known, 'columns'])}")
        columns = tuple(Column.from_json(name, column) for name, column in values["columns"].items())
        found = {key: values[key] for key in known if key in values}
        if "numbers" in found:
            found["numbers"] = _numbers(found["numbers"])
        if "files" in found:
            found["files"] = Files.from_json(found["files"])
        return cls(columns=columns, **found)

    def text(self) -> str:
        """The text of a schema file: JSON with a line per column."""
        values = self.to_json()
        columns = values.pop("columns")
        lines = [f"  {_dump(key)}: {_dump(value)}," for key, value in values.items()]
        rows = [f"    {_dump(name)}: {_dump(column)}" for name, column in columns.items()]
        return "\n".join(["{", *lines, '  "columns": {', ",\n".join(rows), "  }", "}"]) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the schema as a file that `read_schema` reads."""
        write_bytes(Path(path), self.text().encode())


def _numbers(values: object) -> NumericTarget:
    keys = {field.name for field in fields(NumericTarget)}
    if not isinstance(values, Mapping) or set(values) != keys or not isinstance(values["bounds"], list):
        raise InputError(f"numbers of the schema are {values!r}; give mean, deviation and a list of bounds")
    return NumericTarget(**{**values, "bounds": tuple(values["bounds"])})


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def read_schema(path: str | os.PathLike[str]) -> Schema:
    """The schema in a schema file, a run folder or an exported model."""
    path = Path(path)
    if path.is_dir():
        models = sorted(path.glob("seed-*/model.json"))
        if not models:
            raise InputError(f"{path} has no schema; give a schema file, a run folder or an exported model")
        values = read_json(models[0]).get("schema")
    elif path.suffix.lower() == ".json":
        values = read_json(path)
    else:
        text = read_metadata(path).get("schema")
        try:
            values = None if text is None else json.loads(text)
        except ValueError as error:
            raise InputError(f"{path} has damaged metadata ({error}); export it again") from error
    if values is None:
        raise InputError(
            f"{path} has no schema in its metadata; give a file that fedtilt export wrote for a model trained on a "
            "table, a schema file, or the data set"
        )
    try:
        return Schema.from_json(values)
    except (InputError, TypeError) as error:
        raise InputError(f"schema {path} cannot be used: {error}") from error
