"""Where the command line prints: names from files and sites cannot control the terminal."""

from collections.abc import Iterable

import rich.console
import rich.markup
import typer
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

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


def _printable_lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
