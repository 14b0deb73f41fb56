"""The keys of a spec: the type, limits, default and meaning of each.

Error messages, the annotated spec of `fedtilt init`, docs/spec.md and the JSON schema are all written from these
fields; those of `[clients]`, `[outliers]`, `[train]`, `[privacy]` and `[attack]` are in `data`, `engine.settings`,
`privacy` and `attacks`.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from fedtilt.attacks.attack import Attack
from fedtilt.checks import is_plain_name
from fedtilt.config.setting_fields import (
    REQUIRED,
    check_used,
    default_of,
    setting,
    setting_of,
    settings_of,
    unmet,
)
from fedtilt.config.tables import table_of
from fedtilt.data import Division, Outliers
from fedtilt.data.groups import CLASS, combined_names
from fedtilt.data.targets import RANGE, TABLE_TASKS
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError, NoEffect
from fedtilt.imports import is_function_path
from fedtilt.methods import check_levels
from fedtilt.models import MODELS
from fedtilt.privacy.privacy import Privacy
from fedtilt.spec.data_fields import DataSpec
from fedtilt.spec.method import MethodSpec


def _is_argument(value: Any) -> bool:
    """Whether this is a number, text, true or false, or a list or table of them."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, bool | int | float | str | list | dict) and all(map(_is_argument, parts))


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """`[model]`."""

    name: str = setting(
        "mlp",
        "the model every client trains; your own is a function, found from the current folder, that returns an "
        "nn.Module and may take input_shape and classes",
        allowed=f"one of {', '.join(MODELS)}, or package.module:function",
        check=lambda name: name in MODELS or is_function_path(name),
    )
    arguments: dict[str, Any] = setting(
        {},
        "further arguments of your own function; it may be a table [model.arguments] too",
        allowed="a table, such as {width = 64}",
        check=_is_argument,
    )
    hidden: tuple[int, ...] = setting(
        (200, 200),
        "the sizes of the hidden layers of mlp",
        ge=1,
        allowed="a list of whole numbers ≥ 1",
        only_with={"name": ["mlp"]},
    )
    channels: tuple[int, ...] = setting(
        (32, 64, 128),
        "the channels of the convolution blocks of cnn",
        ge=1,
        allowed="a list of one or more whole numbers ≥ 1",
        only_with={"name": ["cnn"]},
        check=bool,
    )

    def __post_init__(self) -> None:
        if self.arguments and self.name in MODELS:
            raise InputError(
                f"model.arguments = {self.arguments} are for a function of your own, and model.name is {self.name!r}; "
                "leave them out"
            )

    @property
    def unused(self) -> tuple[str, ...]:
        """The keys without effect beside the others."""
        return ("arguments",) if self.name in MODELS else ()


