"""Options that several commands have: of runs, of models, and of tables."""

from pathlib import Path
from typing import Annotated

import typer

_BUILTIN = sorted(file.stem for file in (Path(__file__).parents[1] / "spec" / "builtin").glob("*.toml"))
Spec = Annotated[
    str,
    typer.Argument(
        metavar="[SPEC]",
        help=f"A TOML file, or a built-in spec: {', '.join(_BUILTIN)} or a federation of `fedtilt data list`.",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as train.rounds=5.")
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="The data folder (default: FEDTILT_DATA, else ~/.cache/fedtilt)."),
]
Out = Annotated[Path | None, typer.Option("--out", help="The run folder (default: a new folder in runs/).")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:all (all GPUs of this machine).")]
Cluster = Annotated[
    str | None,
    typer.Option(metavar="auto|HOST:PORT", help="Train on a Ray cluster: auto, or host:port of its head node."),
]
Seed = Annotated[int | None, typer.Option(help="The first seed.")]
Seeds = Annotated[int | None, typer.Option(help="The number of seeds; results are mean ± std.")]
Log = Annotated[
    list[str] | None,
    typer.Option(
        "--log",
        metavar="TRACKER:PLACE",
        help="Log the metrics to tensorboard:FOLDER, mlflow:FOLDER, mlflow:URI or wandb:PROJECT; repeatable.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the run folder.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print a line for every round, and which backend trains.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
SeedOfRun = Annotated[int | None, typer.Option("--seed", help="The seed of the run (default: the first).")]
OwnModel = Annotated[
    str | None, typer.Option("--model", metavar="MODULE:FUNCTION", help="Your own model, if the file cannot name it.")
]


def overrides_of(settings: list[str] | None, data_dir: Path | None, cluster: str | None = None) -> list[str]:
    """The overrides of the spec from --set, --data-dir and --cluster."""
    options = {"data.folder": data_dir, "train.cluster": cluster}
    return [*(settings or []), *(f"{key}={value}" for key, value in options.items() if value is not None)]


Target = Annotated[str | None, typer.Option("--target", metavar="COLUMN", help="The column of the labels or numbers.")]
Task = Annotated[str | None, typer.Option("--task", help="classification, or regression: numbers as targets.")]
Client = Annotated[str | None, typer.Option("--client", metavar="COLUMN", help="The column of the clients.")]
Group = Annotated[list[str] | None, typer.Option("--group", metavar="COLUMN", help="Groups; repeatable.")]
Drop = Annotated[list[str] | None, typer.Option("--drop", metavar="COLUMN", help="Ignore this column; repeatable.")]
Schema = Annotated[Path | None, typer.Option("--schema", metavar="FILE", help="A file that describes the columns.")]


def first_given(**options: str | list[str] | Path | None) -> tuple[str, str] | None:
    """The first of these options that has a value, and the value."""
    for option, value in options.items():
        if value:
            return option, value[0] if isinstance(value, list) else str(value)
    return None
