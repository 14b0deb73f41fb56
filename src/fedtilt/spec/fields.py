"""The keys of a spec: type, limits, default and meaning of each, written once.

The sentences about bad values, the annotated spec of `fedtilt init` and docs/spec.md are all made from these fields.
"""

import dataclasses
import re
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args, get_type_hints

from pydantic import AfterValidator, Field, create_model, model_validator

from fedtilt.checks import plain_name
from fedtilt.data import Outliers, names
from fedtilt.data.federation import PARTITIONS
from fedtilt.data.outliers import KINDS
from fedtilt.errors import InputError
from fedtilt.methods import check_methods
from fedtilt.models import MODELS
from fedtilt.rounds.settings import TrainSettings
from fedtilt.spec.method import MethodSpec
from fedtilt.spec.table import Table, one_of, says

Positive = Annotated[int, Field(ge=1)]


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError("not a device")
    return value


def _plain(value: str) -> str:
    if not plain_name(value):
        raise ValueError("not a plain name")
    return value


class DataSpec(Table):
    """`[data]`."""

    name: Annotated[str, one_of(names())] = Field(default="digits", description="the data set if no file")
    file: str | None = Field(
        default=None,
        description="your own table, relative to the spec; other columns are features, which are standardised",
        examples=["patients.csv"],
        json_schema_extra=says("a CSV, TSV or Parquet file"),
    )
    target: str | None = Field(
        default=None,
        description="the column of the labels; needed with file",
        examples=["diagnosis"],
        json_schema_extra=says("a column of file"),
    )
    client: str | None = Field(
        default=None,
        description='the column that says whose row it is; needs clients.partition = "column"',
        examples=["hospital"],
        json_schema_extra=says("a column of file"),
    )
    drop: tuple[str, ...] = Field(
        default=(),
        strict=False,
        description="the columns to leave out",
        json_schema_extra=says('a list of columns of file, such as ["id"]'),
    )
    test_share: float = Field(
        default=0.25, gt=0, lt=1, allow_inf_nan=False, description="the share of file kept for testing"
    )
    folder: str = Field(
        default="",
        description="where downloaded data sets lie; empty: FEDTILT_DATA, else the cache",
        json_schema_extra=says("a folder"),
    )

    @model_validator(mode="after")
    def _file_and_columns(self) -> Self:
        if self.file is not None and self.target is None:
            raise InputError(f"data.file = {self.file!r} needs data.target; name the column of the labels")
        for key in ("target", "client", "drop"):
            value = getattr(self, key)
            if self.file is None and value not in (None, ()):
                raise InputError(f"data.{key} = {value!r} needs data.file; name the table it is in")
        return self


class ClientsSpec(Table):
    """`[clients]`."""

    count: int = Field(default=100, ge=1, description='how many clients; "column" finds its own number')
    partition: Annotated[str, one_of(PARTITIONS)] = Field(
        default="classes", description="how the data is divided among them"
    )
    classes_per_client: int = Field(default=2, ge=1, description='how many classes each client holds, with "classes"')
    alpha: float = Field(
        default=0.5,
        gt=0,
        allow_inf_nan=False,
        description='how even the classes are, with "dirichlet"; small is uneven',
    )
    max_train: int | None = Field(
        default=None, ge=1, description="at most so many training samples per client; left out: all", examples=[600]
    )
    validation: float = Field(
        default=0.0, ge=0, lt=1, allow_inf_nan=False, description="the share of the training data set aside for tuning"
    )


