"""Parts whose cases are tests: replies, poisoned updates, flips in what sites keep, requests to the port they see."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from chaos.report import Report

REPLIES = ("tests/flower/test_rejections.py", "tests/flower/test_reply_size.py", "tests/flower/test_membership.py")
POISONS = ("tests/rounds/test_screening.py",)
SITES = ("tests/flower/test_damage.py", "tests/flower/site/test_states.py")
PORT = ("tests/flower/deploy/test_proxy.py",)


def suite(part: str, files: tuple[str, ...]) -> Callable[[Path, float], Report]:
    """A part that runs these files of tests; the slow ones only with scale 1 or more."""

    def run(folder: Path, scale: float) -> Report:
        results = folder / "results.xml"
        selected = "not cuda" if scale >= 1 else "not cuda and not slow"
        command = [sys.executable, "-m", "pytest", "-q", "-m", selected, f"--junitxml={results}", *files]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        report = Report(part)
        if not results.exists():
            report.failures.append(f"the tests did not start: {process.stdout[-300:]}{process.stderr[-300:]}")
            return report
        for case in ElementTree.parse(results).iter("testcase"):
            report.count("cases")
            for end in case:
                if end.tag in ("failure", "error", "skipped"):
                    report.failures.append(f"{case.get('name')}: {end.tag}, {(end.get('message') or '')[:200]}")
        return report

    return run
