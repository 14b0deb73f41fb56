"""The keys of a spec: the type, limits, default and meaning of each.

Error messages, the annotated spec of `fedtilt init` and docs/spec.md are all written from these fields.
"""

import re
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fedtilt.checks import OnlyWith, check_used, is_plain_name
from fedtilt.data import Outliers
from fedtilt.data.division import PARTITIONS
from fedtilt.data.groups import CLASS, combined_names
from fedtilt.data.outliers import FLIP_TARGETS, KINDS, REDRAWS
from fedtilt.data.targets import RANGE, TASKS
from fedtilt.errors import InputError, NoEffect
from fedtilt.imports import is_function_path
from fedtilt.methods import check_levels
from fedtilt.models import MODELS
from fedtilt.rounds.settings import TrainSettings
from fedtilt.spec.data_fields import DataSpec
from fedtilt.spec.method import MethodSpec
from fedtilt.spec.setting_tables import TRAIN_KEYS, AttackSpec, PrivacySpec, TrainSpec
from fedtilt.spec.table import PositiveInt, SpecTable, allowed_text, one_of


def _check_device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+|:all)?", value):
        raise ValueError("not a device")
    return value


def _check_name(value: str) -> str:
    if not is_plain_name(value):
        raise ValueError("not a plain name")
    return value


class ClientsSpec(SpecTable):
    """`[clients]`."""

    count: int = Field(
        default=100, ge=1, description='the number of clients; with partition "column" the data has its own'
    )
    partition: Annotated[str, one_of(PARTITIONS)] | None = Field(
        default=None,
        description='how the data is divided among clients; left out: "column" if it has clients of its own, else '
        '"classes"',
        examples=["dirichlet"],
    )
    classes_per_client: int = Field(
        default=2, ge=1, description='the number of classes of each client, with partition "classes"'
    )
    alpha: float = Field(
        default=0.5,
        gt=0,
        allow_inf_nan=False,
        description='how equal the clients are, with partition "dirichlet"; small is unequal',
    )
    max_train: int | None = Field(
        default=None,
        ge=1,
        description="the most training samples per client; left out: all",
        examples=[600],
    )
    validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="the share of training data used for validation",
    )
    validation_outliers: bool = Field(
        default=False,
        description="whether validation data has outliers too, as in practice; otherwise it is clean",
        json_schema_extra=allowed_text("true or false"),
    )


def _names_as_text(pairs: object) -> object:
    """A class may be called 5."""
    if not isinstance(pairs, dict):
        return pairs
    return {key: str(name) if type(name) is int else name for key, name in pairs.items()}


class OutliersSpec(SpecTable):
    """`[outliers]`."""

    kind: Annotated[str, one_of(KINDS)] = Field(default="none", description="how training data is corrupted")
    rate: float = Field(
        default=0.3, ge=0, le=1, allow_inf_nan=False, description="the share of a client's samples that are outliers"
    )
    strength: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="the share of pixels (corruptions) or the standard deviation (gaussian); left out: 0.3 or 1",
        examples=[0.5],
    )
    clients: float = Field(
        default=1.0, ge=0, le=1, allow_inf_nan=False, description="the share of clients that have outliers"
    )
    redraw: Annotated[str, one_of(REDRAWS)] = Field(
        default="round",
        description="when outliers are drawn: anew in every round, or once, as mislabelled data is in practice",
    )
    flip_to: Annotated[str, one_of(FLIP_TARGETS)] | None = Field(
        default=None,
        description="the class that a label flips to: another of the client, any other, the one with the nearest mean "
        'of the training samples, or as in pairs; left out: "pairs" if these are given, else "client"',
        examples=["any"],
    )
    pairs: Annotated[dict[str, str], BeforeValidator(_names_as_text)] = Field(
        default={},
        description="the class that each class flips to; classes without a pair do not flip; it may be a table "
        "[outliers.pairs] too",
        json_schema_extra=allowed_text('a table of class names, such as {3 = "5"}'),
    )

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        self.to_outliers()
        return self

    def to_outliers(self) -> Outliers:
        """The outliers that `Federation.build` takes."""
        try:
            settings = {key: getattr(self, key) for key in type(self).model_fields}
            return Outliers(**settings | {"pairs": self.pairs or None})
        except NoEffect as error:
            raise NoEffect(_spec_words(error), key=f"outliers.{error.key}") from None
        except InputError as error:
            raise InputError(_spec_words(error)) from None


def _spec_words(error: InputError) -> str:
    """A message about outliers with the keys of a spec."""
    return str(error).replace("outlier_", "outliers.").replace("set outliers =", "set outliers.kind =")


def _check_model_name(name: str) -> str:
    if name not in MODELS and not is_function_path(name):
        raise ValueError("neither a built-in model nor a function")
    return name


def _check_arguments(value: Any) -> Any:
    """Values that a spec can hold: numbers, text, true and false, lists and tables of them."""
    if not isinstance(value, bool | int | float | str | list | dict):
        raise ValueError("not an argument")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_arguments(part)
    return value


