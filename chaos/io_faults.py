"""Let every call on files fail, one after another: a full, broken, slow or read-only disk, a signal, a kill.

`faults.c` is preloaded into processes that test a part of the calls of one scenario each: `python -m chaos.io_faults
FOLDER SHARE SCENARIO NUMBER PROCESSES`. Such a process imports torch once and forks a child for every case.
"""

import contextlib
import ctypes
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chaos.child import Outcome, command, run_in_child
from chaos.processes import missing, run_modules
from chaos.report import Report
from chaos.small_run import METHOD, ROUNDS, TABLE, write_spec
from fedtilt.errors import InputError

MODES = {
    "disk full": 1, "I/O error": 2, "short read or write": 3, "read-only": 4, "interrupted": 5, "killed": 6, "torn": 7,
}  # fmt: skip
_KILLS = ("killed", "torn")
_HARMLESS = ("short read or write", "interrupted")  # the program calls again


@dataclass(frozen=True)
class Scenario:
    """A command on files, what it makes, and how to continue after it failed.

    Args:
        prepare: puts the files that it needs into a folder
        arguments: the command line
        again: the command line after a failure
        result: what the command has made, to compare; None if there is nothing
        needs: modules that fedtilt imports late for it
    """

    prepare: Callable[[Path], None]
    arguments: Callable[[Path], list[str | Path]]
    again: Callable[[Path], list[str | Path]]
    result: Callable[[Path], object]
    needs: tuple[str, ...] = ()


def _run(folder: Path) -> list[str | Path]:
    return ["run", write_spec(folder), "--out", folder / "run", "--quiet"]


def _run_or_resume(folder: Path) -> list[str | Path]:
    is_started = all((folder / "run" / name).exists() for name in ("run.json", "spec.toml"))
    return ["resume", folder / "run", "--quiet"] if is_started else _run(folder)


def _finished_run(folder: Path) -> None:
    _succeed(_run(folder))


def _interrupted_run(folder: Path) -> None:
    """A run of which the last round is missing."""
    _finished_run(folder)
    (folder / "run" / "results.json").unlink()
    shutil.rmtree(folder / "run" / "seed-0" / "checkpoints" / f"round-{ROUNDS:05d}")


def _model_of(run: Path) -> object:
    """The metrics of a run and its models, shared and personal; None if it is not finished."""
    from fedtilt.runs.export import export_model

    if not (run / "results.json").exists():
        return None
    models = {client: export_model(run, METHOD, client).tensors for client in (None, "1", "2")}
    as_bytes = {
        f"{client} {name}": t.numpy().tobytes() for client, model in models.items() for name, t in model.items()
    }
    return as_bytes | {"metrics": (run / "seed-0" / "metrics.jsonl").read_bytes()}


def _bytes_of(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).read_bytes() if (folder / name).exists() else None


def _exported(folder: Path) -> object:
    """The tensors and the metadata, whose order in the file changes from process to process."""
    from fedtilt.files import read_metadata, read_tensors

    path = folder / "model.safetensors"
    if not path.exists():
        return None
    return read_metadata(path), {name: t.numpy().tobytes() for name, t in read_tensors(path).items()}


def _export(folder: Path) -> list[str | Path]:
    return ["export", folder / "run", "--method", METHOD, "--client", "0", "--to", folder / "model.safetensors"]


def _report(folder: Path) -> list[str | Path]:
    return ["report", folder / "run", "--out", folder / "page.html"]


def _force(path: Path) -> list[str | Path]:
    """An option of the same command again: a file that is there is complete."""
    return ["--force"] if path.exists() else []


def _table(folder: Path) -> None:
    (folder / "table.csv").write_text(TABLE)


def _schema(folder: Path) -> list[str | Path]:
    return ["data", "schema", folder / "table.csv", "--target", "y", "--to", folder / "schema.json"]


SCENARIOS = {
    "run": Scenario(lambda folder: None, _run, _run_or_resume, lambda folder: _model_of(folder / "run")),
    "resume": Scenario(
        _interrupted_run,
        lambda folder: ["resume", folder / "run", "--quiet"],
        _run_or_resume,
        lambda folder: _model_of(folder / "run"),
    ),
    "export": Scenario(_finished_run, _export, lambda f: _export(f) + _force(f / "model.safetensors"), _exported),
    "report": Scenario(_finished_run, _report, _report, _bytes_of("page.html")),
    "schema": Scenario(_table, _schema, lambda f: _schema(f) + _force(f / "schema.json"), _bytes_of("schema.json")),
}


