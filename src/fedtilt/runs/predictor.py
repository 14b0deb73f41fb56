"""A trained model that predicts on new data: from an exported file, a run folder or a site's folder."""

import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedtilt.data.inputs import Inputs, named_tensors, sample_count, sample_shape, take
from fedtilt.data.naming import FileRows
from fedtilt.data.sources.samples import to_inputs
from fedtilt.data.tables.schema import Schema
from fedtilt.errors import InputError, InputWarning
from fedtilt.evaluation.decision_metrics import Threshold
from fedtilt.evaluation.prediction_sets import ConformityScores, SetRule, class_bins, half_width
from fedtilt.files import interpreting, read_metadata, read_tensors, reading
from fedtilt.imports import import_extra
from fedtilt.models import ModelSource, build_exported, exported_shape, logits
from fedtilt.runs.export import export_model, read_onnx
from fedtilt.text_tables import csv_text, first_names

_BATCH = 1024  # rows of a forward pass
_MISFITS = (RuntimeError, TypeError, ValueError, IndexError)  # of a model that does not take its input
EMPTY_SET = "(no class)"  # in a table; of a row that cannot be used, the cell is empty


class PredictedRows(NamedTuple):
    """Predictions with the names of their rows; those of rows that cannot be used are missing."""

    rows: Sequence[str]  # such as "row 17" of a file
    predictions: np.ndarray  # (N,) names of classes, None where missing; of numbers, float64 with NaN
    probabilities: np.ndarray | None  # (N, K) float64, NaN where missing; None: the predictions are numbers
    class_names: tuple[str, ...]  # of the K columns; empty: numbers
    problems: Mapping[int, str]  # row → why it cannot be used
    columns: Mapping[str, Sequence[object]]  # of the input that are copied, such as identifiers
    sets: np.ndarray | None = None  # (N,) tuples of names, None where missing; of numbers, (N, 2) ends of intervals

    def header(self) -> list[str]:
        """The names of the columns of `table`."""
        names = ["row", *self.columns, "prediction", *(f"probability of {name}" for name in self.class_names)]
        of_sets = [] if self.sets is None else ["set"] if self.class_names else ["low", "high"]
        return [*names, *of_sets, *(["problem"] if self.problems else [])]

    def table(self, first: int | None = None) -> list[list[object]]:
        """A list of cells per row, None where missing; with `first`, of this number of rows."""
        found: list[list[object]] = []
        for i in range(len(self.rows) if first is None else min(first, len(self.rows))):
            numbers = [self.predictions[i]] if self.probabilities is None else self.probabilities[i].tolist()
            cells: list[object] = [None if np.isnan(n) else float(f"{n:.6g}") for n in numbers]
            cells = cells if self.probabilities is None else [self.predictions[i], *cells]
            if self.sets is not None and self.probabilities is not None:
                cells.append(None if i in self.problems else ", ".join(self.sets[i]) or EMPTY_SET)
            elif self.sets is not None:
                cells += [None if np.isnan(n) else float(f"{n:.6g}") for n in self.sets[i]]
            kept = [values[i] for values in self.columns.values()]
            found.append([self.rows[i], *kept, *cells, *([self.problems.get(i)] if self.problems else [])])
        return found

    def to_csv(self) -> str:
        """A CSV file with a header; missing values are empty."""
        return csv_text([self.header(), *self.table()])

    def to_pandas(self) -> Any:
        """A data frame of `table`, with the names of the rows as its index."""
        pandas = import_extra("pandas", "to_pandas()", "report")
        return pandas.DataFrame(self.table(), columns=self.header()).set_index("row")


