"""Run a target with many inputs in forked workers, and collect what is neither a success nor an `InputError`."""

import faulthandler
import json
import os
import random
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from chaos.report import Report
from fedtilt.errors import InputError

Read = Callable[[random.Random], object]  # makes one input and reads it
Target = Callable[[Path], Read]  # a folder → a function that makes and reads one input in it
_SECONDS = 20  # for one input
_MEMORY = 6 * 2**30  # bytes that a worker may add
_EXAMPLES = 3  # of one kind of failure


def fuzz(name: str, target: Target, inputs: int, folder: Path, report: Report, workers: int) -> None:
    """Run a target with so many inputs; the input of a number is the same in every run."""
    numbers = [range(worker, inputs, workers) for worker in range(workers)]
    children = [
        _start(name, target, part, folder / f"{name}-{worker}") for worker, part in enumerate(numbers) if len(part)
    ]
    for child, results in children:
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        values = json.loads(results.read_text()) if code == 0 else {"accepted": 0, "refused": 0, "failures": {}}
        report.count("inputs", values["accepted"] + values["refused"])
        report.count("refused", values["refused"])
        report.failures += [f"{name}: {text}" for texts in values["failures"].values() for text in texts]
        if code:
            report.failures.append(f"{name}: the worker ended with {code}")


def _start(name: str, target: Target, numbers: range, folder: Path) -> tuple[int, Path]:
    folder.mkdir(parents=True)
    results = folder / "results.json"
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
            signal.signal(signal.SIGALRM, _too_slow)
            results.write_text(json.dumps(_work(name, target(folder), numbers)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child, results


def _work(name: str, read_one: Read, numbers: range) -> dict[str, object]:
    accepted = refused = 0
    failures: dict[str, list[str]] = {}
    for number in numbers:
        signal.alarm(_SECONDS)
        faulthandler.dump_traceback_later(3 * _SECONDS, exit=True)  # a call that no signal interrupts
        problem = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read_one(random.Random(f"{name}/{number}"))
            accepted += 1
        except InputError as error:
            refused += 1
            if len(str(error).splitlines()) != 1:
                problem = "a message that is not one line", repr(str(error))
        except BaseException as error:
            refused += 1
            problem = _place(error), f"{type(error).__name__}: {error}"
        signal.alarm(0)
        if problem is not None:
            kind, text = problem
            examples = failures.setdefault(kind, [])
            if len(examples) < _EXAMPLES:
                examples.append(f"input {number}: {text[:300]} ({kind})")
    faulthandler.cancel_dump_traceback_later()
    return {"accepted": accepted, "refused": refused, "failures": failures}


def _too_slow(*_: object) -> None:
    raise TimeoutError(f"an input takes more than {_SECONDS} s")


def _place(error: BaseException) -> str:
    """The exception and the last line of fedtilt that it went through."""
    places = [f for f in traceback.extract_tb(error.__traceback__) if "/fedtilt/" in f.filename]
    where = f"{places[-1].filename.rpartition('/fedtilt/')[2]}:{places[-1].lineno}" if places else "outside of fedtilt"
    return f"{type(error).__name__} in {where}"
