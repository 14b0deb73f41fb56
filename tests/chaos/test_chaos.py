"""A short version of `make chaos`; its kills, replies, poisons and requests to the port are tests of their own."""

import subprocess
import sys
from pathlib import Path

from chaos import bit_flips, fuzz, io_faults
from chaos.child import Outcome, run_in_child
from chaos.report import Report, table
from chaos.suites import POISONS, PORT, REPLIES
from fedtilt.errors import InputError

ROOT = Path(__file__).parents[2]


def test_faults_of_the_disk(tmp_path: Path) -> None:
    report = io_faults.test(tmp_path, 0.01)
    assert report.failures == []
    assert report.figures["faults"] >= 20
    assert report.figures["kills at a call"] >= 5
    assert 0 < report.figures["refused"] <= report.figures["faults"]


def test_bit_flips(tmp_path: Path) -> None:
    report = bit_flips.test(tmp_path, 0.005)
    assert report.failures == []
    assert report.figures["flips"] == 5 + 4 + 4


def test_fuzz(tmp_path: Path) -> None:
    report = fuzz.test(tmp_path, 0.0005)
    assert report.failures == []
    assert report.figures["inputs"] >= 100


def test_the_tests_that_are_parts_exist() -> None:
    assert all((ROOT / file).exists() for file in (*REPLIES, *POISONS, *PORT))


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
    from chaos.fuzz.runner import fuzz as run

    def target(folder: Path):
        def read(rng) -> None:
            if rng.random() < 0.5:
                raise InputError("no")
            raise KeyError("a")

        return read

    report = Report("fuzz")
    run("target", target, 40, tmp_path, report)
    assert report.figures["inputs"] == 40
    assert report.failures
    assert all("KeyError: 'a'" in failure for failure in report.failures)


def test_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chaos", "--scale", "0"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert "--scale 0.0 is not above 0" in process.stderr


def test_the_table() -> None:
    reports = [Report("kills", {"kills": 1000}), Report("fuzz", {"inputs": 5}, ["specs: KeyError"])]
    assert table(reports, [1.2, 3.0]).splitlines()[2:] == [
        "| kills | 1,000 kills | 0 | 1 |",
        "| fuzz | 5 inputs | 1 | 3 |",
    ]