@dataclass(frozen=True, kw_only=True, eq=False)
class Predictor:
    """A trained model that predicts on new data; `ft.load` returns it.

    New data is prepared as in training. For a model of a table it is a path, a data frame or a row of it, an Arrow
    table or a dictionary of columns: gaps become the median, and categories that training rows did not have count as
    other. For images it is the path of an image or a folder, or an array (N, channels, height, width) with pixels in
    0..255 (uint8) or in [0, 1]; for other samples, an array as in training.
    """

    source: str
    class_names: tuple[str, ...]  # of the outputs; empty: it predicts numbers
    input_shape: Any  # of a sample
    schema: Schema | None = field(repr=False)  # of a table
    image: bool
    threshold: Threshold | None  # on the probability of a class; None: the most probable class is predicted
    scores: ConformityScores | None = field(repr=False)  # on validation data, for prediction sets
    module: nn.Module | None = field(repr=False)  # None: an ONNX file
    metadata: Mapping[str, str] = field(repr=False)
    _outputs: Callable[[Inputs], Tensor] = field(repr=False)

    def predict(self, data: Any) -> np.ndarray:
        """The predicted class of each row, by name, or the predicted number in the unit of the target.

        A row that cannot be used is None, or NaN, and a warning names it.
        """
        return self._warned(self.rows(data)).predictions

    def predict_proba(self, data: Any) -> np.ndarray:
        """The probabilities of the classes, (N, K) float64, in the order of `class_names`; NaN for unusable rows."""
        if not self.class_names:
            raise InputError(f"{self.source} predicts numbers, which have no probabilities; use predict")
        found = self._warned(self.rows(data)).probabilities
        assert found is not None
        return found

    def predict_sets(self, data: Any, coverage: float = 0.9) -> np.ndarray:
        """The classes that contain the true one with this probability, as a tuple of names for each row; may be empty.

        Of numbers, the two ends of an interval, (N, 2). An unusable row has None, or NaN.
        """
        found = self._warned(self.rows(data, coverage=coverage)).sets
        assert found is not None
        return found

    def rows(self, data: Any, keep: Sequence[str] = (), coverage: float | None = None) -> PredictedRows:
        """Predictions with the names of their rows, and why some rows cannot be used.

        Args:
            data: new data, see the class
            keep: columns of a table to copy; its identifiers are copied anyway
            coverage: with prediction sets that contain the truth with this probability; None: without
        """
        rule = None if coverage is None else self._set_rule(coverage)
        x, names, problems, columns = self._prepare(data, keep)
        outputs = self._run(x)
        for i in (~outputs.isfinite().all(1)).nonzero()[:, 0].tolist():
            problems.setdefault(i, "the model's output is NaN or infinite; check the values")
        problems = dict(sorted(problems.items()))
        outputs[list(problems)] = torch.nan
        probabilities, predictions = None, outputs[:, 0].numpy()
        if self.class_names:
            found = outputs.softmax(1)
            probabilities = found.numpy()
            chosen = found.argmax(1) if self.threshold is None else self.threshold.classes(found, self.class_names)
            predictions = np.array(self.class_names, object)[chosen.numpy()]
            predictions[list(problems)] = None
        sets = None if rule is None else self._sets(rule.bin, predictions, probabilities)
        return PredictedRows(names, predictions, probabilities, self.class_names, problems, columns, sets)

    def _set_rule(self, coverage: float) -> SetRule:
        if self.scores is None:
            raise InputError(
                f"{self.source} has no scores of validation data for prediction sets; train with clients.validation = "
                "0.2, and use the model of a client (--client), or a shared model that clients use as it is"
            )
        return self.scores.rule(0, coverage)

    def _sets(self, bin: int, predictions: np.ndarray, probabilities: np.ndarray | None) -> np.ndarray:
        if probabilities is None:
            assert self.scores is not None
            assert self.scores.deviation is not None
            return predictions[:, None] + np.array([-1, 1]) * half_width(bin, self.scores.deviation)
        inside = (class_bins(torch.from_numpy(probabilities)) <= bin).numpy() & ~np.isnan(probabilities)
        found = np.empty(len(inside), object)
        found[:] = [tuple(name for name, is_in in zip(self.class_names, row, strict=True) if is_in) for row in inside]
        found[np.isnan(probabilities).any(1)] = None
        return found

    def with_threshold(self, threshold: Threshold | str) -> "Predictor":
        """The same model with another threshold, such as "ill=0.3"."""
        chosen = Threshold.from_text(threshold) if isinstance(threshold, str) else threshold
        if not self.class_names:
            raise InputError(f"{self.source} predicts numbers, which have no threshold; remove it")
        chosen.check(self.class_names)
        return replace(self, threshold=chosen)

    def _warned(self, found: PredictedRows) -> PredictedRows:
        if found.problems:
            named = first_names([f"{found.rows[i]} ({reason})" for i, reason in found.problems.items()], 5)
            rows = f"{len(found.problems)} of {len(found.rows)} rows cannot be used, and have no prediction"
            warnings.warn(InputWarning(f"{rows}: {named}"), stacklevel=3)
        return found

    def _run(self, x: Inputs) -> Tensor:
        """The outputs for all rows, (N, K) float64, without gradients."""
        count, width = sample_count(x), max(1, len(self.class_names))
        if isinstance(x, Tensor) and not x.is_floating_point() and self._takes_numbers():
            x = x.float()
        with torch.no_grad():
            try:
                parts = [self._outputs(take(x, slice(i, i + _BATCH))).double() for i in range(0, count, _BATCH)]
            except _MISFITS as error:
                raise InputError(
                    f"the model of {self.source} does not take these samples ({error}); give them as in training"
                ) from error
            found = torch.cat(parts)[:, :width] if parts else torch.zeros(0, width, dtype=torch.float64)
            return found.clone()

    def _takes_numbers(self) -> bool:
        """Whether the model takes float32, and not tokens alone."""
        try:
            with torch.no_grad():
                self._outputs(torch.zeros(1, *self.input_shape))
        except _MISFITS:
            return False
        return True

    def _prepare(
        self, data: Any, keep: Sequence[str]
    ) -> tuple[Inputs, Sequence[str], dict[int, str], dict[str, Sequence[object]]]:
        """The model's input, the names of the rows, the problems of some, and columns to copy."""
        if self.schema is not None:
            return _table_rows(data, self.schema, keep)
        if keep:
            raise InputError(f"column {keep[0]!r} cannot be kept: {self.source} was not trained on a table")
        x, names, problems = _read_samples(data, self.input_shape, self.image)
        if sample_shape(x) != self.input_shape:
            raise InputError(
                f"samples have the shape {sample_shape(x)}, and {self.source} takes {self.input_shape}; the first "
                "dimension of an array is the samples"
            )
        return x, names or [f"sample {i}" for i in range(sample_count(x))], problems, {}


