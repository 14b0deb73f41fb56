"""A chart of the classes of every client, for the terminal."""

import math

from rich.console import ConsoleOptions, RenderResult
from rich.text import Text

from fedtilt.cli.console import Console
from fedtilt.data import Federation
from fedtilt.data.groups import in_words


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
