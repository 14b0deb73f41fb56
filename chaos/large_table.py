"""A table of many rows: `fedtilt data show` and `run` read all of it, in a known multiple of its size as memory.

Scale 1 is a CSV file of 64 MiB, scale 16 one of 1 GiB.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from chaos.processes import ROOT
from chaos.report import Report

MIB = 64  # of the file, with scale 1
_CLIENTS, _NUMBERS, _ROWS = 20, 8, 20_000  # rows: of what is written at once
PROGRAM = 1000  # MiB that every command may need, whatever it reads
TIMES = 6.0  # the memory of a command above that, compared with the size of the file
_SPEC = """
name = "large"
device = "cpu"
[data]
file = "{file}"
target = "ill"
client = "site"
[model]
name = "logistic"
[train]
rounds = 1
participation = 1.0
epochs = 1
batch_size = 1000
lr = 0.1
[[methods]]
preset = "fedavg"
"""

# a process of its own: a child's peak begins with the memory of the process that starts it
_WITH_PEAK = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(code)
"""


def run(folder: Path, scale: float, jobs: int, names: Sequence[str] = ("data show", "run")) -> Report:
    """Write the table, run the commands one after the other, and compare rows and memory."""
    file, report = folder / "large.csv", Report("large table")
    rows = write_table(file, round(MIB * 2**20 * scale))
    size = file.stat().st_size / 2**20
    report.count("MiB of CSV", round(size))
    report.count("rows", rows)
    (folder / "large.toml").write_text(_SPEC.format(file=file))
    commands = {
        "data show": ("data", "show", str(file), "--target", "ill", "--client", "site"),
        "run": ("run", str(folder / "large.toml"), "--out", str(folder / "out")),
    }
    for name in names:
        start = time.monotonic()
        code, memory, output = _measure(commands[name], folder / "peak.txt")
        report.count(f"MiB of memory for {name}", round(memory))
        report.count(f"seconds for {name}", round(time.monotonic() - start))
        if code != 0:
            report.failures.append(f"{name}: exit code {code}: {output[-300:]}")
        elif name == "data show" and f"{rows:,}" not in output:
            report.failures.append(f"{name}: the output does not have the {rows:,} rows: {output[:300]}")
        elif memory > (most := PROGRAM + TIMES * size):
            report.failures.append(f"{name}: {memory:.0f} MiB of memory for {size:.0f} MiB of CSV, above {most:.0f}")
    return report


def write_table(file: Path, size: int) -> int:
    """Write a CSV file of at least `size` bytes, and return its number of rows."""
    rng, rows = np.random.default_rng(0), 0
    options = csv.WriteOptions(include_header=False, quoting_style="needed")
    with file.open("wb") as stream:
        stream.write(",".join(["site", "seen", "ward", *(f"x{n}" for n in range(_NUMBERS)), "ill"]).encode() + b"\n")
        while stream.tell() < size:
            count = min(_ROWS, max(100, size // 100))
            numbers = rng.normal(size=(_NUMBERS, count)).round(6)
            days = np.datetime64("2020-01-01") + rng.integers(0, 2000, count)
            columns = {
                "site": pa.array(np.char.add("site-", rng.integers(0, _CLIENTS, count).astype(str))),
                "seen": pa.array(days.astype("datetime64[D]")),
                "ward": pa.array(rng.choice(["north", "south", "west"], count)),
                **{f"x{n}": pa.array(column) for n, column in enumerate(numbers)},
                "ill": pa.array(np.where(numbers[0] + rng.normal(size=count) > 0, "yes", "no")),
            }
            csv.write_csv(pa.table(columns), stream, options)
            rows += count
    return rows


def _measure(command: tuple[str, ...], peak: Path) -> tuple[int, float, str]:
    """The exit code of a command of fedtilt, its peak memory in MiB, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", _WITH_PEAK, str(peak), sys.executable, "-m", "fedtilt", *command], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"COLUMNS": "200"}, check=False,
    )  # fmt: skip
    return done.returncode, int(peak.read_text()) / 2**10, done.stdout.decode(errors="replace")
