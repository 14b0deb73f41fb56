"""`fedtilt tune`: search a method's settings on validation data, and recommend one."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedtilt.cli import options
from fedtilt.cli.console import Console, escape, fits, print_lines, text_table
from fedtilt.cli.run import new_folder, train_and_print

if TYPE_CHECKING:
    from fedtilt.runs.callback import Callback
    from fedtilt.tuning.objectives import Objective
    from fedtilt.tuning.result import TunedSetting, Tuning

_MAX_ROWS = 12


def tune(
    spec: options.Spec = "digits",
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="A setting and its values: a list such as lam=-2,0,1 or aggregator=tilted,median, or a range such as "
            "lr=0.001..0.1; repeatable (default: tau=0,1,10,50 and lam=-2,0,1,10).",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="OBJECTIVE",
            help="What to improve: accuracy (mae for numbers), worst, client_fairness, class_fairness, group:COLUMN; "
            "with rare classes auprc, auroc, f1, balanced_accuracy.",
        ),
    ] = None,
    at_least: Annotated[
        list[str] | None,
        typer.Option(metavar="OBJECTIVE=NUMBER", help="What the setting has to reach, such as accuracy=0.9."),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option(metavar="OBJECTIVE=NUMBER", help="What it may not exceed, such as client_fairness=5."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="The method (default: the first that has these settings).")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="The most settings (default: 64); a larger grid is sampled.")
    ] = None,
    halving: Annotated[bool, typer.Option(help="Whether weak settings are stopped early.")] = True,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop after this time, such as 5m, with what there is.")
    ] = None,
    settings: options.Settings = None,
    out: options.Out = None,
    data_dir: options.DataDir = None,
    device: options.Device = None,
    cluster: options.Cluster = None,
    seed: options.Seed = None,
    seeds: options.Seeds = None,
    log: options.Log = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
    as_json: options.AsJson = False,
) -> None:
    """Search a method's settings on validation data, and recommend one of them or the current one.

    Settings train together, and weak ones are stopped early. The recommended spec is written into the run folder.
    Validation data is a share of every client's training data; test data is not used to choose.
    """
    from fedtilt.runs.trackers import trackers_of
    from fedtilt.spec import load
    from fedtilt.tuning.axes import parse_axes
    from fedtilt.tuning.objectives import parse_bounds
    from fedtilt.tuning.tune import TRIALS, tune_spec

    base = load(
        spec, overrides=options.overrides_of(settings, data_dir, cluster), seed=seed, seeds=seeds, device=device
    )
    folder = out or new_folder(f"{base.name}-tune")
    trackers = trackers_of(log or [])

    def search(callbacks: "Sequence[Callback]") -> "Tuning":
        return tune_spec(
            base, folder, over=parse_axes(over or []), by=by, at_least=parse_bounds(at_least or [], "--at-least"),
            at_most=parse_bounds(at_most or [], "--at-most"), method=method, trials=trials or TRIALS, halving=halving,
            budget=budget, callbacks=[*trackers, *callbacks],
        )  # fmt: skip

    train_and_print(folder, search, print_tuning, quiet=quiet, verbose=verbose, as_json=as_json)


def print_tuning(console: Console, folder: Path, tuning: "Tuning", seconds: float = 0.0) -> None:
    """Print the settings on validation data, the recommendation, and both settings on test data."""
    from fedtilt.tuning.axes import format_setting
    from fedtilt.tuning.tune import RECOMMENDED

    rows = _compared(tuning)
    seeds = f", mean over {len(tuning.seeds)} seeds" if len(tuning.seeds) > 1 else ""
    table, omitted = _settings_table(tuning, rows[:_MAX_ROWS], console.width)
    if rows:  # otherwise the budget ended before any
        console.print(
            f"\n[bold]{escape(tuning.method)} on validation data[/] after {tuning.compared_rounds} of {tuning.rounds} "
            f"rounds{seeds}, in the order of {escape(tuning.by.title)}:"
        )
        console.print(table)
    for line in _remarks(tuning, len(rows), omitted):
        console.print(f"[dim]{escape(line)}[/]", highlight=False)
    if tuning.is_possible:
        console.print(f"\n[bold]recommended[/]: {escape(format_setting(tuning.setting))}", highlight=False)
        console.print(f"  {escape(tuning.reason)}", highlight=False)
        print_lines(console, f"  fedtilt run {shlex.quote(str(folder / RECOMMENDED))}")
    else:
        console.print(f"\n[bold]nothing to recommend[/]: {escape(tuning.reason)}", highlight=False)
    if tuning.test:
        rounds = "" if tuning.compared_rounds == tuning.rounds else f" after {tuning.compared_rounds} rounds"
        console.print(f"\n[bold]Test data[/]{rounds}, which was not used to choose:")
        console.print(_test_table(tuning))


def _compared(tuning: "Tuning") -> list[str]:
    """The settings that were trained furthest, the best first."""
    names = [name for name, row in tuning.settings.items() if row.rounds == tuning.compared_rounds]
    by = tuning.by
    return sorted(names, key=lambda name: -by.better(tuning.settings[name].validation[by.name], 0.0))


def _settings_table(tuning: "Tuning", names: Sequence[str], width: int) -> "tuple[Table, Sequence[Objective]]":
    """A row for every setting; on a narrow terminal, its values are in one column, and the last objectives omitted."""
    from fedtilt.tuning.axes import format_setting, format_value

    axes = {axis: [format_value(tuning.settings[name].setting[axis]) for name in names] for axis in tuning.setting}
    one = {"setting": [format_setting(tuning.settings[name].setting) for name in names]}
    tables = [(_rows(tuning, names, axes, tuning.objectives), tuning.objectives[:0])]
    for count in range(len(tuning.objectives), 0, -1):
        tables.append((_rows(tuning, names, one, tuning.objectives[:count]), tuning.objectives[count:]))
    return next((table for table in tables if fits(table[0], width)), tables[-1])


def _rows(
    tuning: "Tuning", names: Sequence[str], axes: Mapping[str, Sequence[str]], objectives: "Sequence[Objective]"
) -> Table:
    out = text_table(map(escape, axes), [*map(_title, objectives), "better than\nyours by", "Pareto\nfront"])
    for column in out.columns[: 0 if "setting" in axes else len(axes)]:
        column.justify = "right"
    for i, name in enumerate(names):
        row = tuning.settings[name]
        cells = [values[i] for values in axes.values()]
        cells += [objective.text(row.validation[objective.name]) for objective in objectives]
        cells += ["yours" if name == tuning.method else _gain(row, tuning.by)]
        cells += ["yes" if name in tuning.pareto_front else ""]
        out.add_row(*map(escape, cells), style="bold green" if name == tuning.chosen and tuning.is_possible else None)
    return out


def _title(objective: "Objective") -> str:
    return escape(objective.title).replace(" fairness", "\nfairness")


def _gain(row: "TunedSetting", by: "Objective") -> str:
    if row.gain is None:
        return ""
    gain, *ends = (f"{'+' if v >= 0 else '-'}{by.text(abs(v))}" for v in (row.gain, *(row.interval or ())))
    return f"{gain} ({' to '.join(ends)})" if ends else gain


def _remarks(tuning: "Tuning", compared: int, omitted: "Sequence[Objective]") -> list[str]:
    lines = []
    if compared:
        lines.append(
            "In brackets: 95 % intervals for all settings together, on validation rows. Pareto front: no other setting "
            "is better in one objective without being worse in another."
        )
    if omitted:
        titles = ", ".join(objective.title for objective in omitted)
        lines.append(f"Not in the table, for want of width: {titles}; results.json has all objectives.")
    stopped = len(tuning.settings) - compared
    if stopped:
        lines.append(
            f"{stopped} weaker settings were stopped early, which saved {tuning.saving:.0%} of the rounds of a full "
            f"search ({tuning.trained_rounds} instead of {len(tuning.settings) * tuning.rounds})."
        )
    if compared > _MAX_ROWS:
        lines.append(f"{compared - _MAX_ROWS} more settings are in results.json.")
    if tuning.diverged:
        lines.append(f"diverged: {', '.join(tuning.diverged)}")
    if tuning.out_of_time:
        lines.append(f"The budget ended the search after {tuning.seconds:.0f} s.")
    return lines


def _test_table(tuning: "Tuning") -> Table:
    out = text_table(["setting"], map(_title, tuning.objectives))
    for name, values in tuning.test.items():
        title = "yours" if name == tuning.method else "recommended"
        if tuning.is_unchanged and tuning.is_possible:
            title = "yours, recommended"
        cells = []
        for objective in tuning.objectives:
            by_seed = values[objective.name]
            spread = f" ± {objective.text(stdev(by_seed))}" if len(by_seed) > 1 else ""
            cells.append(objective.text(fmean(by_seed)) + spread)
        out.add_row(title, *cells)
    return out
