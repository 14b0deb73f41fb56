"""`fedtilt export`: a trained model as a safetensors file."""

from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import echo
from fedtilt.errors import InputError
from fedtilt.files import write_tensors
from fedtilt.runs.export import export_model


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    method: Annotated[str, typer.Option(help="The method that trained the model.")],
    to: Annotated[Path, typer.Option(help="The file to write, such as model.safetensors.")],
    client: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Export the model that this client uses: its personal model, or the shared one with its own parts.",
        ),
    ] = None,
    trained_only: Annotated[
        bool, typer.Option("--trained-only", help="Without frozen parameters and parts that are as they started.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="The seed of the run (default: the first).")] = None,
    round: Annotated[
        int | None, typer.Option(help="The round of a checkpoint; the last two are kept (default: the last).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """Write a trained model as safetensors; its metadata says how to build the model and scale its input."""
    if to.suffix != ".safetensors":
        raise InputError(
            f"--to {to} does not end in .safetensors, the format that is written; for another one, give "
            "ft.models.load(…) to its exporter, such as torch.onnx.export"
        )
    if to.exists() and not force:
        raise InputError(f"{to} already exists; use --force to replace it")
    exported = export_model(folder, method, client, seed, trained_only=trained_only, round=round)
    write_tensors(to, exported.tensors, exported.metadata)
    model = "shared model" if client is None else f"{'personal ' * exported.personal}model of client {client}"
    count = sum(t.numel() for t in exported.tensors.values())
    part = "trained part of the " * trained_only
    echo(f"wrote the {part}{model} of {method} after round {exported.round} ({count:,} parameters) to {to}")
    if exported.sources:
        echo("; ".join(f"{part.replace('_', ' ')}: {source}" for part, source in exported.sources.items()))
