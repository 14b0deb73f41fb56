"""The chosen settings of every method: the table data/chosen.toml, which the results of tuning determine."""

import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.files import write_bytes
from reproduction.experiment import Experiment, Results
from reproduction.experiments.tuning import choices, stage_grids, trials
from reproduction.results import ResultsFolder
from reproduction.runner import load_results, quick_only
from reproduction.training import Setting

Chosen = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Setting]]]]  # data → condition → validation → method

FILE = Path(__file__).parents[1] / "data" / "chosen.toml"
_HEADER = """\
# The settings of every method with the highest accuracy on validation data, clean and with the outliers of the
# training data. Written by `python -m reproduction.experiments.chosen RESULTS` from the results of
# `python -m reproduction tuning` and `static-tuning`.
"""


@cache
def chosen_settings() -> Chosen:
    """The table of chosen settings."""
    return tomllib.loads(FILE.read_text("utf-8"))


def choose_settings(tuning: Experiment, results: Results) -> Chosen:
    """The settings that the results of `tuning` determine, for the data sets and conditions with results."""
    table: dict[str, Any] = {}
    for (data, condition, method, split), choice in choices(tuning, results).items():
        grids = [trials(stage_grids(tuning.settings, data, stage)) for stage in ("trials", "extended_trials")]
        setting = next(grid[method][choice.trial] for grid in grids if choice.trial in grid.get(method, {}))
        chosen = {key: value for key, value in setting.items() if key != "preset"}
        table.setdefault(data, {}).setdefault(condition, {}).setdefault(split, {})[method] = chosen
    return table


def as_toml(table: Chosen) -> str:
    """The table as TOML.

    >>> as_toml({"mnist": {"clean": {"validation": {"ditto": {"mu": 0.1}}}}}).splitlines()[-2:]
    ['[mnist.clean.validation]', 'ditto = { mu = 0.1 }']
    """
    lines = [_HEADER.rstrip()]
    for data, conditions in table.items():
        for condition, splits in conditions.items():
            for split, methods in splits.items():
                lines += ["", f"[{data}.{condition}.{split}]"]
                lines += [f"{method} = {_inline(setting)}" for method, setting in methods.items()]
    return "\n".join(lines) + "\n"


def _inline(setting: Setting) -> str:
    return "{ " + ", ".join(f"{key} = {_value(value)}" for key, value in setting.items()) + " }"


def _value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def write_chosen(results: Path, file: Path) -> None:
    """Write the table that the results in a folder determine."""
    folder = ResultsFolder(results)
    table, quick, found = dict(chosen_settings()), quick_only(folder), False
    for name in ("tuning", "static-tuning"):
        for data, conditions in choose_settings(*load_results(folder, name, quick=quick)).items():
            table[data], found = {**table.get(data, {}), **conditions}, True
    if not found:
        raise InputError(f"{results} has no results of tuning with all seeds; run python -m reproduction tuning")
    write_bytes(file, as_toml(table).encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m reproduction.experiments.chosen RESULTS")
    write_chosen(Path(sys.argv[1]), FILE)
