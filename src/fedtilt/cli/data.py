"""`fedtilt data`: list, download and check data sets, describe tables, and draw the classes of every client."""

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from fedtilt.cli.show_folder import describe_folder
from fedtilt.data import Federation, catalog, check, data_folder, find_folder, get, names
from fedtilt.data.columns import is_table
from fedtilt.data.data_warnings import dataset_warnings
from fedtilt.data.describe import ColumnDescription, describe_columns
from fedtilt.data.entry import Entry
from fedtilt.data.image_listing import is_manifest
from fedtilt.data.splits import describe_split
from fedtilt.data.tables import Table as TableSource
from fedtilt.data.tables import open_table
from fedtilt.errors import InputError, InputWarning
from fedtilt.spec.build import table_of

app = typer.Typer(no_args_is_help=True, help="List, download, check and show data sets; describe tables.")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The data folder (default: FEDTILT_DATA, else ~/.cache/fedtilt)."),
]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the data sets and where they are."""
    root = data_folder(data_dir)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True, style="cyan")
    table.add_column("description")
    table.add_column("train", justify="right", no_wrap=True)
    table.add_column("test", justify="right", no_wrap=True)
    table.add_column("find_folder", overflow="fold")
    for name in names():
        entry = catalog.entry(name)
        table.add_row(name, entry.description, f"{entry.train:,}", f"{entry.test:,}", _location(entry, root))
    console = Console()
    console.print(table)
    console.print(Text(f"data folder: {root}"), soft_wrap=True)
    missing = [name for name in names() if catalog.entry(name).files and not find_folder(name, root)]
    if missing:
        console.print(Text(f"to download: fedtilt data get {' '.join(missing)}", style="yellow"), soft_wrap=True)


def _location(entry: Entry, root: Path) -> Text:
    if not entry.files:
        return Text("built in", style="green")
    folder = find_folder(entry.name, root)
    return Text(str(folder.relative_to(root)), style="green") if folder else Text("not downloaded", style="yellow")


@app.command("get")
def get_(
    requested: Annotated[list[str], typer.Argument(metavar="NAME...", help="Data sets to download.")],
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Download intact files again.")] = False,
) -> None:
    """Download data sets; an interrupted download is resumed."""
    console = Console()
    entries = [catalog.entry(name) for name in requested]  # refuse a wrong name before the first download
    for entry in entries:
        if not entry.files:
            console.print(Text(f"{entry.name}: built in, nothing to download"))
            continue
        with _download_bars(console) as bars:
            tasks = {Path(f.path).name: bars.add_task(Path(f.path).name, total=f.size) for f in entry.files}
            paths = get(
                entry.name,
                data_dir,
                force=force,
                progress=lambda file, done, total, bars=bars, tasks=tasks: bars.update(tasks[file], completed=done),  # type: ignore[misc]
            )
        console.print(Text(f"{entry.name}: checked, in {paths[0].parent}", style="green"), soft_wrap=True)


def _download_bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


@app.command("check")
def check_(
    name: Annotated[str | None, typer.Argument(help="One data set; left out: all that are downloaded.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Compare the files with the published md5 sums."""
    console = Console()
    checked = [name] if name else [known for known in names() if find_folder(known, data_dir)]
    if not checked:
        console.print(Text(f"no data set is downloaded in {data_folder(data_dir)}"), soft_wrap=True)
    incomplete = []
    for known in checked:
        statuses = check(known, data_dir)
        if not statuses:
            console.print(Text(f"{known}: built in, nothing to check"))
        for status in statuses:
            colour = {"ok": "green", "missing": "yellow"}.get(status.state, "red")
            line = Text.assemble((f"{status.state:8}", colour), str(status.path))
            console.print(line + Text(f"  {status.note}" if status.note else "", style="dim"), soft_wrap=True)
        if any(status.state != "ok" for status in statuses):
            incomplete.append(known)
    if incomplete:
        raise InputError(
            f"data set {', '.join(incomplete)} has missing or damaged files in {data_folder(data_dir)}; "
            f"run `fedtilt data get {' '.join(incomplete)} --force`"
        )


TargetOption = Annotated[str | None, typer.Option("--target", metavar="COLUMN", help="The column of the labels.")]
ClientOption = Annotated[str | None, typer.Option("--client", metavar="COLUMN", help="The column of the clients.")]
DropOption = Annotated[list[str] | None, typer.Option("--drop", metavar="COLUMN", help="Leave out; repeatable.")]
SchemaOption = Annotated[Path | None, typer.Option("--schema", metavar="FILE", help="What the columns are.")]


