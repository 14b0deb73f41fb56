"""The data of one site: the summary of its table, and the federation in which all other sites have no rows.

If a table does not fit the schema, the site says what differs, in names and kinds of columns alone.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedtilt.data import Dataset, Federation, Outliers, Schema
from fedtilt.data.naming import sort_names
from fedtilt.data.partition import split_validation
from fedtilt.data.tables.cells import SchemaMismatch
from fedtilt.data.tables.reader import Source
from fedtilt.data.tables.summary import SiteSummary
from fedtilt.data.targets import NumericTarget
from fedtilt.errors import InputError
from fedtilt.flower.task import NodeConfig, Task
from fedtilt.methods import Method, check_levels
from fedtilt.spec import Spec, federation_of, known_schema_of, table_of

SUMMARY = "share-summary"  # in --node-config


def site_number(node_config: NodeConfig, sites: float = math.inf) -> int:
    """The number of the site that a SuperNode's `--node-config` describes."""
    number = node_config.get("partition-id")
    if isinstance(number, bool) or not isinstance(number, int):
        raise InputError(f"--node-config needs partition-id, the site's number from 0 up; got {number!r}")
    if not 0 <= number < sites:
        raise InputError(f"partition-id = {number} of this SuperNode is not one of the sites 0 to {sites - 1}")
    return number


def is_on(node_config: NodeConfig, key: str, default: bool = True) -> bool:
    """A switch in a SuperNode's `--node-config`."""
    value = node_config.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{key} in --node-config must be true or false, got {value!r}")
    return value


def site_federation(task: Task, spec: Spec, node_config: NodeConfig, schema: Schema | None) -> Federation:
    """The federation as one site sees it, with the schema that the server sends."""
    if not task.has_own_data:
        return _only_site(federation_of(spec, spec.seed), node_config)
    number = site_number(node_config, spec.clients.sites)
    if task.table is None:
        return _single_site(_own_data(task, node_config), number, spec)
    if schema is None:
        raise InputError("the server sent no schema, and this site's task has a table function; give both one task")
    return _single_site(_table_data(task, spec, node_config, schema), number, spec)


def _only_site(federation: Federation, node_config: NodeConfig) -> Federation:
    """The same federation with every other client's rows removed."""
    number = site_number(node_config, federation.clients)
    kept: dict[str, Any] = {
        key: [rows if n == number else rows[:0] for n, rows in enumerate(getattr(federation, key))]
        for key in ("train_index", "validation_index", "test_index")
    }
    return dataclasses.replace(federation, **kept)


def _single_site(data: Dataset, number: int, spec: Spec) -> Federation:
    """A federation in which only this site has data."""
    sites, clients = spec.clients.sites, spec.clients
    no_rows = torch.zeros(0, dtype=torch.int64)

    def index(samples: int) -> list[Tensor]:
        return [torch.arange(samples) if n == number else no_rows for n in range(sites)]

    labels = data.labels("train")
    train, validation = split_validation(
        data, index(len(data.y_train)), clients.max_train, clients.validation, spec.seed
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
        drawn=data.drawn_rows(),
    )


def check_groups(federation: Federation, method: Method, net: nn.Module) -> None:
    """Raise SchemaMismatch if the data lacks groups that the method tilts over, or some of those that it numbers."""
    try:
        check_levels([method], federation.groups, federation.label_group)
    except InputError as error:
        raise SchemaMismatch(str(error), f"has not the groups that method {method.name!r} tilts over") from None
    count = None if method.training is None else method.training.group_count(net)
    if count is None or federation.group == federation.label_group:  # classes have the same numbers on all sites
        return
    if (found := len(federation.groups[federation.group].names)) != count:
        text = f"has not all of the {count} groups whose numbers method {method.name!r} counts on"
        raise SchemaMismatch(f"the data {text}, it has {found}; name other columns in data.group", text)


# -- from a data function ----------------------------------------------------------------------------------------------


