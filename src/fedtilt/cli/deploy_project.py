"""What the commands of `fedtilt deploy` share: the project's folder and its local cluster."""

from pathlib import Path
from typing import Annotated

import typer

Project = Annotated[Path, typer.Argument(metavar="[DIR]", help="The project's folder.")]


def cluster_home(project: Path) -> Path:
    """The folder of a project's local cluster."""
    return project / ".fedtilt"


def plural(count: int, noun: str) -> str:
    """A number and its noun, in the plural if it needs it."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
