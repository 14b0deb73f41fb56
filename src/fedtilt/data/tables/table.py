"""The user's own table: read, split, described by a schema, and as a model's input."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from fedtilt.config.setting_fields import takes_settings
from fedtilt.data.dataset import Dataset, split_dataset
from fedtilt.data.inputs import Inputs
from fedtilt.data.sampling import check_split, positions_by_number
from fedtilt.data.tables.cells import BadCells, ColumnValues, SchemaMismatch
from fedtilt.data.tables.describe import (
    column_warnings,
    describe_file,
    dropped_columns,
    renamed_units,
    target_warnings,
    totals_warnings,
)
from fedtilt.data.tables.encoding import encode
from fedtilt.data.tables.merge import merge
from fedtilt.data.tables.reader import Source, TableReader, open_reader
from fedtilt.data.tables.rows import LabelledRows, label_rows
from fedtilt.data.tables.schema import Column, Schema, read_schema
from fedtilt.data.tables.settings import ROLES, Files, TableSettings
from fedtilt.data.tables.summary import SiteSummary, summarise_sites
from fedtilt.data.tables.text_values import format_value, is_code
from fedtilt.data.tables.values import read_column, read_names
from fedtilt.errors import InputError
from fedtilt.text_tables import first_names

_FAR = 10  # deviations from the mean


@takes_settings(TableSettings)
def table(
    source: Source, *, schema: Schema | str | os.PathLike[str] | None = None, task: str | None = None,
    test_share: float | None = None, seed: int = 0, leave_out: Sequence[str] = (), **settings: Any,
) -> Dataset:  # fmt: skip
    """Read a table as a data set.

    What each column is, is inferred: numbers, yes/no, categories, dates, free text and identifiers; the last two are
    dropped. Numbers are standardised with the training rows' mean and standard deviation, gaps become the median with
    an indicator beside it, and categories and dates become several inputs. All of this is in the data set's `schema`,
    which `transform` applies to new rows. `schema.Column` documents the rules.

    Args:
        source: a CSV, TSV, Parquet or Excel file or a pandas DataFrame; or one per client: a folder or a list of files,
            named like the clients, or a dictionary of files or DataFrames by client
        schema: what the columns are, a `Schema` or the path of one; what it leaves out is inferred
        task: "classification" or "regression" (numbers as targets); default: the schema's, else classification
        test_share: the share of each client's rows that is test data; default: 0.25
        seed: the seed that draws the test data
        leave_out: clients whose rows are not used, not even for means and categories; give it to `Federation.build` too
        **settings: the settings of a table:
    """
    return open_table(source, TableSettings(**settings), schema, task=task).to_dataset(test_share, seed, leave_out)


def transform(source: Source, *, like: Dataset | Schema | str | os.PathLike[str]) -> Tensor:
    """New rows as a model's input: the columns it was trained on, treated as in training.

    Gaps become the median, and categories that training rows did not have count as other.

    Args:
        source: a CSV, TSV or Parquet file or a pandas DataFrame; columns that are not features are ignored
        like: the data set that `table` returned, its schema, or the path of an exported model, a run folder or a
            schema file
    """
    return _encode_new(*open_new_rows(source, like))


class NewRows(NamedTuple):
    """New rows of a table, with those that cannot be used named instead of raised."""

    x: Tensor  # the model's input, (N, inputs); in a row that cannot be used, bad cells count as missing
    problems: dict[int, str]  # row → why it cannot be used
    reader: TableReader
    schema: Schema


def new_rows(source: Source, like: Dataset | Schema | str | os.PathLike[str]) -> NewRows:
    """`transform`, in which a cell that cannot be used costs its row, not all rows."""
    reader, schema = open_new_rows(source, like)
    problems: dict[int, str] = {}
    while True:
        try:
            return NewRows(_encode_new(reader, schema), problems, reader, schema)
        except BadCells as bad:
            if not bad.reasons.keys() - set(reader.gaps.get(bad.column, ())):
                raise  # it does not help that they are missing
            for row, reason in bad.reasons.items():
                problems.setdefault(row, reason)
            reader = reader.with_gaps(bad.column, bad.reasons.keys())


def _encode_new(reader: TableReader, schema: Schema) -> Tensor:
    """New rows as a model's input; raise BadCells about codes such as -999 that no training row has."""

    def check(column: Column, cells: ColumnValues) -> None:
        if cells.values is None or not column.deviation or column.kind == "yes/no" or not reader.files.find_missing:
            return
        far = np.flatnonzero(np.abs(cells.values - column.mean) > _FAR * column.deviation)
        codes = {row: value for row in far.tolist() if is_code(value := float(cells.values[row]), column.kind)}
        if codes:
            texts = {row: format_value(value, column.kind) for row, value in codes.items()}
            mean = format_value(float(f"{column.mean:.5g}"), column.kind)
            rule = f"it is far from the training rows (mean {mean}) and may mean unknown"
            raise BadCells(reader, column.name, texts, rule, "empty it, or correct it")

    return torch.from_numpy(encode(reader, schema, [np.arange(len(reader))], check)[0])


