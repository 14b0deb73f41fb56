"""The comparison by group, for runs with several groupings."""

from typing import NamedTuple

from fedtilt.evaluation.metrics import Score
from fedtilt.report.compare import Metric, Row, SeedValues
from fedtilt.report.run_reader import Run

_MAX_GROUPS = 12  # with a column each


def _metrics(score: Score) -> tuple[Metric, ...]:
    unit, spread, higher = score.unit, score.spread_unit, score.higher_is_better
    in_unit, in_spread = (f", {u}" if u else "" for u in (unit, spread))
    worst = f"{score.title} of a client’s worst group, mean over clients{in_unit}"
    in_clients = f"std over a client’s groups, mean over clients{in_spread}"
    return (
        Metric("worst", "worst group", f"{score.title} of the worst group{in_unit}", higher, unit),
        Metric("spread", "spread", f"std over groups{in_spread}", False, spread),
        Metric("client_spread_mean", "spread in clients", in_clients, False, spread),
        Metric("client_worst", "worst in clients", worst, higher, unit),
    )  # fmt: skip


class GroupTable(NamedTuple):
    """The comparison of methods for one grouping."""

    column: str
    metrics: tuple[Metric, ...]
    rows: dict[str, Row]  # by method


def group_tables(run: Run) -> list[GroupTable]:
    """A table per grouping, of the evaluated models; groups without test samples in some seed are left out."""
    first, score = run.compared[0].last(run.methods[0]).groups, run.score
    metrics, in_unit = _metrics(score), f", {score.unit}" if score.unit else ""
    tables = []
    for column in first:
        found = {method: [seed_run.last(method).groups[column] for seed_run in run.compared] for method in run.methods}
        names = [n for n in first[column].values if all(n in g.values for seeds in found.values() for g in seeds)]
        shown = names if len(names) <= _MAX_GROUPS else []
        about = f"{score.title} on its test samples at all clients{in_unit}"
        values = tuple(Metric(f"group {n}", n, about, score.higher_is_better, score.unit) for n in shown)
        rows = {
            method: {metric.key: SeedValues(tuple(g.by_name()[metric.key] for g in seeds)) for metric in metrics}
            | {f"group {n}": SeedValues(tuple(g.values[n] for g in seeds)) for n in shown}
            for method, seeds in found.items()
        }
        tables.append(GroupTable(column, (*values, *metrics), rows))
    return tables
