"""`python -m tests.promises`: a Markdown table of every promise, its worst cells first."""

import argparse
import importlib
from pathlib import Path

from tests.promises.promise import Row


def main() -> None:
    """Measure the promises of every module here that has `measure`, and print the worst cell of each, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description=__doc__)
    parser.add_argument("--draws", type=int, default=300, help="simulated data sets of a cell")
    parser.add_argument("--only", help="the name of one module, such as prediction_sets")
    parser.add_argument("--all", action="store_true", help="all cells, not only the worst one of each promise")
    options = parser.parse_args()
    names = [path.stem for path in sorted(Path(__file__).parent.glob("test_*.py"))]
    rows: list[Row] = []
    for name in names:
        if options.only in (None, name.removeprefix("test_")):
            measure = getattr(importlib.import_module(f"tests.promises.{name}"), "measure", None)
            found = measure(options.draws) if measure else []
            rows += [row for row in found if isinstance(row, Row)]
    print(table(rows, every=options.all))


def margin(row: Row) -> float:
    """How far a row is on the right side of its bar, in percent."""
    sign, bar = (1 if row.bar.startswith("≥") else -1), float(row.bar.split()[1])
    return sign * (row.measured - bar) + 2 * row.standard_error


def table(rows: list[Row], *, every: bool) -> str:
    """The rows in Markdown, by promise from the worst cell to the best."""
    lines = ["| promise | cells | worst cell | bar | measured | kept |", "| --- | --- | --- | --- | --- | --- |"]
    for promise in dict.fromkeys(row.promise for row in rows):
        cells = sorted((row for row in rows if row.promise == promise), key=margin)
        for row in cells if every else cells[:1]:
            measured = f"{row.measured:.1f} ± {row.standard_error:.1f} %"
            kept = "yes" if row.kept else "**no**"
            lines.append(f"| {promise} | {len(cells)} | {row.cell} | {row.bar} | {measured} | {kept} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
