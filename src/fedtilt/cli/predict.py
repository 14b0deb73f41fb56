"""`fedtilt predict`: what a trained model predicts on new rows."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedtilt.cli.console import Console, echo, escape, plural, print_warnings, text_table
from fedtilt.cli.options import Force, OwnModel, SeedOfRun
from fedtilt.errors import InputError
from fedtilt.files import write_bytes

if TYPE_CHECKING:
    from fedtilt.runs.predictor import PredictedRows

_SHOWN = 20  # rows on the terminal
_NAMED = 10  # rows in warnings
_WITH_SETS = 4  # classes whose probabilities are shown beside prediction sets


def predict(
    path: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A safetensors or ONNX file, a run folder, or a site's folder.")
    ],
    data: Annotated[
        Path, typer.Argument(metavar="FILE", help="New rows: a table, an image, a folder of images, or a .npy file.")
    ],
    to: Annotated[
        Path | None, typer.Option(help="The file to write: .csv, .parquet, .xlsx (default: a table on the terminal).")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Of a run folder: the method.")] = None,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of a run folder: the client whose model predicts.")
    ] = None,
    seed: SeedOfRun = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Copy this column of the table; repeatable.")
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(metavar="CLASS=VALUE", help="Predict this class from this probability on, such as ill=0.3."),
    ] = None,
    sets: Annotated[
        float | None,
        typer.Option(metavar="COVERAGE", help="Add sets that contain the truth with this probability, such as 0.9."),
    ] = None,
    model: OwnModel = None,
    force: Force = False,
) -> None:
    """Predict on new rows: class names and probabilities, or numbers in the unit of the target.

    Rows are prepared as in training: gaps become the median, and new categories count as other. A row that cannot be
    used is named, and its prediction is left blank.
    """
    from fedtilt.data.tables.file_writers import table_writer
    from fedtilt.runs.predictor import load

    if to is not None and to.exists() and not force:
        raise InputError(f"{to} already exists; use --force to replace it")
    writer = None if to is None else table_writer(to)
    predictor = load(path, method=method, client=client, seed=seed, model=model)
    if threshold is not None:
        predictor = predictor.with_threshold(threshold)
    found = predictor.rows(data, keep or (), sets)
    if to is not None and writer is not None:
        write_bytes(to, writer([found.header(), *found.table()]))
    else:
        _print_table(found)
    console = Console(stderr=True)
    print_warnings(console, [f"{found.rows[i]}: {reason}" for i, reason in list(found.problems.items())[:_NAMED]])
    if len(found.problems) > _NAMED:
        print_warnings(console, [f"{plural(len(found.problems) - _NAMED, 'more row')} cannot be used"])
    echo(f"{_summary(found)}{'' if to is None else f'; wrote {to}'}")


def _print_table(found: "PredictedRows") -> None:
    """Print the first rows, probabilities in percent; problems are printed as warnings."""
    texts = ["row", *found.columns, *(["prediction"] if found.class_names else [])]
    has_sets, of_numbers = found.sets is not None, not found.class_names
    columns = ["prediction", *(["low", "high"] if has_sets else [])] if of_numbers else list(found.class_names)
    after, end = ["set"] if has_sets and not of_numbers else [], len(texts) + len(columns)
    shown = slice(0 if after and len(columns) > _WITH_SETS else len(columns))  # a set is more than its probabilities
    table = text_table(map(escape, texts), map(escape, columns[shown]), after)
    for row in found.table(_SHOWN):
        cells = [_number(cell, is_share=not of_numbers) for cell in row[len(texts) : end][shown]]
        cells += [escape(str(cell or "")) for cell in row[end : end + len(after)]]
        table.add_row(*("" if cell is None else escape(str(cell)) for cell in row[: len(texts)]), *cells)
    Console().print(table)
    if len(found.rows) > _SHOWN:
        echo(f"the first {_SHOWN} of {len(found.rows):,} rows; --to predictions.csv writes all")


def _number(cell: object, *, is_share: bool) -> str:
    if not isinstance(cell, float):
        return ""
    return f"{100 * cell:.1f} %" if is_share else f"{cell:.4g}"


def _summary(found: "PredictedRows") -> str:
    """How many rows, and what was predicted."""
    import numpy as np

    used = len(found.rows) - len(found.problems)
    unpredicted = f"; {plural(len(found.problems), 'row')} without a prediction" if found.problems else ""
    if not used:
        return f"{plural(len(found.rows), 'row')}: none can be used"
    if found.class_names:
        counts = Counter(name for name in found.predictions if name is not None)
        what = ", ".join(f"{name} {counts[name]:,}" for name in found.class_names)
    else:
        what = f"mean {np.nanmean(found.predictions):.4g}, from {np.nanmin(found.predictions):.4g} to "
        what += f"{np.nanmax(found.predictions):.4g}"
    return f"{plural(used, 'row')} predicted: {what}{unpredicted}"
