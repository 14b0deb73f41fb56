"""Build what a spec describes: data, federation, model, training settings."""

import functools
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedtilt.data import Dataset, Federation, Schema, images, leaf, load
from fedtilt.data.corrections import corrected
from fedtilt.data.sampling import check_split
from fedtilt.data.tables.reader import Source
from fedtilt.data.tables.table import Table, known_schema, open_table
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError, NoEffect
from fedtilt.imports import import_function
from fedtilt.models import MODELS, ModelSource
from fedtilt.spec.fields import Spec


def federation_of(spec: Spec, seed: int, dataset: Dataset | None = None) -> Federation:
    """The federation that a spec describes; `dataset` is what `dataset_of` returns, if it is read already."""
    dataset = dataset_of(spec, seed) if dataset is None else dataset
    try:
        federation = Federation.build(dataset, clients=spec.clients, outliers=spec.outliers, seed=seed)
    except NoEffect as error:
        raise NoEffect(f"clients.{error}", key=f"clients.{error.key}") from None
    return corrected(federation, exclude=spec.data.exclude, relabel=spec.data.relabel)


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
            split=d.split,
            seed=seed,
            cache=Path(d.folder) / "images" if d.folder else None,
        )
    if d.leaf:
        return replace(leaf(d.leaf), split=check_split(d.split))
    return load(d.name, d.folder or None, seed=seed, labels=d.labels, split=d.split)


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