def open_new_rows(source: Source, like: Dataset | Schema | str | os.PathLike[str]) -> tuple[TableReader, Schema]:
    """A table that has the columns that a model was trained on, and its schema."""
    if not isinstance(like, Dataset | Schema | str | os.PathLike):
        raise InputError(
            f"like is a {type(like).__name__}; give a data set, a schema, or the path of an exported model"
        )
    if isinstance(like, Dataset) and like.schema is None:
        raise InputError(f"data set {like.name!r} has no schema; give a data set that ft.data.table returned")
    schema = like.schema if isinstance(like, Dataset) else like
    schema = schema if isinstance(schema, Schema) else read_schema(schema)  # type: ignore[arg-type]
    reader = open_reader(source, text=schema.text_columns, files=schema.files, exact=schema.group)
    features = [column for column in schema.columns if column.is_feature]
    missing = [column.name for column in features if column.name not in reader.header]
    if missing:
        raise InputError(
            f"table {reader.name} has no column {first_names(list(map(repr, missing)), 20)}, which the model was "
            f"trained on; its columns are {first_names(reader.header, 20)}"
        )
    incomplete = next((column.name for column in features if not column.is_complete), None)
    if incomplete is not None:
        raise InputError(f"the schema has no statistics of column {incomplete!r}; write it with fedtilt data schema")
    return reader, schema


