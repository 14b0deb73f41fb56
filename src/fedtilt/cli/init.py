"""`fedtilt init`: write an annotated spec."""

from pathlib import Path
from typing import Annotated

import typer

from fedtilt import spec
from fedtilt.errors import InputError
from fedtilt.files import write_bytes


def init(
    path: Annotated[Path, typer.Argument(metavar="[PATH]", help="The file to write.")] = Path("fedtilt.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    reference: Annotated[
        bool, typer.Option("--reference", hidden=True, help="Print the text of docs/spec.md.")
    ] = False,
) -> None:
    """Write an annotated spec to start from."""
    if reference:
        typer.echo(spec.reference(), nl=False)
        return
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it, as in {path / 'fedtilt.toml'}")
    if path.exists() and not force:
        raise InputError(f"{path} already exists; give another name, or --force to overwrite it")
    try:
        write_bytes(path, spec.annotated(str(path)).encode())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder") from error
    typer.echo(f"wrote {path}: the built-in spec digits with every key explained")
    typer.echo(f"next: fedtilt run {path}")
