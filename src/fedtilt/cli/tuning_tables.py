"""The tables of a search: the settings on validation data, the recommendation, and both settings on test data."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from rich import box
from rich.table import Table

from fedtilt.cli.console import Console, escape
from fedtilt.cli.tables import fits
from fedtilt.tuning.axes import format_setting, format_value
from fedtilt.tuning.objectives import Objective
from fedtilt.tuning.result import TunedSetting, Tuning
from fedtilt.tuning.tune import RECOMMENDED

_MAX_ROWS = 12


def print_tuning(console: Console, tuning: Tuning, folder: Path) -> None:
    """Print what a search found.

    Args:
        console: where to print
        tuning: the result
        folder: where the recommended spec is
    """
    rows = _compared(tuning)
    seeds = f", mean over {len(tuning.seeds)} seeds" if len(tuning.seeds) > 1 else ""
    table, left_out = _settings_table(tuning, rows[:_MAX_ROWS], console.width)
    if rows:  # otherwise the budget ended before any
        console.print(
            f"\n[bold]{escape(tuning.method)} on validation data[/] after {tuning.compared_rounds} of {tuning.rounds} "
            f"rounds{seeds}, the best by {escape(tuning.by.title)} first:"
        )
        console.print(table)
    for line in _remarks(tuning, len(rows), left_out):
        console.print(f"[dim]{escape(line)}[/]", highlight=False)
    if tuning.is_possible:
        console.print(f"\n[bold]recommended[/]: {escape(format_setting(tuning.setting))}", highlight=False)
        console.print(f"  {escape(tuning.reason)}", highlight=False)
        command = f"  fedtilt run {shlex.quote(str(folder / RECOMMENDED))}"
        console.print(command, highlight=False, soft_wrap=True, markup=False)
    else:
        console.print(f"\n[bold]nothing to recommend[/]: {escape(tuning.reason)}", highlight=False)
    if tuning.test:
        rounds = "" if tuning.compared_rounds == tuning.rounds else f" after {tuning.compared_rounds} rounds"
        console.print(f"\n[bold]Test data[/]{rounds}, which was not used to choose:")
        console.print(_test_table(tuning))


def _compared(tuning: Tuning) -> list[str]:
    """The settings that were trained furthest, the best first."""
    names = [name for name, row in tuning.settings.items() if row.rounds == tuning.compared_rounds]
    by = tuning.by
    return sorted(names, key=lambda name: -by.better(tuning.settings[name].validation[by.name], 0.0))


def _settings_table(tuning: Tuning, names: Sequence[str], width: int) -> tuple[Table, Sequence[Objective]]:
    """A row for every setting; on a narrow terminal, its values are in one column, and the last objectives left out."""
    axes = {axis: [format_value(tuning.settings[name].setting[axis]) for name in names] for axis in tuning.setting}
    one = {"setting": [format_setting(tuning.settings[name].setting) for name in names]}
    tables = [(_rows(tuning, names, axes, tuning.objectives), tuning.objectives[:0])]
    for count in range(len(tuning.objectives), 0, -1):
        tables.append((_rows(tuning, names, one, tuning.objectives[:count]), tuning.objectives[count:]))
    return next((table for table in tables if fits(table[0], width)), tables[-1])


def _rows(
    tuning: Tuning, names: Sequence[str], axes: Mapping[str, Sequence[str]], objectives: Sequence[Objective]
) -> Table:
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for axis in axes:
        out.add_column(escape(axis), justify="left" if axis == "setting" else "right", overflow="fold")
    for title in [*map(_title, objectives), "better than\nyours by", "Pareto\nfront"]:
        out.add_column(title, justify="right", no_wrap=True)
    for i, name in enumerate(names):
        row = tuning.settings[name]
        cells = [values[i] for values in axes.values()]
        cells += [_format(row.validation[objective.name], objective) for objective in objectives]
        cells += ["yours" if name == tuning.method else _gain(row, tuning.by)]
        cells += ["yes" if name in tuning.pareto_front else ""]
        out.add_row(*map(escape, cells), style="bold green" if name == tuning.chosen and tuning.is_possible else None)
    return out


def _title(objective: Objective) -> str:
    return escape(objective.title).replace(" fairness", "\nfairness")


def _format(value: float, objective: Objective) -> str:
    return f"{value:.2f}" if objective.unit else f"{value:.4g}"


def _gain(row: TunedSetting, by: Objective) -> str:
    if row.gain is None or row.error is None:
        return ""
    sign = "+" if row.gain >= 0 else "-"
    return f"{sign}{_format(abs(row.gain), by)} ± {_format(row.error, by)}"


def _remarks(tuning: Tuning, compared: int, left_out: Sequence[Objective]) -> list[str]:
    lines = []
    if compared:
        lines.append(
            "±: one standard error, paired by client. Pareto front: no other setting is better in one objective "
            "without being worse in another."
        )
    if left_out:
        titles = ", ".join(objective.title for objective in left_out)
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
        lines.append(f"diverged and left out: {', '.join(tuning.diverged)}")
    if tuning.out_of_time:
        lines.append(f"The budget ended the search after {tuning.seconds:.0f} s.")
    return lines


def _test_table(tuning: Tuning) -> Table:
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    out.add_column("setting", overflow="fold")
    for objective in tuning.objectives:
        out.add_column(_title(objective), justify="right", no_wrap=True)
    for name, values in tuning.test.items():
        title = "yours" if name == tuning.method else "recommended"
        if tuning.is_unchanged and tuning.is_possible:
            title = "yours, recommended"
        cells = []
        for objective in tuning.objectives:
            by_seed = values[objective.name]
            spread = f" ± {_format(stdev(by_seed), objective)}" if len(by_seed) > 1 else ""
            cells.append(_format(fmean(by_seed), objective) + spread)
        out.add_row(title, *cells)
    return out
