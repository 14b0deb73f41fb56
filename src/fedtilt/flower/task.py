"""What a federation learns, the same on the server and on every site."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data import Dataset, Schema
from fedtilt.data.groups import CLASS
from fedtilt.data.inputs import Shape
from fedtilt.data.naming import client_number
from fedtilt.data.sampling import AS_GIVEN, DrawnRows, check_split
from fedtilt.data.tables.reader import Source
from fedtilt.data.targets import NumericTarget, Target
from fedtilt.engine.initial_model import build_initial_model
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.methods import Method
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
    drawn: DrawnRows = AS_GIVEN  # how the sites' test rows come about; of data functions, given

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
        return model_description(self.recipe, self)

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
    def has_own_data(self) -> bool:
        """Whether the sites read data of their own."""
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
        if self.has_own_data and spec.outliers.kind != "none":
            raise InputError(
                f"outliers.kind = {spec.outliers.kind!r} would corrupt real data; remove [outliers] from the spec"
            )
        for key in ("exclude", "relabel"):
            if self.has_own_data and getattr(spec.data, key) is not None:
                raise InputError(
                    f"data.{key} = {getattr(spec.data, key)!r} has no effect on sites with data of their own; remove "
                    "it, and change the data on the site"
                )
        if self.has_own_data and self.table is None and spec.data.split is not None:
            raise InputError(
                f"data.split = {spec.data.split!r} has no effect on what a data function returns; remove it, and draw "
                "the rows there"
            )
        task = None if self.target is None else self.target.task
        method, settings = spec.methods[0].to_method(), train_settings_of(spec, spec.seed, task)
        if settings.attack is not None:
            raise InputError(
                f"attack.kind = {settings.attack.kind!r} is for simulations, not for real sites; "
                "remove [attack] from the spec"
            )
        if settings.stop is not None and not spec.clients.validation:
            raise InputError(
                f"train.stop = {settings.stop.label!r} needs validation data on the sites; set clients.validation, "
                "such as 0.2, or remove it"
            )
        if spec.train.baselines:
            raise InputError("train.baselines = true has no effect: no baseline is trained on the sites; remove it")
        if method.weighting.claims == "samples" and settings.screen == 0:
            raise InputError(
                f"weighting = {method.weighting.label!r} of method {method.name!r} counts the samples that sites "
                "claim, and train.screen = 0 bounds no claim; use weighting = 'equal', or remove train.screen"
            )
        if settings.privacy is not None and settings.privacy.randomness is None:
            settings = dataclasses.replace(settings, privacy=dataclasses.replace(settings.privacy, randomness="secret"))
        if settings.screen is None and settings.privacy is None:
            settings = dataclasses.replace(settings, screen=SCREEN)
        return ResolvedTask(spec, method, settings)

    def federation_info(self, resolved: ResolvedTask, schema: Schema | None = None) -> FederationInfo:
        """What the server knows about the sites; with a table function, by the schema that they agree on."""
        source, sites = self.model_source(resolved), resolved.spec.clients.sites
        if not self.has_own_data:
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
                drawn=federation.drawn,
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
            drawn=AS_GIVEN if schema is None else _drawn_of_tables(resolved.spec, schema),
        )

    def model_source(self, resolved: ResolvedTask) -> ModelSource:
        """The task's model, or the spec's."""
        return model_of(resolved.spec) if self.model is None else self.model

    def initial_model(self, resolved: ResolvedTask, info: FederationInfo) -> tuple[nn.Module, Parts]:
        """The model with its initial weights and its parts, on the server."""
        net, parts = build_initial_model(self.model_source(resolved), info.input_shape, info.outputs, resolved.settings)
        return net, parts.keeping(resolved.method.local_names)


def _drawn_of_tables(spec: Spec, schema: Schema) -> DrawnRows:
    """How the test rows of the sites' tables come about."""
    split = check_split(spec.data.split, time=schema.time, group=schema.split_group)
    return AS_GIVEN if schema.split_column else DrawnRows(split, fixed_shares=split == "proportional")


def left_out_sites(spec: Spec) -> tuple[int, ...]:
    """The numbers of the sites with data of their own that are not part of the run."""
    names = [str(n) for n in range(spec.clients.sites)]
    return tuple(sorted(client_number(name, names) for name in spec.clients.leave_out))
