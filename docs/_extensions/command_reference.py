"""The directive `command-reference`: every command of fedtilt with its arguments and options, from the code."""

from collections.abc import Iterator

import click
import typer.main
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fedtilt.cli import app as fedtilt


def markdown() -> str:
    """The reference of all commands."""
    return "\n".join(_command(typer.main.get_command(fedtilt), "fedtilt"))


def _command(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            child = command.get_command(context, sub)
            if child is not None and not child.hidden:
                yield from _command(child, f"{name} {sub}")
        return
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"## {name}\n\n{_text(command.help)}\n\n```text\n{name} {usage}\n```\n"
    rows = [row for parameter in command.params if (row := _row(parameter, context))]
    if rows:
        yield "| argument or option | meaning |\n| --- | --- |"
        yield from rows
    yield ""


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    if getattr(parameter, "hidden", False) or parameter.name == "help":
        return None
    if isinstance(parameter, click.Argument):
        names, meaning = parameter.make_metavar(context), getattr(parameter, "help", "") or ""
    else:
        record = parameter.get_help_record(context)
        if record is None:
            return None
        names, meaning = record
    cells = (f"`{names}`", _text(meaning))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _text(text: str | None) -> str:
    """The text of a help, without the marks of a wrapped paragraph."""
    return " ".join((text or "").replace("\b", "").replace("\f", "").split(" ")).strip()


class CommandReference(SphinxDirective):
    """Insert the reference at this place."""

    def run(self) -> list[nodes.Node]:
        """Parse the generated Markdown."""
        return self.parse_text_to_nodes(markdown(), allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-reference", CommandReference)
    return {"parallel_read_safe": True}
