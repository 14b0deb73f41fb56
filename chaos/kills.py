"""Kill runs with SIGKILL at random moments and resume them: they end with the bits of an uninterrupted run."""

import json
import subprocess
import sys
from pathlib import Path

from chaos.report import Report

CASES = {"plain": 800, "local": 120, "average": 120}  # of tests/helpers/kill_and_resume.py, with their kills


def run(folder: Path, scale: float) -> Report:
    """Kill the runs of every case, all cases at once."""
    report = Report("kills")
    processes = {
        case: subprocess.Popen(
            [
                sys.executable, "-m", "tests.helpers.kill_and_resume", str(folder / case),
                str(max(2, round(kills * scale))), case,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for case, kills in CASES.items()
    }  # fmt: skip
    for case, process in processes.items():
        output, errors = process.communicate()
        if process.returncode:
            report.failures.append(f"{case}: {(errors.strip().splitlines() or [''])[-1]}")
            continue
        summary = json.loads(output)
        report.count("kills", summary["kills"])
        report.count("runs with the same bits", summary["finished"])
    return report