def load(
    path: str | os.PathLike[str],
    *,
    method: str | None = None,
    client: int | str | None = None,
    seed: int | None = None,
    round: int | None = None,
    model: ModelSource | str | None = None,
) -> Predictor:
    """Load a trained model that predicts on new data.

    Args:
        path: a safetensors or ONNX file of `fedtilt export`; or a run folder, or a site's folder
        method: of a run folder: the method; default: the only one
        client: of a run folder: number or name of the client whose model it is; default: the shared model
        seed: of a run folder: the seed; default: the first
        round: of a run folder: the round of a checkpoint; default: the last
        model: your own model if the file cannot name it: a module, a function that returns one, or the name of a
            function, such as "mymodels:net"
    """
    path = Path(path)
    if path.is_dir():
        export = export_model(path, method, client, seed, round=round)
        _check_task(export.metadata, path)
        net = build_exported(export.tensors, export.metadata, path, model, trusted=True)
        return _predictor(str(path), export.metadata, lambda x: logits(net, x), net)
    if not path.exists():
        raise InputError(f"{path} does not exist; check the path")
    for key, value in (("method", method), ("client", client), ("seed", seed), ("round", round)):
        if value is not None:
            raise InputError(f"{key} = {value!r} has no effect: {path} has one model; leave it out")
    if path.suffix == ".onnx":
        if model is not None:
            raise InputError(f"model has no effect: {path} contains its model; leave it out")
        outputs, metadata = read_onnx(path)
        _check_task(metadata, path)
        return _predictor(str(path), metadata, lambda x: outputs(x), None)  # type: ignore[arg-type]
    metadata = read_metadata(path)
    _check_task(metadata, path)
    net = build_exported(read_tensors(path), metadata, path, model)
    return _predictor(str(path), metadata, lambda x: logits(net, x), net)


def _check_task(metadata: Mapping[str, str], path: Path) -> None:
    if "task" in metadata:
        remedy = "ft.models.load returns the module of a safetensors file, and ONNX Runtime runs an ONNX file"
        raise InputError(
            f"{path} predicts tokens or several labels, and ft.load reads models of classes and numbers; {remedy}"
        )


def _predictor(
    source: str, metadata: Mapping[str, str], outputs: Callable[[Inputs], Tensor], module: nn.Module | None
) -> Predictor:
    with interpreting(Path(source)):
        keys = ("classes", "schema", "threshold", "scores", "target")
        values = {key: json.loads(metadata[key]) for key in keys if key in metadata}
        deviation = values["target"]["deviation"] if "target" in values else None
        return Predictor(
            source=source,
            class_names=() if "target" in metadata else tuple(values["classes"]),
            input_shape=exported_shape(metadata),
            schema=Schema.from_json(values["schema"]) if "schema" in values else None,
            image="mean" in metadata,
            threshold=Threshold.from_json(values["threshold"]) if "threshold" in values else None,
            scores=ConformityScores.from_json(values["scores"], deviation) if "scores" in values else None,
            module=module,
            metadata=metadata,
            _outputs=outputs,
        )


