"""A classifier with the interface of scikit-learn: one table of all clients in, one model per client inside."""

import os
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

import numpy as np
import pyarrow as pa
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import nn

from fedtilt.data import Federation
from fedtilt.data.tables.reader import open_reader
from fedtilt.data.tables.schema import Schema
from fedtilt.data.tables.table import table, transform
from fedtilt.data.tables.values import read_names
from fedtilt.errors import InputError
from fedtilt.methods import PRESETS, Method, fedtilt
from fedtilt.models import ModelSource, logits, mlp
from fedtilt.runs.run import run

_TARGET, _SPLIT = "fedtilt target", "fedtilt split"  # columns that are added to the user's


class FairClassifier(ClassifierMixin, BaseEstimator):
    """Trains a federation on one table, and predicts every row with the model of its client.

    It takes part in pipelines, cross-validation and grid searches of scikit-learn. All rows are training data: measure
    it on others, as with any estimator.

    Args:
        method: the method: an object such as `ft.ditto(0.1)`, or the name of a preset; "fedtilt" is FedTilt with
            tau = 2, lam = 0 and mu = 1, which raises the worst class of every client
        client: the column of the clients in a data frame, for arrays its number; default: all rows are of one client
        model: a function of `input_shape` and `classes` that returns a module; default: `ft.models.mlp`
            with 32 hidden units
        rounds: how many rounds
        epochs: passes of a client over its data in a round
        batch_size: samples per step
        lr: learning rate
        settings: further training settings of `ft.run`, such as {"optimizer": "adam"}
        random_state: the seed

    Attributes:
        classes_: the labels
        result_: the `ft.Result` of the run, whose metrics are of the training rows; a copy in another process has none
    """

    def __init__(
        self,
        method: Method | str = "fedtilt",
        *,
        client: str | int | None = None,
        model: ModelSource | None = None,
        rounds: int = 30,
        epochs: int = 2,
        batch_size: int = 16,
        lr: float = 0.1,
        settings: Mapping[str, Any] | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.method, self.client, self.model = method, client, model
        self.rounds, self.epochs, self.batch_size, self.lr = rounds, epochs, batch_size, lr
        self.settings, self.random_state = settings, random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the rows of all clients.

        Args:
            X: a data frame, with gaps, categories and dates as in `ft.data.table`, or an array of numbers
            y: the labels
        """
        if y is None:  # in the words of scikit-learn, which its checks look for
            raise InputError("FairClassifier requires y to be passed, but the target y is None; give the labels")
        columns, labels = self._columns(X, y)
        client = self._client_column(columns)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        names = [str(label).strip() for label in self.classes_]  # in exports
        if "" in names or len(set(names)) < len(names):
            shown = ", ".join(map(repr, self.classes_.tolist()))
            raise InputError(f"the labels {shown} are empty or differ only in blanks; give each class a name")
        rows = pa.table({**columns, _TARGET: pa.array(np.array(names, object)[codes])})
        sides = pa.array(
            ["train"] * len(rows) + ["test"] * len(rows)
        )  # a federation has test data: here, all rows again
        data = table(
            pa.concat_tables([rows, rows]).append_column(_SPLIT, sides),
            target=_TARGET,
            client=client,
            split_column=_SPLIT,
        )
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            clients, partition = (None, None) if client else (1, "iid")
            federation = Federation.build(data, clients=clients, partition=partition)
        for warning in found:
            if "test" not in str(warning.message):  # the test rows are no finding
                warnings.warn(warning.message, stacklevel=2)
        fixed: dict[str, Any] = {key: getattr(self, key) for key in ("rounds", "epochs", "batch_size", "lr")}
        fixed |= {"seed": self.random_state or 0, "eval_every": self.rounds, "progress": False}
        further = {"participation": 1.0, "workers": 0, **(self.settings or {})}
        if both := fixed.keys() & further:
            raise InputError(f"settings has {min(both)!r}, which FairClassifier sets itself; use its arguments")
        self.result_ = run([self._method()], federation, self.model or partial(mlp, hidden=(32,)), **fixed, **further)
        ((_, trained),) = self.result_.items()
        assert data.schema is not None
        self._schema: Schema = data.schema
        self._outputs = [data.class_names.index(name) for name in names]  # of `classes_`, which may be sorted otherwise
        self._shared: nn.Module = trained.shared.eval()
        own = [name for name in trained.client_names if client and trained.has_own_model(name)]
        self._own = {name: trained.model(name).eval() for name in own}
        self.n_iter_ = trained.history[-1][0]
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of `classes_`, (rows, classes): of a row's own client, or of the shared model."""
        check_is_fitted(self)
        columns, _ = self._columns(X)
        x = transform(pa.table(columns), like=self._schema)
        found = np.empty((len(x), len(self.classes_)))
        numbers, names = np.full(len(x), -1), tuple[str, ...]()
        if (client := self._client_column(columns)) is not None:
            numbers, names = read_names(open_reader(pa.table(columns)), client, gaps=True)  # -1: no client
        with torch.no_grad():
            for number in np.unique(numbers):
                rows = np.flatnonzero(numbers == number)
                own = None if number < 0 else self._own.get(names[number])
                outputs = logits(own or self._shared, x[rows])
                found[rows] = outputs[:, self._outputs].double().softmax(1).numpy()
        return found

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row."""
        chosen = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[chosen])

    def export(self, path: str | os.PathLike[str], client: int | str | None = None, *, force: bool = False) -> None:
        """Write the model of a client, or the shared one: see `Result.export`."""
        check_is_fitted(self)
        self.result_.export(path, client=client, force=force)

    def __getstate__(self) -> dict[str, Any]:
        """Without the result, which has the data."""
        return {key: value for key, value in super().__getstate__().items() if key != "result_"}

    def _method(self) -> Method:
        if isinstance(self.method, Method):
            return self.method
        if self.method == "fedtilt":
            return fedtilt(tau=2, lam=0, mu=1)
        if not isinstance(self.method, str) or self.method not in PRESETS:
            raise InputError(f"method = {self.method!r} is unknown; choose one of {', '.join(PRESETS)}, or an object")
        return PRESETS[self.method]()

    def _client_column(self, columns: Mapping[str, Any]) -> str | None:
        if self.client is None:
            return None
        name = str(self.client)
        if isinstance(self.client, int) and name not in columns:
            name = f"x{name}"  # of an array
        if name not in columns:
            raise InputError(f"client = {self.client!r} is no column; the columns are {', '.join(columns)}")
        return name

    def _columns(self, X: Any, y: Any = None) -> tuple[dict[str, pa.ChunkedArray], np.ndarray]:
        """The columns by name, checked as scikit-learn checks them, and the labels."""
        is_new = y is not None
        labels = column_or_1d(y, warn=True) if is_new else np.empty(0)
        if hasattr(X, "columns") or hasattr(X, "__arrow_c_stream__"):
            validate_data(self, X, reset=is_new, skip_check_array=True)
            reader = open_reader(X)
            columns = {name: reader.read(name) for name in reader.header}
            if is_new and len(reader) != len(labels):
                raise InputError(f"X has {len(reader)} rows and y has {len(labels)}; give one label per row")
            _check_labels(labels)
            return columns, labels
        try:
            checked = validate_data(self, X, y, reset=is_new) if is_new else validate_data(self, X, reset=False)
        except ValueError as error:
            if "convert string" not in str(error):
                raise
            remedy = "give text in a data frame; transformers return one after set_output(transform='pandas')"
            raise InputError(f"{error}: an array has numbers only; {remedy}") from None
        array, labels = checked if is_new else (checked, labels)
        return {f"x{i}": pa.chunked_array([pa.array(array[:, i])]) for i in range(array.shape[1])}, labels


def _check_labels(labels: np.ndarray) -> None:
    """Raise InputError for missing labels: None, NaN and pandas.NA."""
    others = [str(label) if not isinstance(label, str) else "" for label in labels.tolist()]
    missing = np.flatnonzero(np.isin(others, ("None", "nan", "NaT", "<NA>")))
    if len(missing):
        rows = f"{len(missing)} of {len(labels)} rows, the first row {missing[0]}"
        raise InputError(f"y has no label in {rows}; drop these rows from X and y")
