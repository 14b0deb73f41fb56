"""A federation as one site sees it: the other sites have no samples."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedtilt.data import Dataset, Federation, Outliers
from fedtilt.data.partition import split_validation
from fedtilt.engine.initial_model import initial_model
from fedtilt.engine.settings import TrainSettings
from fedtilt.errors import InputError
from fedtilt.models import ModelSource
from fedtilt.parts import Parts
from fedtilt.spec import Spec


def check_site_number(number: int, sites: int) -> None:
    """Refuse a number that no site has."""
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


def build_site_model(
    federation: Federation, number: int, source: ModelSource, settings: TrainSettings
) -> tuple[nn.Module, Parts]:
    """The model with its initial weights and its parts, checked on samples of the site."""
    only_site = dataclasses.replace(federation, train_index=[federation.train_index[number]])
    return initial_model(only_site, source, settings)
