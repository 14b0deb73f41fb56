"""Kill runs with SIGKILL at random moments and resume them: they end with the bits of an uninterrupted run."""

from pathlib import Path

from chaos.processes import run_modules
from chaos.report import Report

CASES = {"plain": 800, "local": 120, "average": 120}  # of tests/helpers/kill_and_resume.py, with their kills
_KILLS = 40  # of one process


def run(folder: Path, scale: float, jobs: int) -> Report:
    """Kill the runs of every case."""
    processes = {}
    for case, kills in CASES.items():
        left = max(2, round(kills * scale))
        for number in range(-(-left // _KILLS)):
            name = f"{case} {number}"
            processes[name] = (
                "tests.helpers.kill_and_resume", str(folder / name), str(min(_KILLS, left)), case, str(number),
            )  # fmt: skip
            left -= _KILLS
    report = Report("kills")
    for name, summary in run_modules(processes, jobs):
        if isinstance(summary, str):
            report.failures.append(f"{name}: {summary}")
            continue
        report.count("kills", summary["kills"])
        report.count("bit-identical runs", summary["finished"])
    return report
