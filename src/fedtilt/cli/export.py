"""`fedtilt export`: a trained model as a safetensors or ONNX file, with a model card."""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from fedtilt.cli.console import echo
from fedtilt.errors import InputError
from fedtilt.files import write_bytes, write_tensors
from fedtilt.models import build_exported
from fedtilt.runs.export import export_model, write_onnx
from fedtilt.runs.model_card import model_card


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    method: Annotated[str, typer.Option(help="The method that trained the model.")],
    to: Annotated[Path, typer.Option(help="The file to write, such as model.safetensors or model.onnx.")],
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
    """Write a trained model as safetensors or ONNX, and a model card beside it: data, training, performance, limits.

    The metadata of the file says how to build the model and scale its input. An ONNX file is written only if ONNX
    Runtime gives the same answers as PyTorch.
    """
    if to.suffix not in (".safetensors", ".onnx"):
        raise InputError(f"--to {to} ends neither in .safetensors nor in .onnx, the formats that are written")
    if to.suffix == ".onnx" and trained_only:
        raise InputError(
            f"--trained-only writes a part of the model, and an ONNX file such as {to} has all of it; remove the option"
        )
    if to.exists() and not force:
        raise InputError(f"{to} already exists; use --force to replace it")
    exported = export_model(folder, method, client, seed, trained_only=trained_only, round=round)
    card, text = to.with_suffix(".md"), model_card(folder, exported, method, client, seed).encode()
    if card.exists() and card.read_bytes() != text and not force:
        raise InputError(f"{card} is not the card of this model; give another name, or --force to replace it")
    checked = ""
    if to.suffix == ".onnx":
        net = build_exported(exported.tensors, exported.metadata, folder)
        shape = json.loads(exported.metadata["model"])["input_shape"]
        example = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
        difference = write_onnx(to, net, example, exported.metadata)
        checked = f"; ONNX Runtime differs from PyTorch by {difference:.1g} at most"
    else:
        write_tensors(to, exported.tensors, exported.metadata)
    write_bytes(card, text)
    model = "shared model" if client is None else f"{'personal ' * exported.personal}model of client {client}"
    count = sum(t.numel() for t in exported.tensors.values())
    part = "trained part of the " * trained_only
    echo(f"wrote the {part}{model} of {method} after round {exported.round} ({count:,} parameters) to {to}{checked}")
    if exported.sources:
        echo("; ".join(f"{part.replace('_', ' ')}: {source}" for part, source in exported.sources.items()))
    echo(f"model card: {card}")