@app.command("show")
def show_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="[SOURCE]", help="A table, a folder of tables, images or LEAF data, a TOML file or a built-in spec."
        ),
    ] = "digits",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the spec.")
    ] = None,
    data_dir: DataDir = None,
    target: TargetOption = None,
    client: ClientOption = None,
    drop: DropOption = None,
    schema: SchemaOption = None,
) -> None:
    """Show a table's columns, split and warnings, what a folder has, or how a spec divides its data among clients."""
    from fedtilt.spec import federation_of, load

    console = Console()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # they are printed below
        if is_table(source) and not is_manifest(source):
            if settings:
                raise InputError(
                    f"--set {settings[0]} sets a key of a spec, and {source} is a table; use --target, --client"
                )
            opened = open_table(source, {"target": target, "client": client}, drop or [], schema)
            show_table(console, opened, test_share=None, seed=0)
            return
        for option, value in (("target", target), ("client", client), ("drop", drop), ("schema", schema)):
            if value:
                raise InputError(
                    f"--{option} {value} describes a table, and {source} is none; in a spec, use --set data.{option}=…"
                )
        if is_manifest(source) or Path(source).is_dir():
            if settings:
                raise InputError(f"--set {settings[0]} sets a key of a spec, and {source} is a folder or manifest")
            federation = describe_folder(console, Path(source))
            if federation is not None:
                console.print(ClassCountChart(federation))
                print_warnings(console, federation.warnings)
            return
        folder = [] if data_dir is None else [f"data.folder={data_dir}"]
        loaded = load(source, overrides=[*(settings or []), *folder])
        if loaded.data.file:
            show_table(console, table_of(loaded), test_share=loaded.data.test_share, seed=loaded.seed, chart=False)
            console.print()
        federation = federation_of(loaded, loaded.seed)
        console.print(ClassCountChart(federation))
        print_warnings(console, federation.warnings)


@app.command("schema")
def schema_(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A CSV, TSV or Parquet file, or a folder of them.")],
    to: Annotated[Path | None, typer.Option("--to", help="The file to write (default: print it).")] = None,
    target: TargetOption = None,
    client: ClientOption = None,
    drop: DropOption = None,
    kinds: Annotated[bool, typer.Option("--kinds", help="Leave statistics out; a run computes them itself.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write what the columns of a table are, to read, edit and give to a spec (data.schema)."""
    if to is not None and to.exists() and not force:
        raise InputError(f"{to} already exists; use --force to replace it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # `data show` prints them
        opened = open_table(source, {"target": target, "client": client}, drop or [])
        schema = opened.infer() if target is None else opened.to_dataset().schema
    assert schema is not None
    if kinds:
        schema = schema.kinds()
    if to is None:
        print(schema.text(), end="")
        return
    schema.write(to)
    print(f"wrote {to}: {len(schema.columns)} columns" + ("" if kinds else f", {len(schema.inputs)} inputs of a model"))
    print(f"edit it, then set data.schema = {str(to)!r} in a spec, or schema={str(to)!r} in ft.data.table")


def show_table(
    console: Console, opened: TableSource, *, test_share: float | None, seed: int, chart: bool = True
) -> None:
    """Print a table's classes, clients, split, columns and warnings."""
    columns = opened.columns
    rows = Text.assemble((columns.title, "bold"), f"  {len(columns):,} rows, {len(columns.header)} columns")
    console.print(rows if len(columns.parts) == 1 else rows.append(f", {len(columns.parts)} files"))
    dataset = None if opened.schema.target is None else opened.to_dataset(test_share, seed)
    if dataset is None:
        schema = opened.infer()
        console.print("target    none: name the column of the labels with --target to see classes, split and warnings")
    else:
        assert dataset.schema is not None
        schema = dataset.schema
        counts = torch.cat([dataset.y_train, dataset.y_test]).bincount(minlength=dataset.classes).tolist()
        console.print(_counted(f"target    {schema.target}: ", dataset.class_names, counts), soft_wrap=True)
        if dataset.client_names is not None and dataset.client_train is not None and dataset.client_test is not None:
            counts = torch.cat([dataset.client_train, dataset.client_test]).bincount().tolist()
            source = schema.client or "the files"
            console.print(_counted(f"clients   {source}: ", dataset.client_names, counts), soft_wrap=True)
        split = describe_split(schema, test_share, seed)
        console.print(
            f"split     {split}: {len(dataset.y_train):,} training, {len(dataset.y_test):,} test rows", highlight=False
        )
    console.print()
    console.print(_column_table(describe_columns(columns, schema)))
    if dataset is not None and chart:
        federation = Federation.build(dataset) if dataset.client_names is not None else None
        print_warnings(
            console, (*dataset.warnings, *dataset_warnings(dataset)) if federation is None else federation.warnings
        )


def _counted(head: str, names: Sequence[str], counts: Sequence[int], limit: int = 12) -> Text:
    shown = ", ".join(f"{name} {count:,}" for name, count in list(zip(names, counts, strict=True))[:limit])
    return Text(head + shown + (f" and {len(names) - limit:,} more" if len(names) > limit else ""))


def _column_table(descriptions: Sequence[ColumnDescription]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
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
    text = Text.assemble((fed.dataset.name, "bold"), f"  {fed.clients:,} clients, {fed.classes} classes\n")
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
