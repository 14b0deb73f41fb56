"""The settings of a table: keywords of `ft.data.table`, and keys of `[data]` in a spec."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from fedtilt.config.setting_fields import Name, check_value, default_of, setting
from fedtilt.data.sampling import SPLITS, check_split
from fedtilt.data.tables.text_values import DECIMALS
from fedtilt.errors import InputError

ROLES = ("target", "client", "group", "weight", "split_column", "split_group", "time")


@dataclass(frozen=True, kw_only=True)
class Files:
    """How a table's files are written, where they do not tell themselves; a schema carries it to new rows."""

    rename: dict[str, Name] = setting(
        {},
        "new names of columns by their names in the files, to give a column one name where files differ; it may be a "
        "table [data.rename] of its own",
        example={"Alter": "age"},
        allowed="a table of old and new names, such as {Alter = 'age'}",
    )
    missing: tuple[Name, ...] = setting(
        (),
        "cells that count as empty in inputs and target, beside the usual ones such as NA",
        allowed='a list of cells, such as ["unknown", "-999"]',
    )
    decimal: str | None = setting(
        None,
        "the decimal separator where a file's numbers do not tell, such as 15.300",
        choices=DECIMALS,
        example=",",
        allowed="a point or a comma",
    )
    encoding: str | None = setting(
        None,
        "the encoding of text files that are not UTF-8; default: cp1252, else latin-1",
        example="cp850",
        allowed="a name of Python's",
    )
    sheet: Name | None = setting(
        None,
        "the sheet of .xlsx files that has the table; default: the only one with cells",
        example="patients",
        allowed="a sheet of file",
    )
    find_missing: bool = setting(
        True, "whether codes such as -999 count as empty, in several rows and far outside the other numbers of a "
        "column, and words such as unknown in a column of numbers, dates, or yes and no",
    )  # fmt: skip
    ignore_case: bool | None = setting(
        None,
        "whether names of categories, classes, clients and groups that differ only in case and blanks are the same; "
        "default: of categories, if they have several letters or are from different clients",
        example=True,
    )

    def __post_init__(self) -> None:
        for each in (field for field in fields(self) if field.name in OF_TABLE):  # a spec has others
            value = getattr(self, each.name)
            if each.metadata["choices"] == DECIMALS and value not in (None, *DECIMALS):
                raise InputError(f"{each.name} = {value!r} is not possible; choose '.' or ','")
            if value is not None and each.name not in ROLES:
                object.__setattr__(self, each.name, check_value(each, value))
        object.__setattr__(self, "rename", {str(old): str(new) for old, new in self.rename.items()})
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except (LookupError, TypeError, ValueError):  # a null character in the name is a ValueError
                raise InputError(f"encoding = {self.encoding!r} is unknown; such as 'cp1252' or 'latin-1'") from None

    def to_json(self) -> dict[str, Any]:
        """The values that are not the default."""
        values = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}
        defaults = {each.name: default_of(each) for each in fields(self)}
        return {key: value for key, value in values.items() if value != defaults[key] and value != []}

    @classmethod
    def from_json(cls, values: object) -> Self:
        """The inverse of `to_json`."""
        known = {each.name for each in fields(cls)}
        if not isinstance(values, Mapping) or not set(values) <= known:
            raise InputError(f"files of the schema are {values!r}; they have {', '.join(sorted(known))}")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class _Roles:
    """What columns are, and which rows and columns are used."""

    target: Name | None = setting(
        None,
        "the column of the labels, numbers or text, or of the numbers to predict; required without a schema that "
        "names it",
        example="diagnosis",
        allowed="a column of file",
    )
    client: Name | None = setting(
        None,
        "the column that names the client of each row; default: the files are the clients, if there are several",
        example="hospital",
        allowed="a column of file",
    )
    group: Name | tuple[Name, ...] | None = setting(
        None,
        "the column of groups, such as sex, or several: tau tilts over these groups instead of the classes, and "
        "metrics are given for them",
        example="sex",
        allowed="a column of file, or a list of columns",
        check=lambda columns: columns != (),
    )
    group_is_input: bool = setting(
        True, "whether the columns of groups are inputs of the model too", only_with={"group": ()}
    )
    weight: Name | None = setting(
        None,
        "the column of the weight of each row in the training loss: 2 counts as two rows",
        example="visits",
        allowed="a column of file",
    )
    drop: tuple[Name, ...] = setting((), "columns to ignore", allowed='a list of columns of file, such as ["id"]')
    split: str | None = setting(
        None,
        "how test and validation data are drawn from each client's rows: at random, with the classes in proportion "
        'and rounded without bias (proportional), or the newest rows (time); default: "time" if time names a column, '
        'else "random"',
        choices=SPLITS,
        example="proportional",
    )
    drop_unlabelled: bool = setting(False, "whether to drop rows without a label; otherwise they are an error")
    split_column: Name | None = setting(
        None,
        "a column with train and test in it; default: test data is drawn",
        example="fold",
        allowed="a column of file",
    )
    split_group: Name | None = setting(
        None,
        "a column, such as the patient, whose rows with the same value are all training, all validation or all test "
        "data",
        example="patient",
        allowed="a column of file",
    )
    time: Name | None = setting(
        None,
        'the column of the times, with split "time"',
        example="admitted",
        allowed="a column of file",
    )


@dataclass(frozen=True, kw_only=True)
class TableSettings(Files, _Roles):
    """What a user says of a table."""

    thousands: str | None = setting(
        None,
        "the separator of thousands where a file's numbers do not tell; the decimal separator is the other one",
        choices=DECIMALS,
        example=".",
        allowed="a point or a comma",
    )

    def __post_init__(self) -> None:
        if self.split is not None and self.split not in SPLITS:
            check_split(self.split)
        super().__post_init__()
        for key in ROLES:
            value = getattr(self, key)
            if key == "group" and value is not None and not isinstance(value, str | int):
                object.__setattr__(self, key, tuple(map(str, value)))
            elif value is not None:
                object.__setattr__(self, key, str(value))
        if self.thousands is not None and self.thousands == self.decimal:
            raise InputError(f"decimal and thousands are both {self.decimal!r}; leave one of them out")

    @property
    def files(self) -> Files:
        """How the files are written."""
        decimal = self.decimal if self.thousands is None else DECIMALS[self.thousands == "."]
        return Files(**{each.name: getattr(self, each.name) for each in fields(Files)} | {"decimal": decimal})

    @property
    def group_columns(self) -> tuple[str, ...]:
        """The columns of groups."""
        return () if self.group is None else (self.group,) if isinstance(self.group, str) else self.group

    @property
    def roles(self) -> dict[str, Any]:
        """The columns that the user names, by what they are."""
        named = {role: getattr(self, role) for role in ROLES if role != "group" and getattr(self, role) is not None}
        return named | ({"group": self.group_columns} if self.group else {})


OF_TABLE = tuple(each.name for each in fields(TableSettings))
