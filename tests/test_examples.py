"""The examples run as they are."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed(name: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_mislabelled() -> None:
    plain, tilted = (float(part.split()[-1]) for part in printed("mislabelled").split("%")[:2])
    assert tilted > plain + 3


def test_round_by_round() -> None:
    lines = printed("round_by_round").splitlines()
    assert lines[0].startswith("round  1: clients")
    assert float(lines[-2].split("worst ")[1].split()[0]) > 80
    assert 80 < float(lines[-1].split(": ")[1].split()[0]) <= 100


def test_own_table() -> None:
    lines = printed("own_table").splitlines()
    methods = lines[0].split()[1:]
    rare = [dict(zip(methods, map(float, line.split()[-3:]), strict=True)) for line in lines if " ill " in f"{line} "]
    assert len(rare) == 3  # hospitals
    assert all(row["fedtilt"] > max(row["fedavg"], row["ditto"]) for row in rare)
