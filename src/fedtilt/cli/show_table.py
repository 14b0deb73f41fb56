"""What `fedtilt data show` prints about a table."""

from collections.abc import Iterable, Sequence

import torch
from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from fedtilt.cli.console import Console
from fedtilt.data import Dataset, Federation
from fedtilt.data.data_warnings import dataset_warnings
from fedtilt.data.tables.describe import ColumnDescription, describe_columns
from fedtilt.data.tables.rows import describe_split
from fedtilt.data.tables.table import Table
from fedtilt.data.targets import RANGE


def show_table(console: Console, opened: Table, *, test_share: float | None = None, seed: int = 0) -> Dataset | None:
    """Print a table's classes, clients, split and columns; return its data set, or None if it has no target."""
    reader = opened.reader
    dataset = None if opened.schema.target is None else opened.to_dataset(test_share, seed)
    schema = opened.infer() if dataset is None else dataset.schema
    assert schema is not None
    rows = Text.assemble((reader.title, "bold"), f"  {len(reader):,} rows, {len(reader.header)} columns")
    console.print(rows if len(reader.tables) == 1 else rows.append(f", {len(reader.tables)} files"))
    if dataset is None:
        console.print(
            "target    none: name the column of the labels with --target to see classes, clients, groups, split and "
            "warnings",
            soft_wrap=True,
        )
    else:
        console.print(_target(dataset), soft_wrap=True)
        if dataset.client_names is not None and dataset.client_train is not None and dataset.client_test is not None:
            counts = torch.cat([dataset.client_train, dataset.client_test]).bincount().tolist()
            source = schema.client or "the files"
            console.print(_counted(f"clients   {source}: ", dataset.client_names, counts), soft_wrap=True)
        for name, column in dataset.groups.items():
            if name == RANGE:
                continue  # it is in the line of the target
            counts = torch.cat([column.train, column.test]).bincount(minlength=len(column.names)).tolist()
            console.print(_counted(f"group     {name}: ", column.names, counts), soft_wrap=True)
        split = describe_split(schema, test_share, seed)
        console.print(
            f"split     {split}: {len(dataset.y_train):,} training, {len(dataset.y_test):,} test rows",
            highlight=False,
            soft_wrap=True,
        )
    console.print()
    console.print(_column_table(describe_columns(reader, schema)))
    return dataset


def _target(dataset: Dataset) -> Text:
    """The target: its classes or its numbers and their ranges, with the number of rows of each."""
    assert dataset.schema is not None
    labels = torch.cat([dataset.labels("train"), dataset.labels("test")])
    counts = labels.bincount(minlength=dataset.classes).tolist()
    numbers = ""
    if dataset.target is not None:
        y = torch.cat([dataset.y_train, dataset.y_test])
        numbers = f"numbers {y.min():.6g} to {y.max():.6g}, mean {y.mean():.6g}; "
    return _counted(f"target    {dataset.schema.target}: {numbers}", dataset.class_names, counts)


def table_messages(dataset: Dataset) -> Sequence[str]:
    """The warnings about a table, with those about its own clients if it has any."""
    if dataset.client_names is not None:
        return Federation.build(dataset).warnings
    return (*dataset.warnings, *dataset_warnings(dataset))


def _counted(head: str, names: Sequence[str], counts: Sequence[int], limit: int = 12) -> Text:
    shown = ", ".join(f"{name} {count:,}" for name, count in list(zip(names, counts, strict=True))[:limit])
    return Text(head + shown + (f" and {len(names) - limit:,} more" if len(names) > limit else ""))


def _column_table(descriptions: Sequence[ColumnDescription]) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("column", style="cyan", overflow="fold")
    table.add_column("kind", no_wrap=True)
    table.add_column("missing", justify="right", no_wrap=True)
    table.add_column("values", overflow="fold")
    table.add_column("inputs", justify="right", no_wrap=True)
    for d in descriptions:
        table.add_row(Text(d.name), d.kind, d.missing, Text(d.values), str(d.inputs) if d.inputs else "")
    return table


def print_warnings(console: Console, texts: Iterable[str]) -> None:
    """Print each warning as one line."""
    for text in texts:
        console.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True, highlight=False)
