"""Run a target with many inputs in forked workers, and collect what is neither a success nor an `InputError`.

A worker that ends or hangs in native code costs the input that it was reading: the next worker continues after it.
"""

import faulthandler
import json
import mmap
import os
import random
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.child import places
from chaos.report import Report
from fedtilt.errors import InputError

Read = Callable[[random.Random], object]  # makes one input and reads it
Target = Callable[[Path], Read]  # a folder → a function that makes and reads one input in it
_SECONDS = 60  # for one input
_PREPARATION = 600  # seconds
_MEMORY = 6 * 2**30  # bytes that a worker may add
_EXAMPLES = 3  # of one kind of failure
_CRASHES = 20  # of the workers of one target, then it stops


def fuzz(name: str, target: Target, inputs: int, folder: Path, report: Report, workers: int) -> None:
    """Run a target with this many inputs; the input of a number is the same in every run."""
    parts = [range(worker, inputs, workers) for worker in range(min(workers, inputs))]
    running = [_Worker(name, target, part, folder / f"{name}-{worker}") for worker, part in enumerate(parts)]
    failures: dict[str, list[str]] = {}
    for worker in running:
        worker.finish()
        _, read, refused = worker.counts
        report.count("inputs", read)
        report.count("refused", refused)
        for kind, text in worker.failures():
            examples = failures.setdefault(kind, [])
            if len(examples) < _EXAMPLES:
                examples.append(f"{name}: {text} ({kind})")
    report.failures += [text for texts in failures.values() for text in texts]


@dataclass
class _Worker:
    """A forked process that reads a part of the inputs of a target."""

    name: str
    target: Target
    numbers: Sequence[int]
    folder: Path
    crashes: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        # inputs begun, read and refused, in memory that outlives the process
        self.counts = memoryview(mmap.mmap(-1, 24)).cast("q")
        self._start()

    def _start(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.child = os.fork()
        if self.child:
            return
        code = 1
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
            folder = self.folder / f"start-{len(self.crashes)}"
            folder.mkdir()
            faulthandler.dump_traceback_later(_PREPARATION, exit=True)
            self._work(self.target(folder))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _work(self, read_one: Read) -> None:
        with (self.folder / "failures.jsonl").open("a") as failures, (self.folder / "stack.txt").open("w") as stack:
            for number in self.numbers[self.counts[0] :]:
                self.counts[0] += 1
                faulthandler.dump_traceback_later(_SECONDS, exit=True, file=stack)
                is_refused, problem = _read(read_one, random.Random(f"{self.name}/{number}"))
                self.counts[1] += 1
                self.counts[2] += is_refused
                if problem is not None:
                    kind, text = problem
                    failures.write(json.dumps([kind, f"input {number}: {text[:300]}"]) + "\n")
                    failures.flush()
            faulthandler.cancel_dump_traceback_later()

    def finish(self) -> None:
        """Wait for the end; a worker that crashes is started again at the next input."""
        while True:
            _, status = os.waitpid(self.child, 0)
            code = os.waitstatus_to_exitcode(status)
            if code == 0:
                return
            started = self.counts[0]
            if started == 0:
                self.crashes.append(("preparation", f"the worker could not start: it ended with {_end(code)}"))
                return
            self.crashes.append(
                (self._place(), f"input {self.numbers[started - 1]}: the worker ended with {_end(code)}")
            )
            if started == len(self.numbers):
                return
            if len(self.crashes) == _CRASHES:
                left = len(self.numbers) - started
                self.crashes.append(("too many crashes", f"{left} inputs were not read"))
                return
            self._start()

    def _place(self) -> str:
        """The last line of fedtilt in the stack of a worker that was too slow."""
        found = places((self.folder / "stack.txt").read_text())
        return f"more than {_SECONDS} s in {found[0]}" if found else "crash"

    def failures(self) -> list[tuple[str, str]]:
        """The kind and the text of everything that went wrong."""
        path = self.folder / "failures.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [*((kind, text) for kind, text in map(json.loads, lines)), *self.crashes]


def _end(code: int) -> str:
    return f"exit code {code}" if code > 0 else signal.Signals(-code).name


def _read(read_one: Read, rng: random.Random) -> tuple[bool, tuple[str, str] | None]:
    """Whether one input was refused, and what is wrong with that: its kind and a text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_one(rng)
    except InputError as error:
        is_one_line = len(str(error).splitlines()) == 1
        return True, None if is_one_line else ("a message that is not one line", repr(str(error)))
    except BaseException as error:
        return True, (_place(error), f"{type(error).__name__}: {error}")
    return False, None


def _place(error: BaseException) -> str:
    """The exception and the last line of fedtilt that it went through."""
    found = places("".join(traceback.format_tb(error.__traceback__)))
    return f"{type(error).__name__} in {found[-1] if found else 'outside of fedtilt'}"
