"""Run all parts, print a line for each and a table at the end; the exit code is 1 if anything is wrong."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from chaos import bit_flips, caches, fuzz, io_faults, kills, large_table, suites
from chaos.report import Report, table

PARTS: dict[str, Callable[[Path, float, int], Report]] = {
    "kills": kills.run,
    "io-faults": io_faults.run,
    "bit-flips": bit_flips.run,
    "replies": suites.suite("malformed replies", suites.REPLIES, ("flwr",)),
    "poisons": suites.suite("poisoned updates", suites.POISONS),
    "sites": suites.suite("bit flips on sites", suites.SITES, ("flwr",)),
    "port": suites.suite("requests to the port", suites.PORT, ("flwr",)),
    "access": suites.suite("intruders and malicious servers", suites.ACCESS, ("flwr",)),
    "cluster": suites.suite("killed workers and nodes", suites.CLUSTER, ("ray",), alone=True),
    "caches": caches.run,
    "large-table": large_table.run,
    "fuzz": fuzz.run,
}
_SHOWN = 20  # failures of a part, and what it skips


def main() -> int:
    """Parse the command line, run the parts, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(PARTS), help="run this part; repeatable")
    parser.add_argument("--scale", type=float, default=1.0, help="the share of the cases to run (default: 1)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help=f"processes at once (default: one per core, {cores})")
    parser.add_argument("--folder", type=Path, help="where to write (default: memory, /dev/shm, if there is one)")
    options = parser.parse_args()
    if options.scale <= 0:
        parser.error(f"--scale {options.scale} is not above 0")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs} is not at least 1")
    memory = Path("/dev/shm")
    root = options.folder or (memory if memory.is_dir() else None)
    reports, seconds = [], []
    for part in options.only or PARTS:
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="chaos-", dir=root) as folder:
            report = PARTS[part](Path(folder), options.scale, options.jobs)
        reports.append(report)
        seconds.append(time.monotonic() - start)
        print(f"{report.line()} ({seconds[-1]:.0f} s)", flush=True)
        _show(report.failures, "")
        _show(report.skipped, "skipped: ")
    print(f"\n{table(reports, seconds)}")
    return int(any(report.failures for report in reports))


def _show(lines: list[str], title: str) -> None:
    for line in lines[:_SHOWN]:
        print(f"  {title}{line}", flush=True)
    if len(lines) > _SHOWN:
        print(f"  {title}and {len(lines) - _SHOWN} more")


if __name__ == "__main__":
    sys.exit(main())