# -- new data ----------------------------------------------------------------------------------------------------------


def _table_rows(
    data: Any, schema: Schema, keep: Sequence[str]
) -> tuple[Inputs, Sequence[str], dict[int, str], dict[str, Sequence[object]]]:
    from fedtilt.data.tables.table import new_rows  # Arrow is for tables alone

    found = new_rows(_columns(data) if isinstance(data, Mapping) else data, schema)
    header = found.reader.header
    if empty := sum(len(part.empty) for part in found.reader.rows.parts if isinstance(part, FileRows)):
        rows = "an empty row, which is" if empty == 1 else f"{empty:,} empty rows, which are"
        warnings.warn(InputWarning(f"{found.reader.name} has {rows} skipped"), stacklevel=5)
    for name in keep:
        if name not in header:
            raise InputError(f"there is no column {name!r} to keep; the columns are {first_names(header, 20)}")
    identifiers = [c.name for c in schema.columns if c.kind == "identifier" and c.name in header]
    copied = [name for name in header if name in (*identifiers, *keep)]
    return found.x, found.reader.rows, found.problems, {name: found.reader.read(name).to_pylist() for name in copied}


def _columns(data: Mapping[str, Any]) -> Any:
    """A dictionary of columns, or of the cells of one row, as an Arrow table."""
    import pyarrow as pa

    is_row = all(isinstance(cell, str | int | float | bool | None) or np.ndim(cell) == 0 for cell in data.values())
    columns = {}
    for name, cells in data.items():
        values = [cells] if is_row else list(cells)
        try:
            columns[str(name)] = pa.array(values, from_pandas=True)
        except pa.ArrowException:  # cells of several types
            columns[str(name)] = pa.array([None if cell is None else str(cell) for cell in values])
    if len({len(column) for column in columns.values()}) > 1:
        lengths = ", ".join(f"{name} ({len(column)})" for name, column in columns.items())
        raise InputError(f"the columns have different lengths: {lengths}; give one cell per row")
    return pa.table(columns)


def _read_samples(data: Any, shape: Any, image: bool) -> tuple[Inputs, Sequence[str] | None, dict[int, str]]:
    """Samples as a model takes them, their names if they have any, and the problems of some."""
    names: Sequence[str] | None = None
    problems: dict[int, str] = {}
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        data, names, problems = _read_images(path, shape) if image and path.suffix != ".npy" else _read_array(path)
    x = to_inputs(data, "the new data")
    if len(lengths := {len(tensor) for tensor in named_tensors(x, "x").values()}) > 1:
        raise InputError(f"the inputs have {' and '.join(map(str, sorted(lengths)))} samples; give as many of each")
    if not image or isinstance(x, dict):
        return x, names, problems
    x = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    if x.numel() and not 0 <= float(x.min()) <= float(x.max()) <= 1:
        raise InputError("pixels must be uint8, or floats in [0, 1], as in training; divide them by 255")
    return x * 2 - 1, names, problems


def _read_array(path: Path) -> tuple[np.ndarray, None, dict[int, str]]:
    """The array in a .npy file."""
    if path.suffix != ".npy":
        raise InputError(f"{path} is no .npy file, and this model takes arrays; save the samples with numpy.save")
    with reading(path), interpreting(path):
        return np.load(path, allow_pickle=False), None, {}


def _read_images(path: Path, shape: tuple[int, int, int]) -> tuple[np.ndarray, list[str], dict[int, str]]:
    """One image, or the images of a folder, in the size and with the channels of the model."""
    from fedtilt.data.sources.image_cache import decode_image
    from fedtilt.data.sources.images import SUFFIXES

    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
    if not files or not path.exists():
        raise InputError(f"{path} has no images ({', '.join(SUFFIXES)}); check the path")
    pixels, problems = np.zeros((len(files), *shape), np.uint8), {}
    for i, file in enumerate(files):
        try:
            pixels[i] = decode_image(file, shape[1:], shape[0])
        except InputError as error:
            problems[i] = str(error)
    return pixels, [str(file.relative_to(path)) if path.is_dir() else file.name for file in files], problems