class OutliersSpec(Table):
    """`[outliers]`."""

    kind: Annotated[str, one_of(KINDS)] = Field(
        default="none", description="what spoils training data, afresh every round"
    )
    rate: float = Field(
        default=0.3, ge=0, le=1, allow_inf_nan=False, description="the share of a client's samples spoilt"
    )
    strength: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="the share of pixels of corruptions or the deviation of gaussian; left out: 0.3 or 1",
        examples=[0.5],
    )
    clients: float = Field(
        default=1.0, ge=0, le=1, allow_inf_nan=False, description="the share of clients that carry outliers"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.to_outliers()
        return self

    def to_outliers(self) -> Outliers:
        """What `Federation.build` takes as `outliers`."""
        try:
            return Outliers(kind=self.kind, rate=self.rate, strength=self.strength, clients=self.clients)
        except InputError as error:
            raise InputError(str(error).replace("outlier_", "outliers.")) from None


class ModelSpec(Table):
    """`[model]`."""

    name: Annotated[str, one_of(MODELS)] = Field(default="mlp", description="the model every client trains")
    hidden: tuple[Positive, ...] = Field(
        default=(200, 200),
        strict=False,
        description="the hidden layers' sizes; mlp only",
        json_schema_extra=says("a list of whole numbers ≥ 1"),
    )
    channels: tuple[Positive, ...] = Field(
        default=(32, 64, 128),
        strict=False,
        min_length=1,
        description="the convolution blocks' channels; cnn only",
        json_schema_extra=says("a list of one or more whole numbers ≥ 1"),
    )


def _train_field(setting: dataclasses.Field[Any]) -> tuple[Any, Any]:
    """A training setting as a key of a spec: its type with its limits, and its default and meaning."""
    m, kind = setting.metadata, get_type_hints(TrainSettings)[setting.name]
    examples = None if m["example"] is None else [m["example"]]
    limits: dict[str, Any] = m["limits"] | ({"allow_inf_nan": False} if float in {kind, *get_args(kind)} else {})
    field = Field(default=setting.default, description=m["meaning"], examples=examples, **limits)
    return (Annotated[kind, one_of(m["choices"])] if m["choices"] else kind), field


if TYPE_CHECKING:
    TrainSpec = TrainSettings  # the same names
else:
    TrainSpec = create_model(
        "TrainSpec",
        __base__=Table,
        __doc__="`[train]`: the settings of `TrainSettings`, without those that a spec has at its top.",
        **{s.name: _train_field(s) for s in dataclasses.fields(TrainSettings) if s.name not in ("seed", "device")},
    )


class StorageSpec(Table):
    """`[storage]`."""

    checkpoint_seconds: float = Field(
        default=10.0,
        ge=0,
        allow_inf_nan=False,
        description="at least so many seconds between checkpoints; 0: every round",
    )
    memory_limit_mb: int = Field(
        default=2048, ge=0, description="personal models beyond so many megabytes live on disk"
    )


class Spec(Table):
    """A run from one file: federation, model, training and the methods to compare."""

    name: Annotated[str, AfterValidator(_plain)] = Field(
        description="what the run is called", json_schema_extra=says("a plain name without slashes")
    )
    seed: int = Field(default=0, ge=0, description="the first seed; everything random follows from it")
    seeds: int = Field(
        default=1, ge=1, description="how many seeds to run, from the first one up; results are mean ± std"
    )
    device: Annotated[str, AfterValidator(_device)] = Field(
        default="auto",
        description="where to train; auto: cuda if there is one",
        json_schema_extra=says("auto, cpu, cuda or cuda:N"),
    )
    data: DataSpec = Field(default=DataSpec(), description="the data")
    clients: ClientsSpec = Field(default=ClientsSpec(), description="how the data is divided among clients")
    outliers: OutliersSpec = Field(default=OutliersSpec(), description="bad training data; test data stays clean")
    model: ModelSpec = Field(default=ModelSpec(), description="the model")
    train: TrainSpec = Field(default=TrainSpec(), description="the training, the same for every method")
    storage: StorageSpec = Field(default=StorageSpec(), description="checkpoints and memory; changes no result")
    methods: tuple[MethodSpec, ...] = Field(
        default=(),
        strict=False,
        description="the methods to compare, each a [[methods]] of its own, on the same federation",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.methods:
            raise InputError('methods is empty; add [[methods]] with preset = "fedavg" to the spec, or --method fedavg')
        if self.data.client is not None and self.clients.partition != "column":
            raise InputError(
                f"data.client = {self.data.client!r} is not heeded with clients.partition = "
                f'{self.clients.partition!r}; set clients.partition = "column", or put it into data.drop instead'
            )
        lr = self.train.lr
        check_methods([m.to_method() for m in self.methods], lr, self.train.lr_personal or lr)
        return self


TABLES: dict[str, type[Table]] = {
    key: field.annotation
    for key, field in Spec.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Table)
}
