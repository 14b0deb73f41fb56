"""Write the table of chosen settings, data/chosen.toml, from the results of `tuning` and `static-tuning`.

    python -m reproduction tuning --out RESULTS
    python -m reproduction static-tuning --out RESULTS
    python -m reproduction.tuned.choose RESULTS

A data set under a condition without results in RESULTS keeps its settings; those of digits come from a quick run.
"""

import sys
from pathlib import Path

from fedtilt.errors import InputError
from fedtilt.files import write_bytes
from reproduction.results import ResultsFolder
from reproduction.runner import load_results, quick_only
from reproduction.tuned.chosen import FILE, as_toml, choose_settings, chosen_settings


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
        raise SystemExit("usage: python -m reproduction.tuned.choose RESULTS")
    write_chosen(Path(sys.argv[1]), Path(str(FILE)))
