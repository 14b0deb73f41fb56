"""Build what a spec describes: data, federation, model, training settings."""

import functools
from pathlib import Path

from fedtilt.data import Dataset, Federation, images, leaf, load
from fedtilt.data.tables import Table, open_table
from fedtilt.models import MODELS, ModelSource
from fedtilt.rounds.settings import TrainSettings
from fedtilt.spec.fields import TABLES, Spec


def federation_of(spec: Spec, seed: int) -> Federation:
    """The federation that a spec describes."""
    c, dataset = spec.clients, dataset_of(spec, seed)
    own_clients = dataset.client_names is not None and c.partition in (None, "column")
    return Federation.build(
        dataset,
        clients=None if own_clients else c.count,
        partition=c.partition,
        classes_per_client=c.classes_per_client,
        alpha=c.alpha,
        max_train=c.max_train,
        validation=c.validation,
        validation_outliers=c.validation_outliers,
        outliers=spec.outliers.to_outliers(),
        seed=seed,
    )


def dataset_of(spec: Spec, seed: int) -> Dataset:
    """The data set that a spec names, read from disk."""
    d = spec.data
    if d.file:
        return table_of(spec).to_dataset(d.test_share, seed)
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


def table_of(spec: Spec) -> Table:
    """The table that a spec names."""
    d = spec.data
    assert d.file is not None
    roles = {role: getattr(d, role) or None for role in ("target", "client", "split", "split_group", "split_time")}
    return open_table(d.file, roles, d.drop, d.schema)


def model_of(spec: Spec) -> ModelSource:
    """The model that a spec names, as a function of the input shape and the number of classes."""
    m = spec.model
    settings = {"mlp": {"hidden": tuple(m.hidden)}, "cnn": {"channels": tuple(m.channels)}}.get(m.name, {})
    return functools.partial(MODELS[m.name], **settings)


def train_settings_of(spec: Spec, seed: int) -> TrainSettings:
    """The training settings of a spec, with one of its seeds."""
    settings = {key: getattr(spec.train, key) for key in TABLES["train"].model_fields}
    return TrainSettings(**settings, seed=seed, device=spec.device)