@dataclass(frozen=True)
class Table:
    """An open table and what is known of its schema before its rows are read."""

    reader: TableReader
    schema: Schema  # roles, and the columns that the user described
    names: tuple[str, ...]  # the columns that may be features
    site: int | None = None  # whose rows these are; None: the table has the rows of all clients
    drop_unlabelled: bool = False
    split: str = "random"  # how rows are drawn

    def to_dataset(self, test_share: float | None = None, seed: int = 0, leave_out: Sequence[str] = ()) -> Dataset:
        """Split, infer the rest of the schema from the training rows, and encode; without the rows of some clients."""
        reader, rows = self.reader, self._label_rows(test_share, seed, leave_out)
        known = self.schema if self.schema.is_regression else replace(self.schema, classes=rows.class_names)
        schema = merge(self._summaries(rows), known)
        if not any(column.is_feature for column in schema.columns):
            kinds = ", ".join(f"{column.name} ({column.kind})" for column in schema.columns) or "none"
            raise InputError(
                f"table {reader.name} has no feature column; beside target and client its columns are {kinds}"
            )
        found: dict[str, list[str]] = {}  # warnings, by column
        read: dict[str, Sequence[str]] = {}  # how its cells were read

        def inspect(column: Column, values: ColumnValues) -> None:
            read[column.name] = values.notes
            found[column.name] = column_warnings(column, values, rows.train, rows.labels, schema.target)

        x_train, x_test = encode(reader, schema, [rows.train, rows.test], inspect)
        weight = None if schema.weight is None else _weights(reader, schema.weight)
        groups = {name: read_names(reader, name) for name in schema.group}
        columns: dict[str, Inputs | None] = {
            "y": torch.from_numpy(rows.labels.astype(np.float32) if schema.is_regression else rows.labels),
            "client": None if rows.client is None else torch.from_numpy(rows.client),
            "weight": None if weight is None else torch.from_numpy(weight),
            "group": {name: torch.from_numpy(codes) for name, (codes, _) in groups.items()} or None,
            "rows": torch.arange(len(reader)),
        }
        of_training = {"split_group": rows.group, "split_time": rows.time}
        return split_dataset(
            columns,
            {"train": torch.from_numpy(rows.train), "test": torch.from_numpy(rows.test)},
            name=reader.title,
            x_train=torch.from_numpy(x_train),
            x_test=torch.from_numpy(x_test),
            classes=len(rows.class_names),
            class_names=rows.class_names,
            task=schema.task or "classification",
            target=schema.numbers,
            client_names=rows.client_names,
            group_names={name: names for name, (_, names) in groups.items()} or None,
            schema=schema,
            row_names=reader.rows,
            split=self.split,
            test_drawn=schema.split_column is None,
            **{
                f"{key}_train": torch.from_numpy(values[rows.train])
                for key, values in of_training.items()
                if values is not None
            },
            warnings=(
                *_without_rows(rows, leave_out, reader.title),
                *renamed_units(reader),
                *totals_warnings(reader, [reader.header[0], schema.target, schema.client]),
                *dropped_columns(reader, schema, self.schema),
                *(target_warnings(schema.target, rows.labels[rows.train]) if schema.is_regression else ()),
                *(text for column in schema.columns for text in found.get(column.name, [])),
            ),
            notes=(
                *(text for text in map(describe_file, reader.tables) if text),
                *_unlabelled(rows, schema.target),
                *(f"column {name!r}: {'; '.join(notes)}" for name, notes in read.items() if notes),
            ),
        )

    def infer(self) -> Schema:
        """The schema of all rows, for a table without labels."""
        everything = np.arange(len(self.reader))
        summaries = summarise_sites(self.reader, self.names, {"": everything}, {"": ()}, self.schema)
        return merge(summaries, self.schema)

    def site_summary(self, test_share: float | None, seed: int) -> SiteSummary:
        """What a site sends of its training rows, so that all sites agree on one schema."""
        rows = self._label_rows(test_share, seed)
        (summary,) = self._summaries(rows)
        if self.schema.is_regression:
            return summary
        found = np.unique(rows.labels[rows.labels >= 0])  # of test rows too
        return replace(summary, classes=tuple(rows.class_names[k] for k in found))

    def _label_rows(self, test_share: float | None, seed: int, leave_out: Sequence[str] = ()) -> LabelledRows:
        how, unlabelled = self.split, self.drop_unlabelled
        return label_rows(self.reader, self.schema, how, self.site, test_share, seed, unlabelled, leave_out)

    def with_schema(self, schema: Schema) -> Self:
        """The same table with the schema that the sites agreed on; its columns must be those of the table."""
        features = [column.name for column in schema.columns if column.is_feature]
        lacking = next((name for name in features if name not in self.names), None)
        if lacking is not None:
            difference = f"has no column {lacking!r}, which the schema has"
            raise SchemaMismatch(f"table {self.reader.name} {difference}; add it", difference)
        unknown = next((name for name in self.names if schema.column(name) is None), None)
        if unknown is not None:
            raise _extra_column(self.reader, unknown, f"drop = [{unknown!r}]")
        return replace(self, schema=schema, names=tuple(column.name for column in schema.columns))

    def _summaries(self, rows: LabelledRows) -> list[SiteSummary]:
        """A summary of each client's training rows; without clients, of all."""
        sites = {"" if self.site is None else str(self.site): rows.train}
        if rows.client is not None and rows.client_names is not None:
            positions = positions_by_number(rows.client[rows.train], len(rows.client_names))
            sites = {name: rows.train[own] for name, own in zip(rows.client_names, positions, strict=True) if len(own)}
        classes: dict[str, Sequence[str]] = dict.fromkeys(sites, ())
        if not self.schema.is_regression:
            classes = {
                site: [rows.class_names[k] for k in np.flatnonzero(np.bincount(rows.labels[positions]))]
                for site, positions in sites.items()
            }
        return summarise_sites(self.reader, self.names, sites, classes, self.schema)


def _unlabelled(rows: LabelledRows, target: str | None) -> list[str]:
    """A sentence about the rows that were dropped because they have no label."""
    is_number = np.issubdtype(rows.labels.dtype, np.floating)
    dropped = int((np.isnan(rows.labels) if is_number else rows.labels < 0).sum())
    return [f"{dropped:,} of {len(rows.labels):,} rows have no {target!r} and are dropped"] if dropped else []


def _without_rows(rows: LabelledRows, names: Sequence[str], title: str) -> list[str]:
    """A sentence about every client to leave out that has no row: it may be misspelt."""
    if rows.client is None or rows.client_names is None:
        return []
    gone = [name for name in names if not (rows.client == rows.client_names.index(name)).any()]
    return [f"leave_out names {name!r}, and no row of {title} has this client; check the name" for name in gone]