@dataclass(frozen=True, kw_only=True)
class StorageSpec:
    """`[storage]`."""

    checkpoint_seconds: float = setting(
        10.0, "the shortest time between two checkpoints, in seconds; 0: after every round", ge=0
    )
    memory_limit_mb: int = setting(
        2048, "the memory for personal models, in megabytes; the rest is stored on disk", ge=0
    )


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A spec: federation, model, training and the methods to compare."""

    name: str = setting(
        REQUIRED,
        "the name of the run; default: the name of the file",
        allowed="a plain name without slashes",
        check=is_plain_name,
    )
    seed: int = setting_of(TrainSettings, "seed")
    seeds: int = setting(1, "the number of seeds, counted up from the first; results are mean ± std", ge=1)
    task: str = setting(
        "classification",
        "what the target of data.file is: a class, or a number (regression); scores are then MAE and RMSE",
        choices=TABLE_TASKS,
    )
    device: str = setting_of(TrainSettings, "device")
    data: DataSpec = setting(DataSpec(), "the data set")
    clients: Division = setting(Division(), "how the data is divided among clients")
    outliers: Outliers = setting(Outliers(), "outliers in the training data, not in the test data")
    model: ModelSpec = setting(ModelSpec(), "the model")
    train: TrainSettings = setting(TrainSettings(), "the training settings, the same for every method")
    privacy: Privacy | None = setting(None, "client-level differential privacy of the shared model; without keys: none")
    attack: Attack | None = setting(None, "clients that work against the others, in a simulation; without keys: none")
    storage: StorageSpec = setting(StorageSpec(), "checkpoints and memory; does not change results")
    methods: tuple[MethodSpec, ...] = setting(
        (), "the methods to compare on the same federation, a [[methods]] table each"
    )

    def __post_init__(self) -> None:
        if not self.methods:
            raise InputError('methods is empty; add [[methods]] with preset = "fedavg" to the spec, or --method fedavg')
        if self.data.client is not None and self.clients.partition not in (None, "column"):
            raise InputError(
                f"data.client = {self.data.client!r} is ignored when clients.partition = "
                f"{self.clients.partition!r}; leave clients.partition out, or add the column to data.drop"
            )
        self.check_used()
        settings = replace(self.train, privacy=self.privacy, attack=self.attack)
        settings.for_task(self.task)
        if self.task == "regression":
            self._check_regression()
        methods = settings.check_methods(m.to_method() for m in self.methods)
        if self.data.file is not None and self.data.schema is None:  # otherwise others may name groups too
            label_group = RANGE if self.task == "regression" else CLASS
            check_levels(methods, combined_names(self.data.group_columns), label_group)

    def table(self, name: str) -> dict[str, Any]:
        """The values of the keys of a table that have an effect; None of the others."""
        values, unused, found = self._values(), self._unused(), {}
        for key in settings_of(TABLES[name]):
            path = f"{name}.{key}"
            has_effect = path not in unused and unmet(path, values, _FIELDS) is None
            found[key] = values[path] if has_effect else None
        return found

    def check_used(self, given: Collection[str] = ()) -> None:
        """Raise NoEffect for a key without effect beside the others that is given, or is not the default."""
        values = self._values()
        check_used(values, _FIELDS, given=given)
        for key in given:
            if key in self._unused():
                raise NoEffect(f"{key} = {values[key]!r} has no effect here; leave it out", key=key)

    def _values(self) -> dict[str, Any]:
        """The values of all keys of tables; None of those that another key decides."""
        values = {}
        for name, keys in TABLES.items():
            table = getattr(self, name)
            decided = getattr(table, "defaulted", ())
            for key, field in settings_of(keys).items():
                value = default_of(field) if table is None else getattr(table, key)
                values[f"{name}.{key}"] = None if key in decided else value
        return values

    def _unused(self) -> set[str]:
        """The keys that their table says to have no effect; of a table that is not given, all of them."""
        found = set()
        for name, keys in TABLES.items():
            table = getattr(self, name)
            unused = settings_of(keys) if table is None else getattr(table, "unused", ())
            found |= {f"{name}.{key}" for key in unused}
        return found

    def _check_regression(self) -> None:
        """Raise InputError for what needs classes."""
        if self.data.file is None:
            raise InputError("task = 'regression' needs data.file; other data sets have classes")
        if self.outliers.kind == "flips":
            raise InputError("outliers.kind = 'flips' changes classes, and task = 'regression' has none; use gaussian")
        for key in ("exclude", "relabel"):
            if getattr(self.data, key) is not None:
                raise InputError(f"data.{key} corrects labels, and task = 'regression' has numbers; leave it out")
        if self.train.audit:
            raise InputError("train.audit finds wrong labels, and task = 'regression' has numbers; leave it out")


TABLES: dict[str, type] = {
    key: table for key, field in settings_of(Spec).items() if (table := table_of(field)) is not None
}


_FIELDS = {f"{name}.{key}": field for name, table in TABLES.items() for key, field in settings_of(table).items()}
