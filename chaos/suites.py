"""Parts whose cases are tests: replies, poisoned updates, files of sites, requests, dead nodes, who may run code."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from chaos.processes import ROOT, missing
from chaos.report import Report

REPLIES = ("tests/flower/test_rejections.py", "tests/flower/test_flwr_internals.py", "tests/flower/test_membership.py")
POISONS = ("tests/attacks/test_screening.py",)
SITES = ("tests/flower/test_damage.py", "tests/flower/test_site_files.py")
PORT = ("tests/flower/deploy/test_proxy.py",)
CLUSTER = ("tests/executors/test_ray_executor.py",)
ACCESS = (
    "tests/flower/deploy/test_guarded.py",
    "tests/flower/deploy/test_replays.py",
    "tests/flower/test_malicious_server.py",
)


def suite(
    part: str, files: tuple[str, ...], needs: tuple[str, ...] = (), *, alone: bool = False
) -> Callable[[Path, float, int], Report]:
    """A part that runs these files of tests, if the modules they need are installed; slow ones with scale 1 or more.

    Args:
        part: its name
        files: of tests
        needs: modules
        alone: one test at a time, because each starts processes for all cores
    """

    def run(folder: Path, scale: float, jobs: int) -> Report:
        report = Report(part)
        if reason := missing("pytest", "hypothesis", *needs):
            report.skipped.append(f"all tests: {reason}")
            return report
        results = folder / "results.xml"
        selected = "not cuda" if scale >= 1 else "not cuda and not slow"
        parallel = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 and not alone and not missing("xdist") else []
        command = [sys.executable, "-m", "pytest", "-q", "-m", selected, f"--junitxml={results}", *parallel, *files]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if not results.exists():
            report.failures.append(f"the tests did not start: {process.stdout[-300:]}{process.stderr[-300:]}")
            return report
        for case in ElementTree.parse(results).iter("testcase"):
            ends = {end.tag: end.get("message") or "" for end in case}
            if "skipped" in ends:
                report.skipped.append(f"{case.get('name')}: {ends['skipped'][:200]}")
                continue
            report.count("cases")
            for tag in ends.keys() & {"failure", "error"}:
                report.failures.append(f"{case.get('name')}: {tag}, {ends[tag][:200]}")
        return report

    return run