class ModelSpec(SpecTable):
    """`[model]`."""

    name: Annotated[str, AfterValidator(_check_model_name)] = Field(
        default="mlp",
        description="the model every client trains; your own is a function, found from the current folder, that "
        "returns an nn.Module and may take input_shape and classes",
        json_schema_extra=allowed_text(f"one of {', '.join(MODELS)}, or package.module:function"),
    )
    arguments: Annotated[dict[str, Any], AfterValidator(_check_arguments)] = Field(
        default={},
        description="further arguments of your own function; it may be a table [model.arguments] too",
        json_schema_extra=allowed_text("a table, such as {width = 64}"),
    )
    hidden: tuple[PositiveInt, ...] = Field(
        default=(200, 200),
        strict=False,
        description="the sizes of the hidden layers of mlp",
        json_schema_extra=allowed_text("a list of whole numbers ≥ 1"),
    )
    channels: tuple[PositiveInt, ...] = Field(
        default=(32, 64, 128),
        strict=False,
        min_length=1,
        description="the channels of the convolution blocks of cnn",
        json_schema_extra=allowed_text("a list of one or more whole numbers ≥ 1"),
    )

    @model_validator(mode="after")
    def _check_own(self) -> Self:
        if self.arguments and self.name in MODELS:
            raise InputError(
                f"model.arguments = {self.arguments} are for a function of your own, and model.name is {self.name!r}; "
                "leave them out"
            )
        return self


_ONLY_WITH: OnlyWith = {
    "data.name": {"data.file": (None,), "data.images": (None,), "data.leaf": (None,)},
    "clients.classes_per_client": {"clients.partition": ("classes", None)},  # with None, it depends on the data
    "clients.alpha": {"clients.partition": ("dirichlet",)},
    "clients.validation_outliers": {"outliers.kind": KINDS[1:]},  # a search draws validation data itself
    "model.hidden": {"model.name": ("mlp",)},
    "model.channels": {"model.name": ("cnn",)},
}


class StorageSpec(SpecTable):
    """`[storage]`."""

    checkpoint_seconds: float = Field(
        default=10.0,
        ge=0,
        allow_inf_nan=False,
        description="the shortest time between two checkpoints, in seconds; 0: after every round",
    )
    memory_limit_mb: int = Field(
        default=2048, ge=0, description="the memory for personal models, in megabytes; the rest is stored on disk"
    )


class Spec(SpecTable):
    """A spec: federation, model, training and the methods to compare."""

    name: Annotated[str, AfterValidator(_check_name)] = Field(
        description="the name of the run", json_schema_extra=allowed_text("a plain name without slashes")
    )
    seed: int = Field(default=0, ge=0, description="the first seed; all random numbers depend on it")
    seeds: int = Field(
        default=1, ge=1, description="the number of seeds, counted up from the first; results are mean ± std"
    )
    task: Annotated[str, one_of(TASKS)] = Field(
        default="classification",
        description="what the target of data.file is: a class, or a number (regression); scores are then MAE and RMSE",
    )
    device: Annotated[str, AfterValidator(_check_device)] = Field(
        default="auto",
        description="the device to train on; auto: CUDA if available; cuda:all: all GPUs of this machine",
        json_schema_extra=allowed_text("auto, cpu, cuda, cuda:N or cuda:all"),
    )
    data: DataSpec = Field(default=DataSpec(), description="the data set")
    clients: ClientsSpec = Field(default=ClientsSpec(), description="how the data is divided among clients")
    outliers: OutliersSpec = Field(
        default=OutliersSpec(), description="outliers in the training data, not in the test data"
    )
    model: ModelSpec = Field(default=ModelSpec(), description="the model")
    train: TrainSpec = Field(default=TrainSpec(), description="the training settings, the same for every method")
    privacy: PrivacySpec = Field(
        default=PrivacySpec(), description="client-level differential privacy of the shared model; without keys: none"
    )
    attack: AttackSpec = Field(
        default=AttackSpec(), description="clients that work against the others, in a simulation; without keys: none"
    )
    storage: StorageSpec = Field(default=StorageSpec(), description="checkpoints and memory; does not change results")
    methods: tuple[MethodSpec, ...] = Field(
        default=(),
        strict=False,
        description="the methods to compare on the same federation, a [[methods]] table each",
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if not self.methods:
            raise InputError('methods is empty; add [[methods]] with preset = "fedavg" to the spec, or --method fedavg')
        if self.data.client is not None and self.clients.partition not in (None, "column"):
            raise InputError(
                f"data.client = {self.data.client!r} is ignored when clients.partition = "
                f"{self.clients.partition!r}; leave clients.partition out, or add the column to data.drop"
            )
        self._check_used()
        settings = TrainSettings(
            **{key: getattr(self.train, key) for key in TRAIN_KEYS},
            privacy=self.privacy.to_privacy(),
            attack=self.attack.to_attack(),
        )
        settings.for_task(self.task)
        if self.task == "regression":
            self._check_regression()
        methods = settings.check_methods(m.to_method() for m in self.methods)
        if self.data.schema is None:  # otherwise it may name groups too
            label_group = RANGE if self.task == "regression" else CLASS
            check_levels(methods, combined_names(self.data.group_columns), label_group)
        return self

    def _check_used(self) -> None:
        """Refuse a key that has no effect beside the others; tables of settings have checks of their own."""
        keys = [(name, key) for name, table in TABLES.items() for key in table.model_fields]
        values = {f"{name}.{key}": getattr(getattr(self, name), key) for name, key in keys}
        defaults = {f"{name}.{key}": TABLES[name].model_fields[key].default for name, key in keys}
        check_used(values, defaults, _ONLY_WITH)

    def _check_regression(self) -> None:
        """Refuse what needs classes."""
        if self.data.file is None:
            raise InputError("task = 'regression' needs data.file; other data sets have classes")
        if self.outliers.kind == "flips":
            raise InputError("outliers.kind = 'flips' changes classes, and task = 'regression' has none; use gaussian")
        for key in ("exclude", "relabel"):
            if getattr(self.data, key) is not None:
                raise InputError(f"data.{key} corrects labels, and task = 'regression' has numbers; leave it out")
        if self.train.audit:
            raise InputError("train.audit finds wrong labels, and task = 'regression' has numbers; leave it out")


TABLES: dict[str, type[SpecTable]] = {
    key: field.annotation
    for key, field in Spec.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, SpecTable)
}
