"""`fedtilt metrics`: precision, recall, AUROC, calibration and other metrics of a run's predictions."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedtilt.cli.console import Console, echo, escape, fits, text_table
from fedtilt.cli.options import RunFolder, SeedOfRun
from fedtilt.files import write_bytes
from fedtilt.text_tables import csv_text

if TYPE_CHECKING:
    from fedtilt.evaluation.intervals import Estimate
    from fedtilt.evaluation.metrics_frame import MetricsFrame
    from fedtilt.evaluation.predictions import Predictions
    from fedtilt.runs.predictions import RunPredictions

_MAX_ROWS = 40  # groups in a table


def metrics(
    folder: RunFolder,
    by: Annotated[
        str | None,
        typer.Option(metavar="WHAT", help="By client, class or a column of groups, and the gaps between them."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="Only this metric; repeatable: accuracy, balanced_accuracy, precision, recall, f1, auroc, auprc, "
            "log_loss, calibration_error, selection_rate, false_positive_rate, mae, rmse, loss, perplexity, "
            "token_accuracy, label_accuracy, exact_match, micro_f1, mean_error, r2.",
        ),
    ] = None,
    positive: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Metrics about this class against all others.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Only this method; repeatable.")
    ] = None,
    seed: SeedOfRun = None,
    confidence: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    resamples: Annotated[int, typer.Option(help="Of the bootstrap; 0: only exact intervals.")] = 1000,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Also write all values and intervals into this file.")
    ] = None,
) -> None:
    """Print decision metrics of a run on its test data, or errors of numbers, with intervals; nothing is trained.

    Without --by: all test samples together, a column per method. With --by: a table per method.
    """
    from fedtilt.evaluation.metrics_frame import metrics_frame
    from fedtilt.runs.predictions import read_or_predict
    from fedtilt.storage.provenance import seed_folder
    from fedtilt.storage.run_folder import read_thresholds

    run = read_or_predict(folder, method or [], seed)
    thresholds = read_thresholds(seed_folder(folder, run.seed), run.round)
    frames = {
        name: metrics_frame(
            predictions, metric, by=by, positive=positive, confidence=confidence, resamples=resamples,
            threshold=thresholds.get(name),
        )
        for name, predictions in run.by_method.items()
    }  # fmt: skip
    first = next(iter(run.by_method.values()))
    console = Console()
    about = f", class {escape(positive)} against all others" if positive is not None else ""
    console.print(f"{len(first.labels):,} test samples, seed {run.seed}, after round {run.round}{about}")
    for name in frames:
        if name in thresholds:
            console.print(escape(f"{name} predicts {thresholds[name].in_words()}"))
    if by is None:
        console.print(_fitting(console.width, partial(_overall_table, frames)))
    for name, frame in frames.items() if by is not None else ():
        console.print(f"\n[bold]{escape(name)}[/]")
        for table in _group_tables(frame, console.width):
            console.print(table)
        console.print(_fitting(console.width, partial(_gap_table, frame)))
        for line in _missing(frame):
            console.print(f"[dim]{escape(line)}[/]")
    console.print(f"[dim]in brackets: {100 * confidence:g} % intervals[/]")
    for line in _conclusions(run, folder, by, confidence):
        console.print(escape(line))
    if csv is not None:
        write_bytes(csv, _csv(frames, by).encode())
        echo(f"wrote {csv}")


def _conclusions(run: "RunPredictions", folder: Path, by: str | None, confidence: float) -> Iterator[str]:
    """What follows from the predictions of each method: its certificate, fairness beyond chance, and who gains."""
    from fedtilt.evaluation.certificate import Certificate
    from fedtilt.evaluation.gains import client_gains
    from fedtilt.evaluation.predictions import CLIENT
    from fedtilt.storage.predictions import read_predictions
    from fedtilt.storage.provenance import seed_folder
    from fedtilt.storage.run_folder import baselines_folder

    for name, predictions in run.by_method.items():
        if predictions.numbers is None:
            grouping = predictions.label_group if by in (None, CLIENT) else by
            certificate = Certificate.of(*predictions.counts(grouping), confidence, grouping)
            yield f"{name}: {certificate}; {certificate.about_unseen}"
    for name, predictions in run.by_method.items():
        for line in _beyond_chance(predictions, by, confidence, run.fixed_shares):
            yield f"{name}: {line}"
    baselines = read_predictions(baselines_folder(seed_folder(folder, run.seed)), run.round) if by == CLIENT else {}
    if "local" in baselines:
        for name, predictions in run.by_method.items():
            gains = client_gains(predictions, baselines["local"], "local", confidence)
            yield f"{name}: {gains.in_words('every client alone')}"


def _beyond_chance(predictions: "Predictions", by: str | None, confidence: float, fixed_shares: bool) -> Iterator[str]:
    """The spread of the true scores over clients, over groups and in clients; by client, those off the mean.

    Without a line where it is unknown.
    """
    from fedtilt.data.groups import in_words
    from fedtilt.evaluation.metrics import GroupCounts, counts_of_chance
    from fedtilt.evaluation.predictions import CLIENT
    from fedtilt.evaluation.scores import scores_of
    from fedtilt.evaluation.true_spread import client_estimates, true_spread, true_spread_in_clients

    label_group = predictions.label_group
    chance = counts_of_chance({label_group: GroupCounts(*predictions.counts(label_group))}, fixed_shares)
    score = scores_of(chance.sums)[0]
    spreads = {"clients": true_spread(*chance, confidence, fixed_shares=fixed_shares)}
    if by not in (None, CLIENT):
        (sums, total), what = predictions.counts(by), in_words(by)
        spreads[what] = true_spread(sums.sum(0)[:, None], total.sum(0)[:, None], confidence)
        spreads[f"the {what} of a client"] = true_spread_in_clients(sums, total, confidence)
    for what, spread in spreads.items():
        if spread.clients > 1 and not math.isnan(spread.estimate):
            observed, by_chance, estimate, low, high = (f"{value:.4g}" for value in spread[:5])
            interval = f"no interval, as {spread.reason}" if spread.reason else f"[{low}, {high}]"
            yield (
                f"std of the {score.title} over {what} {observed} {score.spread_unit}".rstrip()
                + f", {by_chance} by chance; of the true {score.title} {estimate} {interval}"
            )
    found = client_estimates(*chance, confidence, fixed_shares=fixed_shares)
    names, error = predictions.groupings[CLIENT].names, (1 - confidence) / 2  # of each side
    if by == CLIENT and not math.isnan(found.mean):
        for side, chosen in (("below", found.below(error)), ("above", found.above(error))):
            clients = [
                f"{names[i]} {score.text(float(found.estimate[i]), 1)} [{found.low[i]:.1f}, {found.high[i]:.1f}]"
                for i in chosen.nonzero().flatten().tolist()
            ]
            yield f"{side} the mean beyond chance, shrunk towards it: {', '.join(clients[:_MAX_ROWS]) or 'none'}"


def _fitting(width: int, build: Callable[[str, str], Table]) -> Table:
    """A table with values and intervals in one line or, on a narrow terminal, in two, with less space if need be.

    On a very narrow one, the ends of intervals are on a line each.
    """
    for separator, end, padding in ((" ", " ", None), ("\n", " ", None), ("\n", " ", 0), ("\n", "\n", 0)):
        table = build(separator, end)
        if padding is not None:
            table.padding = padding
        if fits(table, width):
            break
    return table


def _overall_table(frames: "dict[str, MetricsFrame]", separator: str, end: str) -> Table:
    out = text_table(["metric"], map(escape, frames), compact=True)
    for name in next(iter(frames.values())).metrics:
        cells = [_with_interval(frame.overall_estimates[name], separator, end) for frame in frames.values()]
        out.add_row(_title(name).replace(" ", separator), *cells)
    return out


def _group_tables(frame: "MetricsFrame", width: int) -> list[Table]:
    """All metrics by group, in as many tables as the width of the terminal needs."""
    tables: list[Table] = []
    names: list[str] = []
    for name in frame.metrics:
        if names and fits(wider := _group_table(frame, [*names, name]), width):
            tables[-1], names = wider, [*names, name]
        else:
            tables, names = [*tables, _group_table(frame, [name])], [name]
    return tables


def _group_table(frame: "MetricsFrame", names: Sequence[str]) -> Table:
    titles = [_title(name).replace(" ", "\n") for name in names]
    out = text_table([escape(str(frame.by))], [*titles, "samples"], compact=True)
    for number, (group, row) in enumerate(frame.group_estimates.items()):
        if number == _MAX_ROWS:
            out.add_row(f"… {len(frame.group_estimates) - _MAX_ROWS} more: --csv FILE")
            break
        samples = str(next(iter(row.values())).samples)
        out.add_row(escape(group), *(_number(row[name].value) for name in names), samples)
    return out


def _gap_table(frame: "MetricsFrame", separator: str, end: str) -> Table:
    out = text_table(["metric"], ["overall", "lowest", "highest", "difference", "ratio"], compact=True)
    for name in frame.metrics:
        gap = frame.gap(name)
        out.add_row(
            _title(name).replace(" ", separator),
            _with_interval(frame.overall_estimates[name], separator, end),
            f"{_number(gap.minimum)}{separator}({escape(gap.lowest)})",
            f"{_number(gap.maximum)}{separator}({escape(gap.highest)})",
            _number(gap.difference) + _interval(gap.difference_low, gap.difference_high, separator, end),
            _number(gap.ratio) + _interval(gap.ratio_low, gap.ratio_high, separator, end),
        )
    return out


def _title(name: str) -> str:
    from fedtilt.evaluation.decision_metrics import METRICS

    return METRICS[name].title


def _missing(frame: "MetricsFrame") -> list[str]:
    """Where a value or an interval is missing, and why: a line per metric and reason."""
    from fedtilt.evaluation.decision_metrics import METRICS
    from fedtilt.evaluation.intervals import NO_SAMPLES

    reasons = Counter(
        (name, estimate.reason) for row in frame.group_estimates.values() for name, estimate in row.items()
    )
    lines = []
    for (name, reason), count in reasons.items():
        what = "value" if reason in (METRICS[name].undefined, NO_SAMPLES) else "interval"
        if reason:
            lines.append(f"{_title(name)}: no {what} for {count} of {len(frame.group_estimates)}: {reason}")
    return lines


def _with_interval(estimate: "Estimate", separator: str, end: str) -> str:
    return _number(estimate.value) + _interval(estimate.interval.low, estimate.interval.high, separator, end)


def _interval(low: float, high: float, separator: str, end: str) -> str:
    return "" if math.isnan(low) or math.isnan(high) else f"{separator}\\[{_number(low)},{end}{_number(high)}]"


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def _csv(frames: "dict[str, MetricsFrame]", by: str | None) -> str:
    """All values and intervals."""
    header = ["method", by or "samples", "metric", "value", "low", "high", "interval", "samples", "missing"]
    rows: list[Sequence[object]] = [header]
    for method, frame in frames.items():
        for row in frame.rows():
            rows.append([method, *(None if cell != cell else cell for cell in row)])  # NaN is an empty field
    return csv_text(rows)
