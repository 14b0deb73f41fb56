"""`fedtilt export`: a trained model as a safetensors or ONNX file, with a model card."""

from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import echo
from fedtilt.cli.options import Force, OwnModel, SeedOfRun
from fedtilt.errors import InputError


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder, or a site's state folder.")],
    to: Annotated[
        Path,
        typer.Option(
            help="The file to write, such as model.safetensors or model.onnx, or a new folder for the Hugging Face Hub."
        ),
    ],
    method: Annotated[
        str | None, typer.Option(help="The method that trained the model (default: the only one).")
    ] = None,
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
    seed: SeedOfRun = None,
    round: Annotated[
        int | None, typer.Option(help="The round of a checkpoint; the last two are kept (default: the last).")
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(metavar="CLASS=VALUE", help="Store that this class is predicted from this probability on."),
    ] = None,
    model: OwnModel = None,
    force: Force = False,
) -> None:
    """Write a trained model as safetensors or ONNX, and a model card beside it: data, training, performance, limits.

    The metadata of the file says how to build the model and its input: fedtilt predict needs nothing else. An ONNX file
    is written only if ONNX Runtime gives the same answers as PyTorch. In the state folder of a site, it is the site's
    own model. A name without a suffix is a new folder with the model, its settings and the card as README.md.
    """
    from fedtilt.evaluation.decision_metrics import Threshold
    from fedtilt.runs.export import export_of
    from fedtilt.runs.model_card import write_export, write_hub_folder
    from fedtilt.runs.trained_run import read_trained_run

    if model is not None and to.suffix != ".onnx":
        raise InputError(f"--model {model} has no effect: {to} has the weights alone; remove it")
    if to.suffix not in (".safetensors", ".onnx", ""):
        raise InputError(f"--to {to} ends neither in .safetensors nor in .onnx, the formats that are written")
    if to.suffix == ".onnx" and trained_only:
        raise InputError(
            f"--trained-only writes a part of the model, and an ONNX file such as {to} has all of it; remove the option"
        )
    run = read_trained_run(folder, seed, round)
    exported = export_of(run, method, client, trained_only=trained_only)
    if threshold is not None:
        exported = exported.with_threshold(Threshold.from_text(threshold))
    card, difference = to / "README.md", None
    if to.suffix:
        card, difference = write_export(run, exported, to, model, force=force)
    elif force:
        raise InputError(f"--force has no effect on a folder: {to} must be new or empty; remove the option")
    else:
        write_hub_folder(run, exported, to)
    checked = "" if difference is None else f"; ONNX Runtime differs from PyTorch by {difference:.1g} at most"
    whose = "shared model"
    if exported.client is not None:
        whose = f"{'personal ' * exported.personal}model of client {exported.client}"
    count = sum(t.numel() for t in exported.tensors.values())
    part, after = "trained part of the " * trained_only, f"{exported.method} after round {exported.round}"
    echo(f"wrote the {part}{whose} of {after} ({count:,} parameters) to {to}{checked}")
    if exported.sources:
        echo("; ".join(f"{part.replace('_', ' ')}: {source}" for part, source in exported.sources.items()))
    for note in exported.notes:
        echo(f"{note}; --threshold sets one")
    echo(f"model card: {card}")
