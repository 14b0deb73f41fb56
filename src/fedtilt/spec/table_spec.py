"""A spec to start from for the user's own table."""

import os
from collections.abc import Sequence
from pathlib import Path

from fedtilt.data.tables.table import open_table
from fedtilt.spec.fields import Spec
from fedtilt.spec.read import parse, table_keys, table_settings

_FEW_CLIENTS = 20  # up to this number, all take part in every round
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
        drop: columns to leave out
        schema: a schema file
        task: "classification" or "regression"; default: the schema's, else classification
        overrides: other keys of the table, such as "data.decimal=,"
    """
    keys = table_keys({"target": target, "client": client, "group": list(group), "drop": list(drop)}, overrides)
    data = open_table(table, table_settings(keys), schema, task=task).to_dataset()
    paths = {"file": table, "schema": schema}
    clients: dict[str, object] = {}
    if data.client_names is None:
        clients = {"partition": "iid", "count": max(1, min(_SIMULATED, len(data.y_train) // _MIN_ROWS))}
    count = len(data.client_names or ()) or 1
    raw = {
        "name": file.stem,
        "task": data.task,
        "data": {key: os.path.relpath(path, file.parent) for key, path in paths.items() if path is not None} | keys,
        "clients": clients,
        "model": {"name": "mlp", "hidden": [32]},
        "train": {
            "rounds": 30,
            "participation": 1.0 if count <= _FEW_CLIENTS else _FEW_CLIENTS / count,
            "epochs": 2,
            "batch_size": 16,
            "lr": 0.03,
        },
        "methods": [
            {"preset": "fedavg"},
            {"preset": "ditto", "mu": 1.0},
            {"preset": "fedtilt", "tau": 2.0, "lam": 0.0, "mu": 1.0},  # tau > 0: fair to the rare classes
        ],
    }
    return parse(raw)
