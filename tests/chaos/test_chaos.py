"""A short version of `make chaos`; its kills, replies, poisons and requests to the port are tests of their own."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from chaos import bit_flips, caches, fuzz, io_faults, large_table
from chaos.__main__ import main
from chaos.child import Outcome, run_in_child
from chaos.report import Report, table
from chaos.suites import ACCESS, CLUSTER, POISONS, PORT, REPLIES, SITES, suite
from fedtilt.errors import InputError

ROOT = Path(__file__).parents[2]


def test_faults_of_the_disk(tmp_path: Path) -> None:
    report = io_faults.run(tmp_path, 0.25, 1, ["schema"])
    assert report.failures == []
    assert report.figures["faults"] >= 6
    assert report.figures["kills at a call"] >= 1
    assert 0 < report.figures["refused"] <= report.figures["faults"]


@pytest.mark.slow
def test_faults_of_the_disk_during_a_run(tmp_path: Path) -> None:
    report = io_faults.run(tmp_path, 0.05, 2, ["run", "resume"])
    assert report.failures == []
    assert report.figures["faults"] >= 30


def test_bit_flips(tmp_path: Path) -> None:
    report = bit_flips.run(tmp_path, 0.005, 1)
    assert report.failures == []
    assert report.figures["flips"] == 4 + 2 + 2 + 2


def test_damaged_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", "")  # restored afterwards
    report = caches.run(tmp_path, 0.02, 1)
    assert report.failures == []
    assert report.figures["damages"] >= 60


@pytest.mark.slow
def test_a_large_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one, whose rows are all there; if the program may need no memory itself, reading it takes too much."""
    monkeypatch.setattr(large_table, "PROGRAM", 0)
    report = large_table.run(tmp_path, 0.01, 1, ["data show"])
    assert report.figures["rows"] > 5000
    assert large_table.TIMES < report.figures["MiB of memory for data show"] < 700
    (failure,) = report.failures
    assert "MiB of memory for 1 MiB of CSV, above" in failure


def test_fuzz(tmp_path: Path) -> None:
    report = fuzz.run(tmp_path, 0.0005, 1)
    assert report.failures == []
    assert report.figures["inputs"] >= 100


def test_the_tests_that_are_parts_exist() -> None:
    assert all((ROOT / file).exists() for file in (*REPLIES, *POISONS, *SITES, *PORT, *CLUSTER, *ACCESS))


def test_a_wrong_outcome_is_found() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    def refuse() -> None:
        print("error: /data/a.csv is empty; add rows", file=sys.stderr)
        sys.exit(2)

    failed, refused = run_in_child(fail), run_in_child(refuse)
    assert failed.problem() == "exit code 1: ZeroDivisionError"
    assert refused.problem() is None
    assert refused.problem(Path("/data/b.csv")) == "the message names no file: error: /data/a.csv is empty; add rows"
    assert "without one line" in str(Outcome(2, "", "error: one\nerror: two\n").problem())


def test_the_fuzzer_finds_a_traceback(tmp_path: Path) -> None:
    from chaos.fuzz.runner import fuzz as run_target

    def target(folder: Path):
        def read(rng) -> None:
            if rng.random() < 0.5:
                raise InputError("no")
            raise KeyError("a")

        return read

    report = Report("fuzz")
    run_target("target", target, 40, tmp_path, report, workers=2)
    assert report.figures["inputs"] == 40
    assert report.failures
    assert all("KeyError: 'a'" in failure for failure in report.failures)


def test_what_cannot_run_is_skipped_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ("no_such_module",)
    assert suite("port", PORT, needs)(tmp_path, 1.0, 1).skipped == ["all tests: no_such_module is not installed"]
    monkeypatch.setattr("chaos.fuzz.targets.TARGETS", {"replies": (lambda folder: None, 9, needs)})
    report = fuzz.run(tmp_path, 1.0, 1)
    assert report.skipped == ["replies: no_such_module is not installed"]
    assert report.line() == "fuzz: nothing was run; 0 wrong, 1 skipped"


def test_a_worker_that_crashes_costs_one_input(tmp_path: Path) -> None:
    from chaos.fuzz.runner import fuzz as run_target

    def target(folder: Path):
        numbers = iter(range(9) if folder.name == "start-0" else range(3, 9))

        def read(rng) -> None:
            if next(numbers) == 2:
                os.kill(os.getpid(), signal.SIGKILL)

        return read

    report = Report("fuzz")
    run_target("target", target, 9, tmp_path, report, workers=1)
    assert report.figures == {"inputs": 8, "refused": 0}
    assert report.failures == ["target: input 2: the worker ended with SIGKILL (crash)"]


def test_an_input_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from chaos.fuzz import runner

    monkeypatch.setattr(runner, "_SECONDS", 0.2)
    report = Report("fuzz")
    runner.fuzz("target", lambda folder: lambda rng: threading.Event().wait(), 1, tmp_path, report, workers=1)
    assert report.failures == ["target: input 0: the worker ended with exit code 1 (crash)"]


def test_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["chaos", "--scale", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "--scale 0.0 is not above 0" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["chaos", "--jobs", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "--jobs 0 is not at least 1" in capsys.readouterr().err
    wrong = {
        "good": lambda *_: Report("good", {"cases": 2}, skipped=["replies: flwr is not installed"]),
        "bad": lambda *_: Report("bad", {}, ["a traceback"]),
    }
    monkeypatch.setattr("chaos.__main__.PARTS", wrong)
    for part, code in (("good", 0), ("bad", 1)):
        monkeypatch.setattr(sys, "argv", ["chaos", "--only", part])
        assert main() == code
    out = capsys.readouterr().out
    assert "good: 2 cases; 0 wrong, 1 skipped" in out
    assert "  skipped: replies: flwr is not installed\n" in out
    assert "  a traceback\n" in out


def test_the_table() -> None:
    reports = [Report("kills", {"kills": 1000}), Report("fuzz", {"inputs": 5}, ["specs: KeyError"], ["replies"])]
    assert table(reports, [1.2, 3.0]).splitlines()[2:] == [
        "| kills | 1,000 kills | 0 | 0 | 1 |",
        "| fuzz | 5 inputs | 1 | 1 | 3 |",
    ]
