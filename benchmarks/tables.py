"""Reading tables: the time of a CSV file beside pandas, and the memory of a large Parquet file."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet

import fedtilt as ft
from benchmarks.measure import ROOT, best_times
from benchmarks.options import make_result_parser, save_result
from fedtilt.data.tables.reader import open_reader


def csv_times(folder: Path, rows: int, columns: int, repeats: int) -> dict[str, float]:
    """Seconds to read a CSV of numbers, a label and a client column."""
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(rng.normal(size=(rows, columns - 2)), columns=[f"x{n}" for n in range(columns - 2)])
    frame["site"], frame["y"] = rng.integers(0, 10, rows), rng.integers(0, 2, rows)
    path = folder / "table.csv"
    frame.to_csv(path, index=False)

    def read_on_one_thread() -> None:
        with pandas.option_context("mode.max_threads", 1):
            pandas.read_csv(path)

    def read_every_column() -> None:
        reader = open_reader(path, ["y", "site"])
        for name in reader.header:
            reader.read(name)

    return best_times(
        {
            "pandas.read_csv": lambda: pandas.read_csv(path),
            "on one thread": read_on_one_thread,
            "open_reader": read_every_column,
            "ft.data.table": lambda: ft.data.table(path, target="y", client="site"),
        },
        repeats,
    )


def write_parquet(path: Path, rows: int, columns: int, chunk: int = 500_000) -> int:
    """Write a Parquet file of float64 numbers and a label, and return its size in memory."""
    rng, size, writer = np.random.default_rng(0), 0, None
    for start in range(0, rows, chunk):
        count = min(chunk, rows - start)
        data = {f"x{n}": rng.normal(size=count) for n in range(columns - 1)} | {"y": rng.integers(0, 2, count)}
        table = pyarrow.table(data)
        size += table.nbytes
        writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()
    return size


def peak_of_reading(path: Path) -> tuple[float, int]:
    """Seconds and the growth of the largest resident memory, in bytes, while a new process reads the file."""
    command = [sys.executable, "-m", "benchmarks.tables", "--read", str(path)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()
    return float(lines[0]), int(lines[1])


def read(path: str) -> None:
    """Read a Parquet file; print the seconds and the growth of the largest resident memory."""
    Path("/proc/self/clear_refs").write_text("5")  # the largest so far becomes that of now
    before, start = largest_resident(), time.perf_counter()
    ft.data.table(path, target="y")
    print(time.perf_counter() - start, largest_resident() - before)


def largest_resident() -> int:
    """The largest resident memory of this process so far, in bytes."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    parser = make_result_parser(__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the Parquet file")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        read(arguments.read)
        return
    of_csv, rows, repeats = 150_000, arguments.rows, arguments.repeats
    if arguments.quick:
        of_csv, rows, repeats = 1_000, 1_000, 1
    with tempfile.TemporaryDirectory() as folder:
        times = csv_times(Path(folder), of_csv, 30, repeats)
        print(f"CSV of {of_csv:,} x 30:")
        for name, seconds in times.items():
            print(f"  {name:16} {seconds:6.3f} s = {seconds / times['pandas.read_csv']:.2f} x pandas.read_csv")
        path = Path(folder) / "table.parquet"
        size = write_parquet(path, rows, 20)
        seconds, peak = peak_of_reading(path)
        print(f"Parquet of {rows:,} x 20, {size / 2**20:,.0f} MiB in memory:")
        print(f"  ft.data.table {seconds:.1f} s, peak {peak / 2**20:,.0f} MiB = {peak / size:.2f} x the table's size")
    result = {"csv_seconds": times, "parquet_bytes": size, "peak_bytes": peak, "parquet_seconds": seconds}
    save_result(arguments, "tables", result)


if __name__ == "__main__":
    main()
