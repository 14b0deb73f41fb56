"""The examples run, and their results show what their docstrings say."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def output_of(name: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_mislabelled() -> None:
    plain, tilted = (float(part.split()[-1]) for part in output_of("mislabelled").split("%")[:2])
    assert tilted > plain + 3


def test_round_by_round() -> None:
    lines = output_of("round_by_round").splitlines()
    assert lines[0].startswith("round  1: clients")
    assert float(lines[-2].split("worst ")[1].split()[0]) > 80
    assert 80 < float(lines[-1].split(": ")[1].split()[0]) <= 100


def test_own_table() -> None:
    lines = output_of("own_table").splitlines()
    methods = lines[0].split()[1:]
    rare_class = [
        dict(zip(methods, map(float, line.split()[-3:]), strict=True)) for line in lines if " ill " in f"{line} "
    ]
    assert len(rare_class) == 3  # hospitals
    assert all(row["fedtilt"] > max(row["fedavg"], row["ditto"]) for row in rare_class)


def test_frozen_backbone() -> None:
    head, whole = (line.split() for line in output_of("frozen_backbone").splitlines())
    assert [line[0] for line in (head, whole)] == ["new_head:", "from_the_start:"]
    assert float(head[1]) > float(whole[1])
    assert [line[-3] for line in (head, whole)] == ["258", "5154"]


def test_lora() -> None:
    before, after = output_of("lora").splitlines()
    assert float(before.split()[1]) < 10
    assert float(after.split()[1]) > 70
    assert after.endswith("1320 of 8970 numbers travel")


def test_three_levels() -> None:
    lines = output_of("three_levels").splitlines()
    rows = {line.split()[0]: [float(value) for value in line.split()[1:]] for line in lines[2:5] + lines[8:10]}
    none, by_class, by_class_and_ward = range(3)
    assert rows["ill"][by_class] > rows["ill"][none]
    assert rows["children"][by_class_and_ward] > max(rows["children"][:2]) + 5
    assert lines[-1].startswith("worst ward of a hospital: none ")
