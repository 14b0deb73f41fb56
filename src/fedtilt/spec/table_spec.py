"""A spec to start from for the user's own table."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedtilt.data import Dataset
from fedtilt.data.tables.table import open_table
from fedtilt.evaluation.predictions import RARE
from fedtilt.spec.fields import Spec
from fedtilt.spec.read import parse, table_keys, table_settings
from fedtilt.spec.starting_point import starting_point

_VALIDATION = 0.2  # the share of a table with a rare class, to choose a threshold on
_SIMULATED = 5  # clients of a table that has none of its own
_MIN_ROWS = 20  # training rows of a simulated client


def table_spec(
    file: Path, table: Path, *, target: str | None = None, client: str | None = None,
    group: Sequence[str] = (), drop: Sequence[str] = (), schema: Path | None = None, task: str | None = None,
    overrides: Sequence[str] = (),
) -> Spec:  # fmt: skip
    """FedAvg, Ditto and FedTilt on a table, which is read to check the names of its columns.

    Args:
        file: the file that the spec will be written to; its paths are relative to it
        table: the table, or a folder of tables
        target: the column of the labels, or of the numbers to predict
        client: the column of the clients; default: the rows are divided among a few simulated clients
        group: the columns of groups; default: FedTilt is fair to the classes
        drop: columns to ignore
        schema: a schema file
        task: "classification" or "regression"; default: the schema's, else classification
        overrides: other keys of the table, such as "data.decimal=,"
    """
    keys = table_keys({"target": target, "client": client, "group": list(group), "drop": list(drop)}, overrides)
    data = open_table(table, table_settings(keys), schema, task=task).to_dataset()
    paths = {"file": table, "schema": schema}
    clients: dict[str, Any] = {}
    if data.client_names is None:
        clients = {"partition": "iid", "count": max(1, min(_SIMULATED, len(data.y_train) // _MIN_ROWS))}
    if _has_rare_class(data):
        clients["validation"] = _VALIDATION
    raw = {
        "name": file.stem,
        "task": data.task,
        "data": {key: os.path.relpath(path, file.parent) for key, path in paths.items() if path is not None} | keys,
        "clients": clients,
        **_starting_point(data, clients.get("count")),
    }
    return parse(raw)


def _has_rare_class(data: Dataset) -> bool:
    """Whether one of two classes has few training rows: a threshold then needs validation data."""
    if data.task != "classification" or data.classes != 2:
        return False
    return int(data.y_train.bincount(minlength=2).min()) <= RARE * len(data.y_train)


def _starting_point(data: Dataset, simulated: int | None) -> dict[str, Any]:
    count = simulated or len(data.client_names or ())
    owners = torch.arange(len(data.y_train)) % count if data.client_train is None else data.client_train
    return starting_point(count, int(owners.bincount(minlength=count).median()), data.task)
