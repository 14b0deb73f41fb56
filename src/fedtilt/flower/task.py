"""What a federation learns, the same on the server and on every site, and the federation as one site sees it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data import Dataset, Federation, Outliers, Schema
from fedtilt.data.groups import CLASS
from fedtilt.data.inputs import Shape
from fedtilt.data.naming import client_number
from fedtilt.data.partition import split_validation
from fedtilt.data.tables.reader import Source
from fedtilt.data.tables.summary import SiteSummary
from fedtilt.data.targets import NumericTarget, Target
from fedtilt.engine.initial_model import build_initial_model
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.flower.site_table import site_dataset, site_summary
from fedtilt.methods import Method, check_levels
from fedtilt.methods.aggregators import FLTrust
from fedtilt.methods.weightings import BySamples
from fedtilt.models import ModelSource, recipe
from fedtilt.parts import Parts
from fedtilt.spec import Spec, federation_of, load, model_of, train_settings_of
from fedtilt.storage.run_folder import model_description

SCREEN = 3.0  # of updates, in a deployment whose spec does not say: see `fedtilt.attacks.screening`
NodeConfig = Mapping[str, bool | float | int | str]


class ResolvedTask(NamedTuple):
    """One run of a task: the spec with its overrides, and the one method that is trained."""

    spec: Spec
    method: Method
    settings: TrainSettings


class FederationInfo(NamedTuple):
    """What the server knows about the sites' data: no samples and no counts."""

    input_shape: Shape
    class_names: tuple[str, ...]  # of the classes, or of the groups of the target
    site_names: tuple[str, ...]
    has_outliers: Tensor  # (sites,) bool: sites whose training data gets simulated outliers
    data: str = "the sites' own"  # the name of the data set
    schema: Schema | None = None  # of the sites' tables, if they have tables
    recipe: Mapping[str, Any] | None = None  # name and arguments to build the model again; None: a custom model
    target: Target | None = None  # what the targets are; None: classes
    image: bool = False  # whether the samples are images
    left_out: tuple[int, ...] = ()  # sites that are not part of the run

    @property
    def outputs(self) -> int:
        """The number of the model's outputs: one per class, token or label, or one number."""
        return len(self.class_names) if self.target is None else self.target.outputs

    @property
    def label_group(self) -> str:
        """The name of the groups that follow from the targets: classes, ranges, or all."""
        return CLASS if self.target is None else self.target.group

    @property
    def model_description(self) -> dict[str, Any]:
        """How to build the model, and what its inputs and outputs are; for exports."""
        return model_description(
            self.recipe, self.input_shape, self.class_names, target=self.target, schema=self.schema, image=self.image
        )

    @property
    def sites(self) -> int:
        """The number of sites."""
        return len(self.site_names)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A spec and, optionally, a model and the sites' own data.

    With neither `table` nor `data`, the spec's data set is divided among the sites as in the simulator.

    Args:
        spec: the name of a built-in spec, or a TOML file
        model: a model, or a function that returns one; None: the spec's model
        table: the table of a site, a CSV, TSV or Parquet file or a data frame: it is called on the site with the
            SuperNode's `--node-config`. The spec's `[data]` names the target and other columns, and the sites agree on
            one schema for all tables before the first round
        data: reads other data of a site: it is called in the same way and returns a `Dataset` of that site only
        input_shape: the shape of one sample; required with `data`, because the server builds the model without data
        class_names: the names of all classes; required with `data`, unless it has a target
        target: what the targets of `data` are, if they are no classes: an `ft.data.TokenTarget` or `LabelTarget`
        image: whether `data` returns images, which are scaled from [0, 1] to [-1, 1] for the model

    >>> Task(spec="digits").resolve({"method": "ditto"}).method.name
    'ditto'
    """

    spec: str | Path
    model: ModelSource | None = None
    table: Callable[[NodeConfig], Source | None] | None = None
    data: Callable[[NodeConfig], Dataset] | None = None
    input_shape: Shape = ()
    class_names: tuple[str, ...] = ()
    image: bool = False
    target: Target | None = None

    def __post_init__(self) -> None:
        of_data = self.data is not None or self.input_shape or self.class_names or self.image or self.target
        if self.table is not None and of_data:
            raise InputError(
                "a task with a table function has no data function, input_shape, class_names, image or target; remove "
                "them: the sites agree on a schema"
            )
        if self.target is not None and self.data is None:
            raise InputError(f"target = {self.target} has no effect on a task without a data function; remove it")
        if isinstance(self.target, NumericTarget):
            raise InputError("numbers as targets need a table function, so that the sites agree on their scale")
        if self.target is not None and self.class_names:
            raise InputError(f"class_names has no effect beside target = {self.target}; remove it")
        if self.image and self.data is None:
            raise InputError("image = True has no effect on a task without a data function; remove it")
        if self.data is not None and not (self.input_shape and (self.class_names or self.target)):
            raise InputError("a task with a data function needs input_shape and class_names, or target, as well")

    @property
    def _has_own_data(self) -> bool:
        return self.table is not None or self.data is not None

    def resolve(self, config: Mapping[str, object]) -> ResolvedTask:
        """Apply a Flower run configuration: `method`, and overrides of the spec, one per line, in `set`."""
        name = str(config.get("method") or "")
        overrides = [line for line in str(config.get("set") or "").splitlines() if line.strip()]
        spec = load(self.spec, methods=[name] if name else [], overrides=overrides)
        if len(spec.methods) > 1:
            names = ", ".join(m.name for m in spec.methods)
            raise InputError(f"a deployment trains one method and the spec has {names}; choose one with --method")
        if spec.seeds > 1:
            raise InputError(f"a deployment trains one seed and the spec has seeds = {spec.seeds}; set seeds = 1")
        if self.table is not None and spec.data.file is None:
            raise InputError(
                "a task with a table function needs [data] in its spec: target, and file to simulate with; each site "
                "reads its own table"
            )
        if self.table is not None and spec.clients.partition not in (None, "column"):
            raise InputError(
                f"clients.partition = {spec.clients.partition!r} has no effect on sites with tables of their own; "
                "remove it"
            )
        if self._has_own_data and spec.outliers.kind != "none":
            raise InputError(
                f"outliers.kind = {spec.outliers.kind!r} would corrupt real data; remove [outliers] from the spec"
            )
        for key in ("exclude", "relabel"):
            if self._has_own_data and getattr(spec.data, key) is not None:
                raise InputError(
                    f"data.{key} = {getattr(spec.data, key)!r} has no effect on sites with data of their own; remove "
                    "it, and change the data on the site"
                )
        task = None if self.target is None else self.target.task
        method, settings = spec.methods[0].to_method(), train_settings_of(spec, spec.seed, task)
        if self.target is not None:
            check_levels([method], [self.target.group], self.target.group)
        if settings.attack is not None:
            raise InputError(
                f"attack.kind = {settings.attack.kind!r} is for simulations, not for real sites; "
                "remove [attack] from the spec"
            )
        if settings.stop is not None:
            raise InputError(
                f"train.stop = {settings.stop.label!r} needs validation data on the server, and a deployment evaluates "
                "test data on the sites; remove it"
            )
        if spec.train.baselines:
            raise InputError("train.baselines = true has no effect: no baseline is trained on the sites; remove it")
        if isinstance(method.aggregator, FLTrust):
            raise InputError(
                f"aggregator = 'fltrust' of method {method.name!r} needs data on the server, and a deployment has data "
                "on the sites alone; use another aggregator"
            )
        if isinstance(method.weighting, BySamples) and settings.screen == 0:
            raise InputError(
                f"weighting = 'samples' of method {method.name!r} counts the samples that sites claim, and "
                "train.screen = 0 bounds no claim; use weighting = 'equal', or remove train.screen"
            )
        if settings.privacy is not None and settings.privacy.randomness is None:
            settings = dataclasses.replace(settings, privacy=dataclasses.replace(settings.privacy, randomness="secret"))
        if settings.screen is None and settings.privacy is None:
            settings = dataclasses.replace(settings, screen=SCREEN)
        return ResolvedTask(spec, method, settings)

    def federation_info(self, resolved: ResolvedTask, schema: Schema | None = None) -> FederationInfo:
        """What the server knows about the sites; with a table function, by the schema that they agree on."""
        source, sites = self.model_source(resolved), resolved.spec.clients.count
        if not self._has_own_data:
            federation = federation_of(resolved.spec, resolved.spec.seed)
            return FederationInfo(
                input_shape=federation.input_shape,
                class_names=federation.class_names,
                site_names=federation.client_names,
                has_outliers=federation.has_outliers,
                data=federation.dataset.name,
                recipe=recipe(source, federation.input_shape, federation.outputs),
                target=federation.target,
                image=federation.dataset.image,
                left_out=federation.left_out,
            )
        shape, target = self.input_shape, self.target
        classes = self.class_names if target is None else target.names
        if self.table is not None:
            if schema is None:
                raise InputError("a task with a table function needs the schema that the sites agree on")
            shape, target = (len(schema.inputs),), schema.numbers
            classes = schema.classes or () if target is None else target.names
        return FederationInfo(
            input_shape=shape,
            class_names=classes,
            site_names=tuple(str(n) for n in range(sites)),
            has_outliers=torch.zeros(sites, dtype=torch.bool),
            schema=schema,
            recipe=recipe(source, shape, len(classes) if target is None else target.outputs),
            target=target,
            image=self.image,
            left_out=left_out_sites(resolved.spec),
        )

    def model_source(self, resolved: ResolvedTask) -> ModelSource:
        """The task's model, or the spec's."""
        return model_of(resolved.spec) if self.model is None else self.model

    def initial_model(self, resolved: ResolvedTask, info: FederationInfo) -> tuple[nn.Module, Parts]:
        """The model with its initial weights and its parts, on the server."""
        net, parts = build_initial_model(self.model_source(resolved), info.input_shape, info.outputs, resolved.settings)
        return net, parts.keeping(resolved.method.local_names)

    def site_summary(self, resolved: ResolvedTask, number: int, node_config: NodeConfig) -> SiteSummary:
        """What a site sends of its table before the sites agree on a schema."""
        if self.table is None:
            raise InputError("the server asks for the summary of a table, and this site's task has no table function")
        check_site_number(number, resolved.spec.clients.count)
        shared = yes_or_no(node_config, "share-summary")
        return site_summary(resolved.spec, self._source(node_config), number, shared=shared)

    def site_federation(
        self, resolved: ResolvedTask, number: int, node_config: NodeConfig, schema: Schema | None = None
    ) -> Federation:
        """The federation as one site sees it: the rows of all other sites are empty."""
        if not self._has_own_data:
            federation = federation_of(resolved.spec, resolved.spec.seed)
            check_site_number(number, federation.clients)
            return only_site(federation, number)
        check_site_number(number, resolved.spec.clients.count)
        if self.table is None:
            return single_site_federation(self._own_data(node_config), number, resolved.spec)
        if schema is None:
            raise InputError("the server sent no schema, and this site's task has a table function; give both one task")
        shared = yes_or_no(node_config, "share-summary")
        data = site_dataset(resolved.spec, self._source(node_config), number, schema, shared=shared)
        return single_site_federation(data, number, resolved.spec)

    def _source(self, node_config: NodeConfig) -> Source:
        assert self.table is not None
        source = self.table(node_config)
        if source is None:
            raise InputError(
                'the table function returned None; give the SuperNode its table: data="/path/to/table.csv" in '
                "--node-config"
            )
        return source

    def _own_data(self, node_config: NodeConfig) -> Dataset:
        """What the data function returns, with its classes in the order of the task."""
        assert self.data is not None
        data = self.data(node_config)
        if not isinstance(data, Dataset):
            raise InputError(f"the data function must return a fedtilt.data.Dataset, got {type(data).__name__}")
        if data.schema is not None:
            raise InputError(
                "the data function returns a table, whose columns other sites may have in another order; give the task "
                "a table function instead, and the sites agree on a schema"
            )
        if isinstance(data.target, NumericTarget):
            raise InputError(
                "the data function returns numbers as targets, whose scale the sites must agree on; give the task a "
                "table function instead"
            )
        if data.target != self.target:
            raise InputError(
                f"the data function returns a data set with target = {data.target}, and the task has {self.target}; "
                "give both the same"
            )
        shape = self.input_shape if isinstance(self.input_shape, dict) else tuple(self.input_shape)
        classes = data.classes if self.target is not None else len(self.class_names)
        if data.input_shape != shape or data.classes != classes:
            raise InputError(
                f"the site's data has samples of shape {data.input_shape} in {data.classes} classes; the task has "
                f"{shape} in {classes}"
            )
        if data.image != self.image:
            kind = "images" if data.image else "samples that are no images"
            raise InputError(f"the data function returns {kind}; give the task image={data.image}, for its exports")
        return data if self.target is not None else with_class_order(data, self.class_names)


def site_number(node_config: NodeConfig) -> int:
    """The number of the site that a SuperNode's `--node-config` describes."""
    number = node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int):
        raise InputError(f"--node-config needs partition-id, the site's number from 0 up; got {number!r}")
    return number


