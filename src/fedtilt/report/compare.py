"""Compare the methods of a run: metrics over seeds, the best method and its ties, and groups."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtilt.data.groups import CLASS, in_words
from fedtilt.data.sampling import UNKNOWN
from fedtilt.data.targets import RANGE
from fedtilt.errors import InputError
from fedtilt.evaluation.client_differences import Draw, Rows
from fedtilt.evaluation.decision_metrics import METRICS as DECISION
from fedtilt.evaluation.metrics import BEYOND_CHANCE, GroupCounts, Metrics, counts_of_chance
from fedtilt.evaluation.metrics_frame import with_targets
from fedtilt.evaluation.results import SeedValues
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.evaluation.scores import ACCURACY, SCORES, Score, client_variances, others_of
from fedtilt.evaluation.verdicts import LEVEL, Verdict, best, compare
from fedtilt.evaluation.weighted_predictions import Weighted
from fedtilt.report.run_reader import Run, SeedRun


@dataclass(frozen=True)
class Metric:
    """A column of the comparison."""

    key: str  # as in `Metrics.by_name`
    title: str
    description: str
    higher_is_better: bool
    unit: str = ""  # empty: that of the target
    digits: int = 2  # behind the point in tables
    compared: str = ""  # the key by which methods are compared, see `client_differences`; empty: the same

    def value(self, metrics: Metrics) -> float:
        """The value of this metric; NaN: unknown."""
        return metrics.by_name().get(self.key, math.nan)


def _column(score: Score, key: str, title: str, about: str, *, spread: bool = False) -> Metric:
    """A column in the unit of a score, or of its spread."""
    unit = score.spread_unit if spread else score.unit
    return Metric(key, title, f"{about}, {unit}" if unit else about, score.higher_is_better and not spread, unit)


def comparison_metrics(score: Score, group: str) -> tuple[Metric, ...]:
    """The columns of a comparison: the main score, the fairness of both kinds, the worst and the best clients."""
    title, extreme = score.title, "minimum" if score.higher_is_better else "maximum"
    clients = f"std{'' if score.unit else f' of the {title}'} over clients"
    groups = f"std over a client’s {in_words(group)}, mean over clients"
    again, beyond_chance = "the same, std over clients", "client fairness without chance"
    columns = [
        _column(score, score.name, title, "mean over clients"),
        _column(score, "client_fairness", "client fairness", clients, spread=True),
        _column(score, "client_data_fairness_mean", "client data fairness", groups, spread=True),
        _column(score, "client_data_fairness_std", "client data fairness, std", again, spread=True),
        _column(score, "worst", "worst 10 %", f"mean {title} of the worst tenth of the clients"),
        _column(score, "best", "best 10 %", f"mean {title} of the best tenth of the clients"),
        _column(score, extreme, extreme, f"{title} of the worst client"),
        _column(score, BEYOND_CHANCE, "beyond chance", beyond_chance, spread=True),
    ]
    for other in others_of(score):
        key, name, about = f"{other.name}_client_fairness", other.title, f"std of the {other.title} over clients"
        columns.append(_column(other, other.name, name, "mean over clients"))
        columns.append(_column(other, key, f"{name}, client fairness", about, spread=True))
    return tuple(columns)


METRICS = comparison_metrics(ACCURACY, CLASS)  # of classes
_OVERVIEW = (*SCORES, "client_fairness", BEYOND_CHANCE, "client_data_fairness_mean", "worst")


def metrics_of(*runs: Run) -> tuple[Metric, ...]:
    """The columns of a comparison that all runs have: fairness beyond chance is not known of every score."""
    known = [run.compared[0].last(run.methods[0]).evaluated.by_name() for run in runs]
    columns = comparison_metrics(runs[0].score, runs[0].group)
    return tuple(metric for metric in columns if all(metric.key in names for names in known))


def fairness_metrics(run: Run) -> tuple[Metric, ...]:
    """The columns of fairness to clients and, if samples have classes or groups, to those of a client."""
    return tuple(m for m in metrics_of(run) if m.key in ("client_fairness", "client_data_fairness_mean"))


def overview_metrics(*runs: Run) -> tuple[Metric, ...]:
    """Of a rare class AUPRC and AUROC; the scores, both kinds of fairness, and the worst tenth of the clients."""
    by_key = {metric.key: metric for metric in metrics_of(*runs)}
    rare = tuple(metric for metric in rare_metrics(runs[0]) if all(metric in rare_metrics(run) for run in runs[1:]))
    return rare + tuple(by_key[key] for key in _OVERVIEW if key in by_key)


def rare_class(run: Run) -> str | None:
    """The rare one of two classes; None: there is none, or not all methods have stored predictions."""
    stored = all(method in by_name for by_name in run.predictions for method in run.methods)
    return next(iter(run.predictions[0].values())).rare_class if stored else None


def rare_metrics(run: Run) -> tuple[Metric, ...]:
    """The columns about a rare class, of the evaluated models; empty: there is none."""
    name = rare_class(run)
    if name is None:
        return ()
    about = f"of class {name} on all test samples"
    return (
        Metric("auprc", f"AUPRC of {name}", f"average precision {about}", True, digits=3),
        Metric("auroc", "AUROC", f"probability that a sample {about} has a higher score than another", True, digits=3),
    )


class View(NamedTuple):
    """Which models and clients a comparison covers."""

    title: str
    description: str
    metrics: Callable[[RoundMetrics], Metrics | None]  # None: the view does not apply to the method


VIEWS = {
    "evaluated": View(
        "Evaluated models",
        "Methods with personal models are evaluated on them, other methods on the shared model; all clients.",
        lambda found: found.evaluated,
    ),
    "shared": View("Shared models", "The shared model on the test data of every client.", lambda found: found.shared),
    "personal": View(
        "Personal models",
        "The personal model of every client; a client that was never selected is evaluated on the shared model.",
        lambda found: found.personal,
    ),
    "ever_selected": View(
        "Selected clients",
        "Personal models, without the clients that were never selected.",
        lambda found: found.ever_selected or (None if found.never_selected else found.personal),
    ),
    "clean": View("Clean clients", "The evaluated models, over the clients without outliers.", lambda of: of.clean),
}
_MAX_GROUPS = 12  # with a column each
Row = dict[str, SeedValues]  # by metric
Published = Mapping[str, Mapping[str, float]]  # method → metric (as in results.json) → value


class Cell(NamedTuple):
    """A number of a comparison, on a page, in Markdown or on a terminal."""

    values: SeedValues
    is_best: bool = False  # or not told apart from the best; of all methods, none is
    published: float | None = None
    digits: int = 2


def _rare_values(run: Run, method: str) -> Row:
    """The values of `rare_metrics` of a method or a baseline."""
    metrics = rare_metrics(run)
    if not metrics or any(method not in by_name for by_name in run.predictions):
        return {}
    samples = [with_targets(by_name[method]) for by_name in run.predictions]
    whole = [Weighted(found, np.ones((1, len(found.labels)))) for found in samples]
    return {m.key: SeedValues(tuple(float(DECISION[m.key].values(w)[0]) for w in whole)) for m in metrics}


def comparison_table(run: Run, view: str) -> dict[str, Row]:
    """Method → its metrics, for the methods to which the view applies."""
    table = {}
    for method in run.methods:
        found = [VIEWS[view].metrics(seed_run.last(method)) for seed_run in run.compared]
        if by_seed := [metrics for metrics in found if metrics is not None]:
            table[method] = _values(run, by_seed) | (_rare_values(run, method) if view == "evaluated" else {})
    return table


def _values(run: Run, by_seed: Sequence[Metrics]) -> Row:
    return {metric.key: SeedValues(tuple(metric.value(m) for m in by_seed)) for metric in metrics_of(run)}


def baseline_table(run: Run) -> dict[str, Row]:
    """Baseline → its metrics."""
    by_seed = {name: [seed_run.baselines[name].evaluated for seed_run in run.compared] for name in run.baselines}
    return {name: _values(run, metrics) | _rare_values(run, name) for name, metrics in by_seed.items()}


def comparison_tables(run: Run) -> dict[str, dict[str, Row]]:
    """The table of every view that applies to some method."""
    some_never_selected = any(s.last(method).ever_selected for s in run.compared for method in run.methods)
    views = [view for view in VIEWS if some_never_selected or view != "ever_selected"]
    return {view: table for view in views if (table := comparison_table(run, view))}


class ViewTable(NamedTuple):
    """The comparison of one view."""

    key: str
    view: View
    metrics: tuple[Metric, ...]
    rows: dict[str, list[Cell]]  # by method
    baselines: dict[str, list[Cell | None]]  # by name, of the evaluated models; None: predictions are not stored


def view_tables(run: Run, published: Published) -> list[ViewTable]:
    """The comparison of every view, that of the evaluated models with the published numbers and the baselines."""
    found, metrics = [], metrics_of(run)
    for key, table in comparison_tables(run).items():
        first = key == "evaluated"
        columns = (*rare_metrics(run), *metrics) if first else metrics
        rows = comparison_cells(table, columns, draws_of(run, key), published if first else None)
        others = baseline_table(run) if first else {}
        baselines = {
            n: [Cell(r[m.key], digits=m.digits) if m.key in r else None for m in columns] for n, r in others.items()
        }
        found.append(ViewTable(key, VIEWS[key], columns, rows, baselines))
    return found


def draws_of(run: Run, view: str = "evaluated") -> list[Draw]:
    """The seeds of a run, as verdicts compare the methods to which a view applies."""
    return [_draw(run, number, view) for number in range(len(run.compared))]


def _draw(run: Run, number: int, view: str) -> Draw:
    seed_run = run.compared[number]
    left_out = torch.zeros(len(seed_run.total), dtype=torch.bool)
    if view == "clean":
        left_out = seed_run.has_outliers
    if view == "ever_selected":
        left_out = torch.stack([counts.never_selected for counts in seed_run.counts.values()]).any(0)
    kind = "shared" if view == "shared" else "evaluated"
    sums = {name: getattr(counts, kind)[~left_out] for name, counts in seed_run.counts.items()}

    def rows(method: str) -> Rows | None:
        stored = run.predictions[number] if view == "evaluated" else {}
        return Rows.of(stored[method]) if method in stored else None

    def chance(method: str) -> Tensor:
        fixed, counts = seed_run.drawn.fixed_shares, seed_run.of_chance(method)
        if kind == "shared":
            table = GroupCounts(seed_run.counts[method].shared, seed_run.total)
            counts = counts_of_chance({seed_run.group: table}, fixed)
        return client_variances(*counts, fixed)[~left_out]

    new, total = seed_run.drawn.generated, seed_run.total[~left_out]
    return Draw(sums=sums, total=total, rows=cache(rows), new_data=new, chance=chance)


def best_by(table: Mapping[str, Row], metric: Metric, draws: Sequence[Draw]) -> tuple[str, ...]:
    """The best method of a table, then those that are not told apart from it."""
    values = {name: row[metric.key].mean for name, row in table.items()}
    key, higher = metric.compared or metric.key, metric.higher_is_better
    return best(draws, key, values, higher_is_better=higher, digits=metric.digits).names


def compare_several(
    draws: Sequence[Draw], metric: Metric, pairs: Sequence[tuple[str, str]], asked: int
) -> Sequence[Verdict]:
    """Verdicts on pairs of methods, with intervals and p corrected by Bonferroni for this many."""
    higher, confidence = metric.higher_is_better, 1 - LEVEL / asked
    found = compare(draws, metric.key, pairs, higher_is_better=higher, confidence=confidence)
    return [verdict._replace(p_value=min(1.0, asked * verdict.p_value)) for verdict in found]


def comparison_cells(
    table: Mapping[str, Row], metrics: Sequence[Metric], draws: Sequence[Draw], published: Published | None = None
) -> dict[str, list[Cell]]:
    """Method → a cell per metric; where no method is told apart from the best, no cell is marked."""
    cells: dict[str, list[Cell]] = {method: [] for method in table}
    for metric in metrics:
        names = best_by(table, metric, draws)
        for method, row in table.items():
            number = (published or {}).get(method, {}).get(metric.key)
            is_best = method in names and len(names) < len(table)
            cells[method].append(Cell(row[metric.key], is_best, number, metric.digits))
    return cells


def check_splits(runs: Sequence[Run]) -> None:
    """Runs whose test rows are drawn in different ways are not compared."""
    first, *others = runs
    for run in others:
        splits = first.compared[0].drawn.split, run.compared[0].drawn.split
        if splits[0] != splits[1] and UNKNOWN not in splits:
            raise InputError(
                f"the test rows of {first.name} are drawn with split = {splits[0]!r} and those of {run.name} with "
                f"{splits[1]!r}, which makes other numbers; run one of them again with the split of the other"
            )


def lead_metric(run: Run) -> Metric:
    """What methods are ranked by: the AUPRC of a rare class, else the main score."""
    return (*rare_metrics(run), *metrics_of(run))[0]


def best_methods(run: Run, limit: int) -> tuple[str, ...]:
    """The best methods by `lead_metric`, at most `limit`, in the order of the run."""
    table, lead = comparison_table(run, "evaluated"), lead_metric(run)
    ranked = sorted(run.methods, key=lambda m: table[m][lead.key].mean, reverse=lead.higher_is_better)[:limit]
    return tuple(method for method in run.methods if method in ranked)


class GroupTable(NamedTuple):
    """The comparison of methods for one grouping."""

    column: str
    groups: tuple[Metric, ...]  # the score in each group; empty: there are too many
    metrics: tuple[Metric, ...]  # the worst group, and the spread over groups
    rows: dict[str, Row]  # by method
    draws: list[Draw]
    worst: dict[str, str]  # method → its worst group; empty: seeds have no common groups

    def cells(self, metrics: Sequence[Metric]) -> dict[str, list[Cell]]:
        """The cells of these columns by method."""
        return comparison_cells(self.rows, metrics, self.draws)


def group_tables(run: Run) -> list[GroupTable]:
    """A table per grouping, of the evaluated models; only of groups with test samples in every seed.

    The ranges of a target depend on the training samples: if seeds have others, there is no column of a range.
    """
    first, score = run.compared[0].last(run.methods[0]).groups, run.score
    metrics, about = _group_metrics(score), f"{score.title} on its test samples at all clients"
    tables = []
    for column in first:
        found = {method: [seed_run.last(method).groups[column] for seed_run in run.compared] for method in run.methods}
        names = [n for n in first[column].values if all(n in g.values for seeds in found.values() for g in seeds)]
        if column == RANGE and any(list(g.values) != names for seeds in found.values() for g in seeds):
            names = []
        draws = [_draw_of_groups(seed_run, column, list(first)) for seed_run in run.compared]
        present = draws[0].total.sum(0).nonzero().flatten().tolist()
        place = dict(zip(first[column].values, present, strict=True))
        groups = tuple(replace(_column(score, f"group {n}", n, about), compared=f"group {place[n]}") for n in names)
        rows = {
            method: {metric.key: SeedValues(tuple(g.by_name()[metric.key] for g in seeds)) for metric in metrics}
            | {f"group {n}": SeedValues(tuple(g.values[n] for g in seeds)) for n in names}
            for method, seeds in found.items()
        }
        choose = min if score.higher_is_better else max
        means = {m: {n: row[f"group {n}"].mean for n in names} for m, row in rows.items() if names}
        worst = {m: choose(of_groups, key=of_groups.__getitem__) for m, of_groups in means.items()}
        tables.append(GroupTable(column, groups if len(groups) <= _MAX_GROUPS else (), metrics, rows, draws, worst))
    return tables


def _draw_of_groups(seed_run: SeedRun, column: str, columns: Sequence[str]) -> Draw:
    by_method = {n: counts.by_grouping(seed_run.total, columns)[column] for n, counts in seed_run.counts.items()}
    total = next(iter(by_method.values())).total
    return Draw(sums={n: found.sums for n, found in by_method.items()}, total=total, new_data=seed_run.drawn.generated)


def _group_metrics(score: Score) -> tuple[Metric, ...]:
    in_clients, worst = "std over a client’s groups, mean over clients", f"{score.title} of a client’s worst group"
    columns = {
        "worst group": _column(score, "worst", "worst group", f"{score.title} of the worst group"),
        "group spread": _column(score, "spread", "spread", "std over groups", spread=True),
        "client_data_fairness_mean": _column(score, "client_spread_mean", "spread in clients", in_clients, spread=True),
        "worst in clients": _column(score, "client_worst", "worst in clients", f"{worst}, mean over clients"),
    }
    return tuple(replace(metric, compared=key) for key, metric in columns.items())
