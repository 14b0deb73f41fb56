"""Options that describe a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str | None, typer.Option("--target", metavar="COLUMN", help="The column of the labels or numbers.")]
Task = Annotated[str | None, typer.Option("--task", help="classification, or regression: numbers as targets.")]
Client = Annotated[str | None, typer.Option("--client", metavar="COLUMN", help="The column of the clients.")]
Group = Annotated[list[str] | None, typer.Option("--group", metavar="COLUMN", help="Groups; repeatable.")]
Drop = Annotated[list[str] | None, typer.Option("--drop", metavar="COLUMN", help="Leave out; repeatable.")]
Schema = Annotated[Path | None, typer.Option("--schema", metavar="FILE", help="What the columns are.")]


def first_given(options: Mapping[str, str | list[str] | Path | None]) -> tuple[str, str] | None:
    """The first of these options that has a value, and the value."""
    for option, value in options.items():
        if value:
            return option, value[0] if isinstance(value, list) else str(value)
    return None