def run(folder: Path, scale: float, jobs: int, scenarios: Sequence[str] = tuple(SCENARIOS)) -> Report:
    """Test a share of the calls of these commands, each in processes with `faults.c`."""
    report = Report("I/O faults")
    if shutil.which("cc") is None:
        report.skipped.append("all commands: there is no C compiler, cc")
        return report
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    modules = {}
    for name in scenarios:
        if reason := missing(*SCENARIOS[name].needs):
            report.skipped.append(f"{name}: {reason}")
            continue
        for number in range(jobs):
            arguments = ("chaos.io_faults", str(folder), str(scale), name, str(number), str(jobs))
            modules[f"{name}, process {number}"] = arguments
    for name, values in run_modules(modules, jobs, {"LD_PRELOAD": str(library)}):
        if isinstance(values, str):
            report.failures.append(f"{name}: {values}")
            continue
        report.failures += values["failures"]
        for what, number in values["figures"].items():
            report.count(what, number)
    return report


def _succeed(arguments: list[str | Path]) -> None:
    """Run a command in this process: children share what it imports and compiles."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            command(*arguments)()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{arguments} failed without a fault") from None


class _Faults:
    """The functions of `faults.c`, which is loaded into this process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.fault_calls.restype = ctypes.c_long

    def calls(self, arguments: list[str | Path], folder: Path) -> dict[str, int]:
        """How many calls a command makes on files in the folder that each mode can let fail."""
        counted = folder.parent / "calls.json"

        def count() -> None:
            self._library.fault_arm(os.fsencode(f"{folder}/"), 0, ctypes.c_long(0))
            try:
                command(*arguments)()
            finally:
                counts = {mode: self._library.fault_calls(number) for mode, number in MODES.items()}
                counted.write_text(json.dumps(counts))

        run_in_child(count)
        return dict(json.loads(counted.read_text()))

    def run(self, arguments: list[str | Path], folder: Path, mode: str, number: int) -> Outcome:
        """Run a command whose call `number` on a file in the folder fails."""

        def armed() -> None:
            self._library.fault_arm(os.fsencode(f"{folder}/"), MODES[mode], ctypes.c_long(number))
            command(*arguments)()

        return run_in_child(armed)


def _test_scenario(name: str, folder: Path, share: float, process: int, processes: int) -> Report:
    """Test a share of the calls of a command; of these, one of `processes` equal parts."""
    report = Report("I/O faults")
    scenario, faults = SCENARIOS[name], _Faults()
    template, case = folder / "template", folder / "case"
    template.mkdir(parents=True)
    scenario.prepare(template)
    _succeed(scenario.arguments(_copy(template, case)))
    expected = scenario.result(case)
    calls = faults.calls(scenario.arguments(_copy(template, case)), case)
    step = max(1, round(1 / share))
    cases = [(mode, call) for mode in MODES for call in range(1 + step // 2, calls[mode] + 1, step)]
    for mode, call in cases[process::processes]:
        outcome = faults.run(scenario.arguments(_copy(template, case)), case, mode, call)
        report.count("kills at a call" if mode in _KILLS else "faults")
        report.count("refused", int(outcome.code == 2))
        if problem := _problem(scenario, case, mode, outcome, expected):
            report.failures.append(f"{name}, {mode} at call {call} of {calls[mode]}: {problem}")
    return report


def _problem(scenario: Scenario, case: Path, mode: str, outcome: Outcome, expected: object) -> str | None:
    """What is wrong after a fault; None if the result is right, or the command refused and works without the fault."""
    if mode in _KILLS and outcome.code != -9:
        return f"was not killed: exit code {outcome.code}"
    if mode not in _KILLS and (problem := outcome.problem(case)):
        return problem
    if mode in _HARMLESS and outcome.code:
        return f"the command stopped: {outcome.error}"
    try:
        result = scenario.result(case)
    except InputError as error:
        return f"the result cannot be read: {error}"
    if outcome.code == 0 and result != expected:
        # a checkpoint that cannot be read is damaged: an older one is used, or a client starts again
        return None if "note: " in outcome.errors else "the result is wrong, and nothing says so"
    if outcome.code and result not in (None, expected):
        return "the result is half written"
    again = run_in_child(command(*scenario.again(case)))
    if again.code:
        return f"cannot continue afterwards: {again.problem() or again.error}"
    if scenario.result(case) != expected:
        return "going on afterwards gives another result"
    left = ", ".join(path.name for path in case.rglob("*.part"))
    return f"going on afterwards leaves partial files: {left}" if left else None


def _copy(template: Path, case: Path) -> Path:
    shutil.rmtree(case, ignore_errors=True)
    return Path(shutil.copytree(template, case))


def main(folder: Path, scale: float, scenario: str, process: int, processes: int) -> None:
    """Test a part of one scenario, and print the report as JSON."""
    import torch

    torch.set_num_threads(1)
    report = _test_scenario(scenario, folder / f"{scenario}-{process}", scale, process, processes)
    print(json.dumps({"figures": report.figures, "failures": report.failures}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
