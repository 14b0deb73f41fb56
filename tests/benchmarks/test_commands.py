"""Every benchmark that the documentation names runs, with --quick."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "benchmarks/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
SLOW = (
    "rounds",
    "sites",
    "cluster overhead",
    "cluster memory",
    "cluster states",
    "cluster aggregation",
)  # start processes
LONG = ("audit", "gpu", "memory", "others", "scale", "screening", "tables")
CANNOT_RUN = re.compile(
    r"(this benchmark|--device cuda) needs (a CUDA device, and this machine has none"
    r"|\w+, which is not installed; pip install .+)\n"
)


MODULES = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main(" in path.read_text()}
# up to the end of the code between backticks, a comment, the next command or the end of the code block
COMMAND = re.compile(r"python -m\s+benchmarks\.([^`#]+?)(?=`|#|\n\n|\n.*python|\n```)")


def documented_commands() -> list[str]:
    """What follows `python -m benchmarks.` on all pages, and modules that are only in the table of all.

    Each once: of two that differ in --out alone, the one with it.
    """
    found = {
        " ".join(text.replace("--quick", "").split()) for page in PAGES for text in COMMAND.findall(page.read_text())
    }
    found |= MODULES - {command.split()[0] for command in found}
    return sorted(command for command in found if not any(other.startswith(f"{command} --out ") for other in found))


COMMANDS = documented_commands()
QUICK = [command for command in COMMANDS if not command.startswith(SLOW)]
# with `make test`, one of each module, but of those that take seconds
FIRST = {command.split()[0]: command for command in reversed(QUICK) if command.split()[0] not in LONG}.values()


def case(command: str):
    marks = [] if command in FIRST else [pytest.mark.slow]
    if command.startswith("divisions --data") and "FEDTILT_DATA" not in os.environ:
        marks.append(pytest.mark.skip(reason="needs MNIST; FEDTILT_DATA names its folder"))
    return pytest.param(command, marks=marks)


def test_the_readme_names_every_benchmark() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "benchmarks/README.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(MODULES)


@pytest.mark.parametrize("command", [case(command) for command in QUICK])
def test_a_documented_command_runs_with_quick(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = shlex.split(command)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *arguments, "--quick"])
    threads, before, code = torch.get_num_threads(), records(), 0
    try:
        importlib.import_module(f"benchmarks.{name}").main()
    except SystemExit as error:
        code = error.code
    finally:
        torch.set_num_threads(threads)  # some benchmarks set it
    printed = capsys.readouterr()
    if code:
        assert (code, printed.out) == (2, "")
        assert CANNOT_RUN.fullmatch(printed.err)
    out = [arguments[arguments.index("--out") + 1]] if "--out" in arguments and not code else []
    assert [path.name for path in tmp_path.iterdir()] == out
    assert records() == before


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(SLOW)])
def test_a_documented_command_that_starts_processes_runs_with_quick(command: str) -> None:
    before = records()
    subprocess.run([sys.executable, "-m", *shlex.split(f"benchmarks.{command} --quick")], cwd=ROOT, check=True)
    assert records() == before


def records() -> dict[Path, int]:
    """When the results and the pages were last written."""
    paths = [*(ROOT / "bench-results").glob("*.json"), *(ROOT / "docs").glob("*.md")]
    return {path: path.stat().st_mtime_ns for path in paths}
