"""The comparison by group, for runs whose data names groups."""

from typing import NamedTuple

from fedtilt.data.groups import CLASS
from fedtilt.report.compare import Metric, Row, SeedValues
from fedtilt.report.run_reader import Run

_MAX_GROUPS = 12  # with a column each
_METRICS = (
    Metric("worst", "worst group", "accuracy of the worst group, %", True),
    Metric("spread", "spread", "std over groups, points", False),
    Metric("client_spread_mean", "spread in clients", "std over a client’s groups, mean over clients, points", False),
    Metric("client_worst", "worst in clients", "accuracy of a client’s worst group, mean over clients, %", True),
)


class GroupTable(NamedTuple):
    """The comparison of methods for one column of groups."""

    column: str
    metrics: tuple[Metric, ...]
    rows: dict[str, Row]  # by method


def group_tables(run: Run) -> list[GroupTable]:
    """A table per column of groups, of the evaluated models; groups without test samples in some seed are left out."""
    first = run.compared[0].last(run.methods[0]).groups
    tables = []
    for column in first:
        if column == CLASS:
            continue
        found = {method: [seed_run.last(method).groups[column] for seed_run in run.compared] for method in run.methods}
        names = [n for n in first[column].accuracy if all(n in g.accuracy for seeds in found.values() for g in seeds)]
        shown = names if len(names) <= _MAX_GROUPS else []
        accuracy = tuple(
            Metric(f"accuracy {n}", n, "accuracy on its test samples at all clients, %", True) for n in shown
        )
        rows = {
            method: {metric.key: SeedValues(tuple(g.by_name()[metric.key] for g in seeds)) for metric in _METRICS}
            | {f"accuracy {n}": SeedValues(tuple(g.accuracy[n] for g in seeds)) for n in shown}
            for method, seeds in found.items()
        }
        tables.append(GroupTable(column, (*accuracy, *_METRICS), rows))
    return tables