def _own_data(task: Task, node_config: NodeConfig) -> Dataset:
    """What the data function returns, with its classes in the order of the task."""
    assert task.data is not None
    data = task.data(node_config)
    if not isinstance(data, Dataset):
        raise InputError(f"the data function must return a fedtilt.data.Dataset, got {type(data).__name__}")
    if data.test_drawn and data.split == "proportional":
        raise InputError(
            "the data function returns test rows that were drawn with split = 'proportional', and the server counts on "
            "random ones; draw them with split = 'random'"
        )
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
    if data.target != task.target:
        raise InputError(
            f"the data function returns a data set with target = {data.target}, and the task has {task.target}; "
            "give both the same"
        )
    shape = task.input_shape if isinstance(task.input_shape, dict) else tuple(task.input_shape)
    classes = data.classes if task.target is not None else len(task.class_names)
    if data.input_shape != shape or data.classes != classes:
        raise InputError(
            f"the site's data has samples of shape {data.input_shape} in {data.classes} classes; the task has "
            f"{shape} in {classes}"
        )
    if data.image != task.image:
        kind = "images" if data.image else "samples that are no images"
        raise InputError(f"the data function returns {kind}; give the task image={data.image}, for its exports")
    data = _with_group_order(data)
    return data if task.target is not None else _with_class_order(data, task.class_names)


def _with_group_order(data: Dataset) -> Dataset:
    """The same data with its groups in the order of their names, as those of tables are."""
    if data.group_names is None or data.group_train is None or data.group_test is None:
        return data
    order = {column: sort_names(names) for column, names in data.group_names.items()}
    numbers = {c: torch.tensor([order[c].index(name) for name in names]) for c, names in data.group_names.items()}
    sides = ({c: numbers[c][codes] for c, codes in side.items()} for side in (data.group_train, data.group_test))
    train, test = sides
    return dataclasses.replace(data, group_names=order, group_train=train, group_test=test)


def _with_class_order(data: Dataset, class_names: Sequence[str]) -> Dataset:
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
    noisy = None if data.noisy_train is None else order[data.noisy_train]
    return dataclasses.replace(
        data, class_names=tuple(class_names), y_train=order[data.y_train], y_test=order[data.y_test], noisy_train=noisy
    )


# -- from a table ------------------------------------------------------------------------------------------------------


def site_summary(task: Task, spec: Spec, node_config: NodeConfig) -> SiteSummary:
    """What a site sends of its table, so that all sites agree on one schema, if it shares its summary."""
    if task.table is None:
        raise InputError("the server asks for the summary of a table, and this site's task has no table function")
    number = site_number(node_config, spec.clients.sites)
    if not is_on(node_config, SUMMARY):
        raise _withheld(known_schema_of(spec))
    table = table_of(spec, _source(task, node_config), site=number)
    summary = table.site_summary(spec.data.test_share, spec.seed)
    _check_few_values(summary, table.schema.min_count)
    return summary


def _source(task: Task, node_config: NodeConfig) -> Source:
    assert task.table is not None
    source = task.table(node_config)
    if source is None:
        raise InputError(
            'the table function returned None; give the SuperNode its table: data="/path/to/table.csv" in --node-config'
        )
    return source


def _check_few_values(summary: SiteSummary, min_count: int) -> None:
    """Raise SchemaMismatch for a mean over too few values, which would reveal them."""
    for column in (*summary.columns, *([] if summary.numbers is None else [summary.numbers])):
        if column.mean is not None and column.rows < min_count:
            text = (
                f"has fewer than {min_count} training rows with a value in column {column.name!r}, whose mean would "
                "reveal them; drop the column, or write its statistics or a smaller min_count into the project's schema"
            )
            raise SchemaMismatch(f"this site {text}", text)


def _table_data(task: Task, spec: Spec, node_config: NodeConfig, schema: Schema) -> Dataset:
    """A site's table as a data set, as the agreed schema says."""
    known, shared = known_schema_of(spec), is_on(node_config, SUMMARY)
    if (schema.roles, schema.is_regression) != (known.roles, known.is_regression):  # the server chooses no target
        text = "has a project in which other columns are the target, the groups or the like than in the schema"
        raise SchemaMismatch(f"this site {text}; give the server and all sites one project", text)
    if not shared and schema != known:
        raise _withheld(known)
    try:
        number = site_number(node_config, spec.clients.sites)
        table = table_of(spec, _source(task, node_config), site=number).with_schema(schema)
        return table.to_dataset(spec.data.test_share, spec.seed)
    except SchemaMismatch as error:
        if shared:
            raise
        raise SchemaMismatch(str(error), error.withheld) from error


def _withheld(known: Schema) -> SchemaMismatch:
    target = known.numbers if known.is_regression else known.classes
    missing = "numbers of its target" if known.is_regression else "classes"
    what = "columns" if not known.columns else missing if target is None else "statistics of its columns"
    text = f"withholds its summary (share-summary = false), and the project's schema has no {what}"
    return SchemaMismatch(f"this site {text}; write data.schema with fedtilt data schema", text)
