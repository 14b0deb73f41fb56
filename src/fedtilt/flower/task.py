"""What a federation learns, the same on the server and on every site, and how a run may change it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtilt.data import Dataset, Federation, Outliers
from fedtilt.data.inputs import Shape
from fedtilt.errors import InputError
from fedtilt.methods import Method
from fedtilt.models import ModelSource
from fedtilt.parts import Parts
from fedtilt.rounds.initial_model import build_initial_model, initial_model
from fedtilt.rounds.settings import TrainSettings
from fedtilt.spec import Spec, federation_of, load, model_of, train_settings_of

SCREEN = 3.0  # of updates, in a deployment whose spec does not say: see `fedtilt.rounds.screening`
NodeConfig = Mapping[str, bool | float | int | str]


class ResolvedTask(NamedTuple):
    """One run of a task: the spec with its overrides, and the one method that is trained."""

    spec: Spec
    method: Method
    settings: TrainSettings


class FederationInfo(NamedTuple):
    """What the server knows about the sites' data: no samples and no counts."""

    input_shape: Shape
    class_names: tuple[str, ...]
    site_names: tuple[str, ...]
    has_outliers: Tensor  # (sites,) bool: sites whose training data gets simulated outliers
    data: str = "the sites' own"  # the name of the data set

    @property
    def sites(self) -> int:
        """The number of sites."""
        return len(self.site_names)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A spec and, optionally, a model and the sites' own data.

    Without `data`, the spec's data set is divided among the sites as in the simulator.

    Args:
        spec: the name of a built-in spec, or a TOML file
        model: a model, or a function that returns one; None: the spec's model
        data: reads a site's data: it is called on the site with the SuperNode's `--node-config` and returns a `Dataset`
            of that site only
        input_shape: the shape of one sample; required with `data`, because the server builds the model without data
        class_names: the names of all classes; required with `data`

    >>> Task(spec="digits").resolve({"method": "ditto"}).method.personal
    True
    """

    spec: str | Path
    model: ModelSource | None = None
    data: Callable[[NodeConfig], Dataset] | None = None
    input_shape: Shape = ()
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.data is not None and not (self.input_shape and self.class_names):
            raise InputError("a task with a data function needs input_shape and class_names as well")

    def resolve(self, config: Mapping[str, object]) -> ResolvedTask:
        """Apply a Flower run configuration: `method`, and overrides of the spec, one per line, in `set`."""
        method = str(config.get("method") or "")
        overrides = [line for line in str(config.get("set") or "").splitlines() if line.strip()]
        spec = load(self.spec, methods=[method] if method else [], overrides=overrides)
        if len(spec.methods) > 1:
            names = ", ".join(m.name for m in spec.methods)
            raise InputError(f"a deployment trains one method and the spec has {names}; choose one with --method")
        if spec.seeds > 1:
            raise InputError(f"a deployment trains one seed and the spec has seeds = {spec.seeds}; set seeds = 1")
        if self.data is not None and spec.outliers.kind != "none":
            raise InputError(
                f"outliers.kind = {spec.outliers.kind!r} would corrupt real data; remove [outliers] from the spec"
            )
        settings = train_settings_of(spec, spec.seed)
        if settings.screen is None:
            settings = dataclasses.replace(settings, screen=SCREEN)
        return ResolvedTask(spec, spec.methods[0].to_method(), settings)

    def federation_info(self, resolved: ResolvedTask) -> FederationInfo:
        """What the server knows about the sites."""
        if self.data is not None:
            names = tuple(str(n) for n in range(resolved.spec.clients.count))
            return FederationInfo(self.input_shape, self.class_names, names, torch.zeros(len(names), dtype=torch.bool))
        federation = federation_of(resolved.spec, resolved.spec.seed)
        return FederationInfo(
            input_shape=federation.input_shape,
            class_names=federation.class_names,
            site_names=federation.client_names,
            has_outliers=federation.has_outliers,
            data=federation.dataset.name,
        )

    def model_source(self, resolved: ResolvedTask) -> ModelSource:
        """The task's model, or the spec's."""
        return model_of(resolved.spec) if self.model is None else self.model

    def initial_model(self, resolved: ResolvedTask, info: FederationInfo) -> tuple[nn.Module, Parts]:
        """The model with its initial weights and its parts, on the server."""
        return build_initial_model(
            self.model_source(resolved), info.input_shape, len(info.class_names), resolved.settings
        )

    def site_federation(self, resolved: ResolvedTask, number: int, node_config: NodeConfig) -> Federation:
        """The federation as one site sees it: the rows of all other sites are empty."""
        if self.data is None:
            federation = federation_of(resolved.spec, resolved.spec.seed)
            _check_site_number(number, federation.clients)
            return _only_site(federation, number)
        sites = resolved.spec.clients.count
        _check_site_number(number, sites)
        data = self.data(node_config)
        if not isinstance(data, Dataset):
            raise InputError(f"the data function must return a fedtilt.data.Dataset, got {type(data).__name__}")
        shape = self.input_shape if isinstance(self.input_shape, dict) else tuple(self.input_shape)
        if data.input_shape != shape or data.classes != len(self.class_names):
            raise InputError(
                f"the site's data has samples of shape {data.input_shape} in {data.classes} classes; the task has "
                f"{shape} in {len(self.class_names)}"
            )
        return _single_site_federation(data, number, sites)


def build_site_model(
    federation: Federation, number: int, source: ModelSource, settings: TrainSettings
) -> tuple[nn.Module, Parts]:
    """The model with its initial weights and its parts, checked on samples of the site."""
    only_site = dataclasses.replace(federation, train_index=[federation.train_index[number]])
    return initial_model(only_site, source, settings)


def _check_site_number(number: int, sites: int) -> None:
    if not 0 <= number < sites:
        raise InputError(f"partition-id = {number} of this SuperNode is not one of the sites 0 to {sites - 1}")


def _only_site(federation: Federation, number: int) -> Federation:
    """The same federation with every other client's rows removed."""

    def rows_of_site(index: Sequence[Tensor]) -> list[Tensor]:
        return [rows if n == number else rows[:0] for n, rows in enumerate(index)]

    return dataclasses.replace(
        federation,
        train_index=rows_of_site(federation.train_index),
        validation_index=rows_of_site(federation.validation_index),
        test_index=rows_of_site(federation.test_index),
    )


def _single_site_federation(data: Dataset, number: int, sites: int) -> Federation:
    """A federation in which only this site has data."""
    no_rows = torch.zeros(0, dtype=torch.int64)

    def index(samples: int) -> list[Tensor]:
        return [torch.arange(samples) if n == number else no_rows for n in range(sites)]

    return Federation(
        dataset=data,
        outliers=Outliers(kind="none"),
        client_names=tuple(str(n) for n in range(sites)),
        train_index=index(len(data.y_train)),
        validation_index=[no_rows] * sites,
        test_index=index(len(data.y_test)),
        client_classes=[data.y_train.unique()] * sites,
        has_outliers=torch.zeros(sites, dtype=torch.bool),
    )
