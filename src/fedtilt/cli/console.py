"""Where the command line prints, and its tables: names from files and sites cannot control the terminal."""

from collections.abc import Iterable

import rich.console
import rich.markup
import typer
from rich import box
from rich.console import ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from fedtilt.errors import printable


class Console(rich.console.Console):  # noqa: TID251
    """Rich's console, which shows control characters of texts as escapes."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Rich's rendering of an object; the codes of its styles and of the cursor are not in the texts."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else _printable_lines(text), style, control)


def echo(text: str, *, err: bool = False) -> None:
    """Print lines without styles and wrapping, to standard error if `err` is true."""
    typer.echo(_printable_lines(text), err=err)  # noqa: TID251


def escape(name: str) -> str:
    """A name for a text with Rich's markup, in one line; its width is known before it is laid out."""
    return rich.markup.escape(printable(name))  # noqa: TID251


def plural(count: int, noun: str) -> str:
    """A number and its noun, in the plural if it needs it.

    >>> plural(1, "site"), plural(2_000, "process")
    ('1 site', '2,000 processes')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"


def print_lines(console: Console, *lines: str) -> None:
    """Print lines as they are: without markup, colours and wrapping."""
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def print_warnings(console: Console, texts: Iterable[str]) -> None:
    """Print each warning as one line."""
    for text in texts:
        console.print(Text.assemble(("warning: ", "bold yellow"), text), soft_wrap=True, highlight=False)


def text_table(
    left: Iterable[str], right: Iterable[str] = (), after: Iterable[str] = (), *, compact: bool = False
) -> Table:
    """A table with columns of texts, which wrap, then of numbers, which do not, then of texts again."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", collapse_padding=compact)
    for title in left:
        table.add_column(title, overflow="fold")
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    for title in after:
        table.add_column(title, overflow="fold")
    return table


_UNBOUNDED = Console(width=10_000)  # to measure the full width of a table


def fits(table: Table, width: int) -> bool:
    """Whether a table fits into this many characters."""
    return Measurement.get(_UNBOUNDED, _UNBOUNDED.options, table).maximum <= width


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