def open_table(
    source: Source, settings: TableSettings, schema: Schema | str | os.PathLike[str] | None = None,
    site: int | None = None, task: str | None = None,
) -> Table:  # fmt: skip
    """Open a table, and check the names of columns against it.

    A column that the schema describes with `"gaps": true` or as no feature may be absent from some files: its values
    are missing there. In the table of a site, the client column and columns to drop may be absent too. The other
    arguments are those of `table`.
    """
    known, dropped = known_schema(schema, settings, task), settings.drop
    optional = [column.name for column in known.columns if column.gaps or not column.is_feature]
    exact = [name for role, name in known.roles if role != "target"]
    reader = open_reader(source, text=known.text_columns, optional=optional, files=known.files, exact=exact)
    if site is not None:
        reader = reader.with_missing([*optional, *dropped, *([] if known.client is None else [known.client])])
    elif settings.sheet is not None and not any(table.name.lower().endswith(".xlsx") for table in reader.tables):
        raise InputError(f"sheet = {settings.sheet!r} is of .xlsx files, and {reader.name} is none; leave it out")
    elif unused := [old for old, new in settings.rename.items() if new not in reader.header]:
        raise InputError(
            f"rename = {{{unused[0]!r}: {settings.rename[unused[0]]!r}}} names no column of {reader.name}; its columns "
            f"are {', '.join(reader.header)}"
        )
    _check_names(reader, known, dropped)
    if not settings.group_is_input and not known.group:
        raise InputError("group_is_input = False has no effect without group; name the column of groups")
    listed = [column.name for column in known.columns]
    inputs = ("time", *(["group"] if settings.group_is_input and not listed else []))
    taken = {name for role, name in known.roles if role not in inputs and name not in listed}
    names = [name for name in reader.header if name not in (*taken, *dropped)]
    if known.columns:
        extra = [name for name in names if name not in listed]
        if extra:
            remedy = f"add it there with a kind (ignore leaves it out), or drop = [{extra[0]!r}]"
            raise _extra_column(reader, extra[0], remedy)
        both = [name for name in listed if name in known.group]
        if both and not settings.group_is_input:
            raise InputError(f"group_is_input = False, and the schema has {both[0]!r} as an input; correct one of them")
        names = [name for name in listed if name not in dropped]
    if not names:
        raise InputError(f"table {reader.name} has no feature column, only {', '.join(reader.header)}; add one")
    known = known.with_columns([column for column in known.columns if column.name not in dropped])
    split = check_split(settings.split, time=known.time, group=known.split_group)
    return Table(reader, known, tuple(names), site, settings.drop_unlabelled, split)


def _extra_column(reader: TableReader, name: str, remedy: str) -> SchemaMismatch:
    difference = f"has the column {name!r}, which the schema lacks"
    return SchemaMismatch(
        f"table {reader.name} {difference}; {remedy}", difference, "has a column, which the schema lacks"
    )


def _weights(reader: TableReader, name: str) -> np.ndarray:
    """The weights of all rows: numbers ≥ 0."""
    values = read_column(reader, name, Column(name=name, kind="number")).values
    assert values is not None
    bad = np.flatnonzero(~(values >= 0))
    if len(bad):
        found = "an empty cell" if np.isnan(values[bad[0]]) else f"{values[bad[0]]:g}"
        raise InputError(
            f"table {reader.name} has {found} in {reader.rows[int(bad[0])]}, column {name!r}; weights are numbers ≥ 0"
        )
    return values.astype(np.float32)


def known_schema(
    schema: Schema | str | os.PathLike[str] | None, settings: TableSettings, task: str | None = None
) -> Schema:
    """What the user says of a table: a schema or the path of one, the settings, and the task."""
    known = schema if isinstance(schema, Schema) else Schema(columns=()) if schema is None else read_schema(schema)
    for role, name in settings.roles.items():
        written = getattr(known, role)
        if written and written != name:
            raise InputError(f"{role} = {name!r} differs from the schema's, {written!r}; correct one of them")
    written = known.task or ("classification" if known.classes else None)
    task = task or written
    if written not in (None, task):
        raise InputError(f"task = {task!r} differs from the schema's, {written!r}; correct one of them")
    files = Files(**known.files.to_json() | settings.files.to_json())
    return replace(known, task=task, files=files, **settings.roles)


def _check_names(reader: TableReader, schema: Schema, drop: Iterable[str]) -> None:
    """Raise InputError about a name that is no column, and a column with two roles."""
    known = first_names(reader.header, 20)
    used: dict[str, str] = {}
    wanted = [*schema.roles, *(("schema", column.name) for column in schema.columns), *(("drop", n) for n in drop)]
    for role, name in wanted:
        if name not in reader.header:
            raise SchemaMismatch(
                f"{role} = {name!r} is not a column of {reader.name}; its columns are {known}",
                f"has no column {name!r}, which {'the schema has' if role == 'schema' else f'is the {role}'}",
            )
        if role == "drop" and used.get(name) not in (None, "time"):
            raise InputError(f"drop contains {name!r}, which is the {used[name]}; leave it out")
        if role in ROLES and role != "time":
            if name in used:
                raise InputError(
                    f"{used[name]} and {role} are both {name!r}; they must be two columns of {reader.name}"
                )
            used[name] = role
    splits = [role for role in ("split_column", "split_group", "time") if getattr(schema, role) is not None]
    if len(splits) > 1:
        raise InputError(f"{' and '.join(splits)} are two ways to split; choose one")
