"""`python -m tests.promises`: a Markdown table of every promise with its worst cell."""

import argparse
import importlib
import re
import sys
import time
from pathlib import Path

from tests.promises.promise import Row


def main() -> None:
    """Measure the promises of every module here that has `measure`, and print the worst cell of each, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.promises", description=__doc__)
    parser.add_argument(
        "--draws", type=int, default=100, help="simulated data sets of a cell; four times for the worst"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--only", help="the name of one module, such as prediction_sets")
    parser.add_argument("--all", action="store_true", help="all cells, not only the worst one of each promise")
    options = parser.parse_args()
    print("| promise | cells | worst cell | bar | measured | kept |\n| --- | --- | --- | --- | --- | --- |")
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if options.only in (None, path.stem.removeprefix("test_")):
            start = time.perf_counter()
            rows = importlib.import_module(f"tests.promises.{path.stem}").measure(options.draws, options.workers)
            print(lines(rows, every=options.all), flush=True)
            print(f"{path.stem}: {time.perf_counter() - start:.0f} s", file=sys.stderr)


def lines(rows: list[Row], *, every: bool) -> str:
    """The rows in Markdown, by promise: first those that were measured again, from the worst to the best."""
    found = []
    for promise in dict.fromkeys(row.promise for row in rows):
        cells = sorted((row for row in rows if row.promise == promise), key=lambda row: (not row.again, row.margin))
        for row in cells if every else cells[:1]:
            measured = f"{row.measured:.1f} ± {row.standard_error:.1f} {row.bar.split()[2]}"
            broken = sum(not cell.kept for cell in cells)
            kept = "yes" if not broken else f"**not in {broken}**"
            cell = re.sub(
                r"\b1 (client|method|row|sample)s", r"1 \1", f"{row.cell}, {row.note}" if row.note else row.cell
            )
            found.append(f"| {promise} | {len(cells)} | {cell} | {row.bar} | {measured} | {kept} |")
    return "\n".join(found)


if __name__ == "__main__":
    main()
