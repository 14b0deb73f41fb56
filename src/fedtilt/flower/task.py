"""What a federation learns, the same on the server and on every site, and how a run may vary it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedtilt import seeds
from fedtilt.data import Dataset, Federation, Outliers
from fedtilt.errors import InputError
from fedtilt.methods import Method
from fedtilt.models import ModelSource, build
from fedtilt.rounds.settings import TrainSettings, initial_model
from fedtilt.spec import Spec, federation_of, load, model_of, train_settings_of

NodeConfig = Mapping[str, bool | float | int | str]


class Job(NamedTuple):
    """One run: a spec with its overrides, and the one method of it that is trained."""

    spec: Spec
    method: Method
    training: TrainSettings


class Frame(NamedTuple):
    """What the server must know of the sites' data: no sample and no count."""

    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    site_names: tuple[str, ...]
    has_outliers: Tensor  # (sites,) bool: whose training data a trial spoils
    data: str = "the sites' own"

    @property
    def sites(self) -> int:
        """How many sites the federation has."""
        return len(self.site_names)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A spec, and what of it is the project's own.

    `data` reads a site's data: it is called on the site with the SuperNode's `--node-config` and returns a `Dataset` of
    that site alone. With it come `input_shape` and `class_names`, which the server needs to build the model without
    seeing a sample. Without `data`, the spec's own data is divided among the sites as in the simulator: a trial.

    >>> Task(spec="digits").job({"method": "ditto"}).method.personal
    True
    """

    spec: str | Path
    model: ModelSource | None = None
    data: Callable[[NodeConfig], Dataset] | None = None
    input_shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.data is not None and not (self.input_shape and self.class_names):
            raise InputError("a task with its own data function needs input_shape and class_names as well")

    def job(self, config: Mapping[str, object]) -> Job:
        """The run that a Flower run configuration asks for: `method`, and overrides one a line in `set`."""
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
                f"outliers.kind = {spec.outliers.kind!r} spoils real data; leave [outliers] out of the spec"
            )
        return Job(spec, spec.methods[0].to_method(), train_settings_of(spec, spec.seed))

    def frame(self, job: Job) -> Frame:
        """What the server knows of the sites."""
        if self.data is not None:
            names = tuple(str(n) for n in range(job.spec.clients.count))
            return Frame(self.input_shape, self.class_names, names, torch.zeros(len(names), dtype=torch.bool))
        federation = federation_of(job.spec, job.spec.seed)
        return Frame(
            input_shape=federation.input_shape,
            class_names=federation.class_names,
            site_names=federation.client_names,
            has_outliers=federation.has_outliers,
            data=federation.dataset.name,
        )

    def source(self, job: Job) -> ModelSource:
        """Where the model comes from."""
        return model_of(job.spec) if self.model is None else self.model

    def initial(self, job: Job, frame: Frame) -> nn.Module:
        """The model the run starts from, on the server."""
        key = seeds.key(job.spec.seed, "init")
        return build(self.source(job), frame.input_shape, len(frame.class_names), key)

    def federation(self, job: Job, number: int, node: NodeConfig) -> Federation:
        """The federation as one site sees it: the rows of all others are empty."""
        if self.data is None:
            whole = federation_of(job.spec, job.spec.seed)
            _check_number(number, whole.clients)
            return _only(whole, number)
        sites = job.spec.clients.count
        _check_number(number, sites)
        data = self.data(node)
        if not isinstance(data, Dataset):
            raise InputError(f"the data function must return a fedtilt.data.Dataset, got {type(data).__name__}")
        if data.input_shape != tuple(self.input_shape) or data.classes != len(self.class_names):
            raise InputError(
                f"the site's data has samples of shape {data.input_shape} in {data.classes} classes; the task says "
                f"{tuple(self.input_shape)} in {len(self.class_names)}"
            )
        return _alone(data, number, sites)


def site_model(federation: Federation, number: int, source: ModelSource, seed: int) -> nn.Module:
    """The model on a site, checked on its own samples."""
    mine = dataclasses.replace(federation, train_index=[federation.train_index[number]])
    return initial_model(mine, source, seed)


def _check_number(number: int, sites: int) -> None:
    if not 0 <= number < sites:
        raise InputError(f"partition-id = {number} of this SuperNode is not one of the sites 0 to {sites - 1}")


def _only(federation: Federation, number: int) -> Federation:
    """The same federation with every other client's rows left out."""

    def emptied(index: Sequence[Tensor]) -> list[Tensor]:
        return [rows if n == number else rows[:0] for n, rows in enumerate(index)]

    return dataclasses.replace(
        federation,
        train_index=emptied(federation.train_index),
        validation_index=emptied(federation.validation_index),
        test_index=emptied(federation.test_index),
    )


def _alone(data: Dataset, number: int, sites: int) -> Federation:
    """A federation of which this site's data is all there is."""
    none = torch.zeros(0, dtype=torch.int64)

    def mine(samples: int) -> list[Tensor]:
        return [torch.arange(samples) if n == number else none for n in range(sites)]

    return Federation(
        dataset=data,
        outliers=Outliers(kind="none"),
        client_names=tuple(str(n) for n in range(sites)),
        train_index=mine(len(data.y_train)),
        validation_index=[none] * sites,
        test_index=mine(len(data.y_test)),
        held_classes=[data.y_train.unique()] * sites,
        has_outliers=torch.zeros(sites, dtype=torch.bool),
    )
