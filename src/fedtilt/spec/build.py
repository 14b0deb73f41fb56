"""Build what a spec describes: data, federation, model, training settings."""

import functools
import inspect
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedtilt.checks import OnlyWith, check_used
from fedtilt.data import Dataset, Federation, Schema, images, leaf, load
from fedtilt.data.corrections import corrected
from fedtilt.data.partition import resolve_clients
from fedtilt.data.tables.reader import Source
from fedtilt.data.tables.table import Table, known_schema, open_table
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError, NoEffect
from fedtilt.imports import import_function
from fedtilt.models import MODELS, ModelSource
from fedtilt.spec.fields import Spec


def federation_of(spec: Spec, seed: int, dataset: Dataset | None = None) -> Federation:
    """The federation that a spec describes; `dataset` is what `dataset_of` returns, if it is read already."""
    c, dataset = spec.clients, dataset_of(spec, seed) if dataset is None else dataset
    partition, _ = resolve_clients(dataset, c.partition, None)
    own_clients = partition == "column" and dataset.client_names is not None
    of_partition: dict[str, dict[str, Any]] = {
        "classes": {"classes_per_client": c.classes_per_client},
        "dirichlet": {"alpha": c.alpha},
    }
    settings: dict[str, Any] = {"partition": partition, **of_partition.get(partition, {})}
    federation = Federation.build(
        dataset,
        clients=None if own_clients else c.count,
        max_train=c.max_train,
        validation=c.validation,
        validation_outliers=c.validation_outliers and c.validation > 0,
        outliers=spec.outliers.to_outliers(),
        leave_out=c.leave_out,
        seed=seed,
        **settings,
    )
    return corrected(federation, exclude=spec.data.exclude, relabel=spec.data.relabel)


def check_clients_used(spec: Spec, federation: Federation) -> None:
    """Raise NoEffect for keys of `[clients]` without effect on this federation; runs of old versions may have them."""
    c, dataset = spec.clients, federation.dataset
    partition, own = resolve_clients(dataset, c.partition, None)
    defaults = {f"clients.{field.name}": field.default for field in fields(c)}
    values = {f"clients.{key}": value for key, value in vars(c).items()} | {"clients.partition": partition}
    only_with: OnlyWith = {
        "clients.classes_per_client": {"clients.partition": ("classes",)},
        "clients.validation_outliers": {"clients.validation": ()},
    }
    check_used(values, defaults, only_with)
    if partition == "column" and c.count not in (own, defaults["clients.count"]):
        raise NoEffect(
            f"clients.count = {c.count} has no effect here: {dataset.name!r} has {own} clients of its own; leave it "
            "out, or set clients.partition = 'classes', 'dirichlet' or 'iid'",
            key="clients.count",
        )


def dataset_of(spec: Spec, seed: int) -> Dataset:
    """The data set that a spec names, read from disk."""
    d = spec.data
    if d.file:
        return table_of(spec).to_dataset(d.test_share, seed, spec.clients.leave_out)
    if d.images:
        return images(
            d.images,
            size=d.image_size,
            channels=d.image_channels,
            test_share=d.test_share,
            seed=seed,
            cache=Path(d.folder) / "images" if d.folder else None,
        )
    if d.leaf:
        return leaf(d.leaf)
    return load(d.name, d.folder or None, seed=seed)


def table_of(spec: Spec, source: Source | None = None, site: int | None = None) -> Table:
    """The table that a spec names, or the one of a site in its place."""
    d = spec.data
    source = d.file if source is None else source
    assert source is not None
    return open_table(source, d, d.schema, site, spec.task)


def known_schema_of(spec: Spec) -> Schema:
    """What a spec says of its table: the roles of columns, and its schema file."""
    return known_schema(spec.data.schema, spec.data, spec.task)


def model_of(spec: Spec) -> ModelSource:
    """The model that a spec names, as a function of the input shape and the number of classes."""
    m = spec.model
    if m.name not in MODELS:
        return _own_model(m.name, m.arguments)
    settings = {"mlp": {"hidden": tuple(m.hidden)}, "cnn": {"channels": tuple(m.channels)}}.get(m.name, {})
    return functools.partial(MODELS[m.name], **settings)


def _own_model(path: str, arguments: dict[str, Any]) -> ModelSource:
    """The user's function, with the arguments of the spec."""
    function = import_function(path, "model.name")
    if isinstance(function, nn.Module):
        raise InputError(f"model.name = {path!r} is a module, which would be the same for every seed; name a function")
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in arguments:
        if key not in parameters and not takes_any:
            raise InputError(f"model.arguments.{key} is not an argument of {path}, which takes {', '.join(parameters)}")
    for key, p in parameters.items():
        required = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if required and key not in ("input_shape", "classes", *arguments):
            raise InputError(f"model.name = {path!r} needs an argument {key!r}; set model.arguments.{key}")
    return functools.partial(function, **arguments)


def train_settings_of(spec: Spec, seed: int, task: str | None = None) -> TrainSettings:
    """The training settings of a spec, with one of its seeds and the loss of its task, or of another one."""
    baselines = spec.data.path is not None if spec.train.baselines is None else spec.train.baselines
    settings = replace(
        spec.train, seed=seed, device=spec.device, privacy=spec.privacy, attack=spec.attack, baselines=baselines
    )
    return settings.for_task(task or spec.task)
