"""Run a function or a command of fedtilt in a forked process, and judge how it ended."""

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fedtilt

_SECONDS = 120  # of one process


@dataclass(frozen=True)
class Outcome:
    """How a process ended."""

    code: int  # its exit code; negative: the signal that killed it
    output: str
    errors: str

    @property
    def error(self) -> str:
        """The error message of a command that refused its input; empty if there is none."""
        lines = [line for line in self.errors.splitlines() if line.startswith("error: ")]
        return lines[0] if len(lines) == 1 else ""

    def problem(self, names: Path | None = None) -> str | None:
        """What is wrong with this end; None for a success, and for exit code 2 with an error message of one line.

        Args:
            names: a folder; the message must name it or a file in it
        """
        if self.code == 0:
            return None
        if self.code != 2:
            return f"exit code {self.code}: {_last_line(self.errors)}"
        if not self.error or "Traceback" in self.errors:
            return f"exit code 2 without one line that says why: {_last_line(self.errors)}"
        if names is not None and str(names) not in self.error:
            return f"the message names no file: {self.error}"
        return None


def _last_line(text: str) -> str:
    """The last line, and of a traceback the last place in fedtilt."""
    lines, found = text.strip().splitlines() or [""], places(text)
    return lines[-1][:300] + (f" ({found[-1]})" if found else "")


def places(stack: str) -> list[str]:
    """The lines of fedtilt in the text of a stack, as FILE:LINE; a clone may have the package's name."""
    package = Path(fedtilt.__file__).parent
    found = [(Path(file), line) for file, line in re.findall(r'File "([^"]*)", line (\d+)', stack)]
    return [f"{file.relative_to(package)}:{line}" for file, line in found if file.is_relative_to(package)]


def run_in_child(function: Callable[[], object]) -> Outcome:
    """Run a function in a forked process; its exit code is that of `SystemExit`, and 1 for other exceptions.

    A process that takes longer than two minutes is ended by SIGALRM.
    """
    streams = [os.memfd_create(name) for name in ("output", "errors")]
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        code = 1
        signal.alarm(_SECONDS)
        try:
            for number, stream in zip((1, 2), streams, strict=True):
                os.dup2(stream, number)
            sys.stdout, sys.stderr = (os.fdopen(n, "w", errors="backslashreplace", closefd=False) for n in (1, 2))
            code = _exit_code(function)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    texts = []
    for stream in streams:
        os.lseek(stream, 0, os.SEEK_SET)
        with os.fdopen(stream, "rb") as file:
            texts.append(file.read().decode(errors="replace"))
    return Outcome(os.waitstatus_to_exitcode(status), *texts)


def _exit_code(function: Callable[[], object]) -> int:
    try:
        function()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def command(*arguments: str | Path) -> Callable[[], None]:
    """A function that runs a command line of fedtilt."""

    def run() -> None:
        from fedtilt.cli import main

        sys.argv = ["fedtilt", *map(str, arguments)]
        main()

    return run