def yes_or_no(node_config: NodeConfig, key: str, default: bool = True) -> bool:
    """A switch in a SuperNode's `--node-config`."""
    value = node_config.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{key} in --node-config must be true or false, got {value!r}")
    return value


def left_out_sites(spec: Spec) -> tuple[int, ...]:
    """The numbers of the sites with data of their own that are not part of the run."""
    names = [str(n) for n in range(spec.clients.count)]
    return tuple(sorted(client_number(name, names) for name in spec.clients.leave_out))


def check_site_number(number: int, sites: int) -> None:
    """Raise InputError for a number that no site has."""
    if not 0 <= number < sites:
        raise InputError(f"partition-id = {number} of this SuperNode is not one of the sites 0 to {sites - 1}")


def only_site(federation: Federation, number: int) -> Federation:
    """The same federation with every other client's rows removed."""

    def rows_of_site(index: Sequence[Tensor]) -> list[Tensor]:
        return [rows if n == number else rows[:0] for n, rows in enumerate(index)]

    return dataclasses.replace(
        federation,
        train_index=rows_of_site(federation.train_index),
        validation_index=rows_of_site(federation.validation_index),
        test_index=rows_of_site(federation.test_index),
    )


def with_class_order(data: Dataset, class_names: Sequence[str]) -> Dataset:
    """The same data with its classes in this order; numbers in place of names are taken as they are."""
    if data.class_names in (tuple(class_names), tuple(map(str, range(data.classes)))):
        return data
    unknown = [name for name in data.class_names if name not in class_names]
    if unknown:
        raise InputError(
            f"the site's data has the class {unknown[0]!r}, which the task lacks; its classes are "
            f"{', '.join(class_names)}"
        )
    order = torch.tensor([class_names.index(name) for name in data.class_names])
    return dataclasses.replace(
        data, class_names=tuple(class_names), y_train=order[data.y_train], y_test=order[data.y_test]
    )


def single_site_federation(data: Dataset, number: int, spec: Spec) -> Federation:
    """A federation in which only this site has data."""
    sites, clients = spec.clients.count, spec.clients
    no_rows = torch.zeros(0, dtype=torch.int64)

    def index(samples: int) -> list[Tensor]:
        return [torch.arange(samples) if n == number else no_rows for n in range(sites)]

    labels = data.labels("train")
    train, validation = split_validation(
        labels, index(len(data.y_train)), clients.max_train, clients.validation, spec.seed
    )
    return Federation(
        dataset=data,
        outliers=Outliers(kind="none"),
        client_names=tuple(str(n) for n in range(sites)),
        train_index=train,
        validation_index=validation,
        test_index=index(len(data.y_test)),
        client_classes=[labels.unique()] * sites,
        has_outliers=torch.zeros(sites, dtype=torch.bool),
    )
