"""Processes of their own for cases that fork, kill or preload a library."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_modules(
    modules: Mapping[str, Sequence[str]], jobs: int, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Run modules, `jobs` at once; yields the name of each with the JSON object that it prints, or why it failed.

    Args:
        modules: name → the module and its arguments
        jobs: the number of processes at once
        environment: variables beside those of this process
    """

    def run(arguments: Sequence[str]) -> dict[str, Any] | str:
        process = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=os.environ | dict(environment or {}),
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode:
            return f"exit code {process.returncode}: {(process.stderr.strip().splitlines() or [''])[-1][:500]}"
        return dict(json.loads(process.stdout))

    with ThreadPoolExecutor(jobs) as pool:
        yield from zip(modules, pool.map(run, modules.values()), strict=True)


def missing(*modules: str) -> str:
    """Which of these modules are not installed, as a reason to skip a case; empty if all are.

    >>> missing("json"), missing("json", "no_such_module")
    ('', 'no_such_module is not installed')
    """
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed" if absent else ""
