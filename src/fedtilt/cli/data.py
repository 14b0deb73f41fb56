"""`fedtilt data`: what is here, fetch it, check it, and a picture of who holds what."""

import math
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from fedtilt.data import Federation, catalog, check, data_folder, get, names, where
from fedtilt.errors import InputError

app = typer.Typer(no_args_is_help=True, help="Data sets: what is here, fetch them, check them.")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where the data lies (else FEDTILT_DATA, else ~/.cache/fedtilt)."),
]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """Show the data sets and where they are."""
    home = data_folder(data_dir)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True, style="cyan")
    table.add_column("what")
    table.add_column("train", justify="right", no_wrap=True)
    table.add_column("test", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for name in names():
        entry = catalog.entry(name)
        table.add_row(name, entry.what, f"{entry.train:,}", f"{entry.test:,}", _place(entry, home))
    console = Console()
    console.print(table)
    console.print(Text(f"data folder  {home}"), soft_wrap=True)
    missing = [name for name in names() if catalog.entry(name).files and not where(name, home)]
    if missing:
        console.print(Text(f"not here     fedtilt data get {' '.join(missing)}", style="yellow"), soft_wrap=True)


def _place(entry: catalog.Entry, home: Path) -> Text:
    if not entry.files:
        return Text("built in", style="green")
    found = where(entry.name, home)
    return Text(str(found.relative_to(home)), style="green") if found else Text("not here", style="yellow")


@app.command("get")
def get_(
    wanted: Annotated[list[str], typer.Argument(metavar="NAME...", help="Data sets to fetch.")],
    data_dir: DataDir = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is already here.")] = False,
) -> None:
    """Download data sets; an interrupted download goes on where it stopped."""
    console = Console()
    entries = [catalog.entry(name) for name in wanted]  # refuse a wrong name before the first download
    for entry in entries:
        if not entry.files:
            console.print(Text(f"{entry.name}: built in, nothing to fetch"))
            continue
        with _download_bars(console) as bars:
            tasks = {Path(f.path).name: bars.add_task(Path(f.path).name, total=f.size) for f in entry.files}
            paths = get(
                entry.name,
                data_dir,
                force=force,
                progress=lambda file, done, total, bars=bars, tasks=tasks: bars.update(tasks[file], completed=done),  # type: ignore[misc]
            )
        console.print(Text(f"{entry.name}: here, intact, in {paths[0].parent}", style="green"), soft_wrap=True)


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
    name: Annotated[str | None, typer.Argument(help="One data set; all that are here if left out.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Compare the files with the published md5 sums."""
    console = Console()
    chosen = [name] if name else [known for known in names() if where(known, data_dir)]
    if not chosen:
        console.print(Text(f"No data set with files lies in {data_folder(data_dir)}"), soft_wrap=True)
    bad = []
    for known in chosen:
        statuses = check(known, data_dir)
        if not statuses:
            console.print(Text(f"{known}: built in, nothing to check"))
        for status in statuses:
            colour = {"ok": "green", "missing": "yellow"}.get(status.state, "red")
            line = Text.assemble((f"{status.state:8}", colour), str(status.path))
            console.print(line + Text(f"  {status.note}" if status.note else "", style="dim"), soft_wrap=True)
        if any(status.state != "ok" for status in statuses):
            bad.append(known)
    if bad:
        raise InputError(
            f"data set {', '.join(bad)} is not complete and intact in {data_folder(data_dir)}; "
            f"run `fedtilt data get {' '.join(bad)} --force`"
        )


@app.command("show")
def show_(
    spec: Annotated[str, typer.Argument(metavar="[SPEC]", help="A TOML file or a built-in spec.")] = "digits",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as clients.count=10.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Draw who holds what: the classes of every client of a spec."""
    from fedtilt.spec import federation_of, load

    folder = [] if data_dir is None else [f"data.folder={data_dir}"]
    chosen = load(spec, overrides=[*(settings or []), *folder])
    Console().print(picture(federation_of(chosen, chosen.seed)))


def picture(federation: Federation, *, limit: int = 300) -> "Picture":
    """A class-by-client picture of a federation, for the first `limit` clients."""
    return Picture(federation, limit)


class Picture:
    """A rich renderable: classes as rows, clients as columns, shaded by the number of training samples."""

    def __init__(self, federation: Federation, limit: int) -> None:
        self.federation, self.limit = federation, limit

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fed = self.federation
        shown = min(fed.clients, self.limit)
        counts, sizes = fed.class_counts()[:shown].tolist(), fed.train_sizes()[:shown].tolist()
        shades, bars, mark = (" .:*#", ".:-=+*#", "!") if options.ascii_only else ("·░▒▓█", "▁▂▃▄▅▆▇", "▲")
        label = min(14, max(len("outliers"), *(len(name) for name in fed.class_names)))
        width = options.max_width - label - 2
        cell = 2 if shown * 2 <= width else 1
        most, largest = max(max(row) for row in counts), max(sizes)
        yield _summary(fed)
        for block in _blocks(shown, max(1, width // cell)):
            yield Text("")
            yield _line("client", _ruler(block, cell), label, "dim")
            for k, name in enumerate(fed.class_names):
                row = Text()
                for client in block:
                    row.append(*_shaded(counts[client][k], most, shades, cell))
                yield _line(name, row, label)
            yield _line("samples", Text("".join(_bar(sizes[n], largest, bars) * cell for n in block)), label, "blue")
            if fed.has_outliers.any():
                marks = "".join((mark if fed.has_outliers[n] else " ").ljust(cell) for n in block)
                yield _line("outliers", Text(marks), label, "red")
        yield Text("")
        yield _legend(most, shades, shown, fed, mark)


def _blocks(shown: int, room: int) -> list[range]:
    """Clients in blocks of nearly equal width, of whole tens where they fit: they read more easily."""
    each = math.ceil(shown / math.ceil(shown / room))
    tens = math.ceil(each / 10) * 10
    each = tens if tens <= room else each
    return [range(start, min(start + each, shown)) for start in range(0, shown, each)]


def _summary(fed: Federation) -> Text:
    sizes = fed.train_sizes()
    low, high = int(sizes.min()), int(sizes.max())
    each = f"{low:,} each" if low == high else f"{low:,} to {high:,} each"
    text = Text.assemble((fed.dataset.name, "bold"), f"  {fed.clients:,} clients, {fed.classes} classes\n")
    text.append(f"{int(sizes.sum()):,} training samples ({each})")
    held = sum(len(rows) for rows in fed.validation_index)
    tested = sum(len(rows) for rows in fed.test_index)
    return text.append((f", {held:,} validation" if held else "") + f", {tested:,} test")


def _line(name: str, cells: Text, label: int, style: str = "") -> Text:
    short = name if len(name) <= label else name[: label - 1] + "…"
    cells.stylize(style)
    return Text(no_wrap=True, overflow="crop").append(short.rjust(label) + "  ", style="dim").append_text(cells)


def _ruler(block: range, cell: int) -> Text:
    """The number of every tenth client above its column."""
    ruler = ""
    for place, client in enumerate(block):
        if client % 10 == 0 and len(ruler) <= place * cell:
            ruler = ruler.ljust(place * cell) + str(client)
    return Text(ruler[: max(len(block) * cell, len(str(block[0])))])


def _shaded(count: int, most: int, shades: str, cell: int) -> tuple[str, str]:
    """A cell's characters and colour: the first shade is none, the last the most."""
    if not count:
        return shades[0].ljust(cell), "bright_black"
    steps = len(shades) - 1
    level = next(level for level in range(1, steps + 1) if count <= _upper(level, steps, most))
    return shades[level] * cell, "cyan"


def _upper(level: int, steps: int, most: int) -> int:
    """The largest count of a shade; squares, because counts are skewed and small ones should still differ."""
    return most * level**2 // steps**2


def _bar(size: int, largest: int, bars: str) -> str:
    return bars[math.ceil(size * len(bars) / largest) - 1]


def _legend(most: int, shades: str, shown: int, fed: Federation, mark: str) -> Text:
    text = Text("samples of a class: ", style="dim").append(f"{shades[0]} none", style="dim")
    steps = len(shades) - 1
    for level in range(1, steps + 1):
        low, high = _upper(level - 1, steps, most) + 1, _upper(level, steps, most)
        if low <= high:
            span = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            text.append("  ").append(shades[level], style="cyan").append(f" {span}", style="dim")
    has_outliers = int(fed.has_outliers.sum())
    if has_outliers:
        kind = fed.outliers.kind
        text.append(f"\n{mark}", style="red").append(
            f" carries outliers: {kind}, {has_outliers:,} clients", style="dim"
        )
    if shown <= 30 and fed.client_names != tuple(str(number) for number in range(fed.clients)):
        named = ", ".join(f"{number} {name}" for number, name in enumerate(fed.client_names))
        text.append(f"\nclients: {named}", style="dim")
    if shown < fed.clients:
        text.append(f"\nthe first {shown:,} of {fed.clients:,} clients are drawn", style="dim")
    return text
