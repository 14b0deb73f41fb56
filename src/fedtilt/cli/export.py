"""`fedtilt export`: a trained model as a safetensors file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedtilt.errors import InputError
from fedtilt.files import write_tensors
from fedtilt.runs.export import metadata, state_dict


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    method: Annotated[str, typer.Option(help="The method whose model it is.")],
    to: Annotated[Path, typer.Option(help="The file to write, such as model.safetensors.")],
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="A client's personal model instead of the shared one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which seed of the run; the first by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a trained model as safetensors: parameters by name, and in the metadata what it takes to use it."""
    if to.exists() and not force:
        raise InputError(f"{to} exists; use --force to replace it")
    notes = Console(stderr=True)
    tensors = state_dict(folder, method, client, seed, notice=lambda text: notes.print(f"note: {text}", markup=False))
    write_tensors(to, tensors, metadata(folder, method, client, seed))
    whose = "shared model" if client is None else f"personal model of client {client}"
    count = sum(t.numel() for t in tensors.values())
    print(f"wrote the {whose} of {method} ({count:,} parameters) to {to}")
