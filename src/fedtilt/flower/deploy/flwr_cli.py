"""Run Flower's command line, `flwr`, and read what it prints."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError


def run_flwr(env: Mapping[str, str], *arguments: str, timeout: float = 120) -> str:
    """Run `flwr`; returns its output."""
    program = Path(sys.executable).parent / "flwr"
    command = [str(program), *arguments]
    try:
        done = subprocess.run(command, env=dict(env), capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise InputError(f"flwr {arguments[0]} has no answer after {timeout:.0f} s; is the SuperLink up?") from None
    if done.returncode:
        message = " ".join(re.sub("[╭╮╰╯─│]", " ", done.stderr or done.stdout).split())
        raise InputError(f"flwr {arguments[0]} failed: {message[-400:]}")
    return done.stdout


def run_flwr_json(env: Mapping[str, str], *arguments: str) -> Any:
    """Run `flwr`; returns its JSON output."""
    output = run_flwr(env, *arguments, "--format", "json")
    try:
        return json.loads(output[output.index("{") :])
    except ValueError:
        raise InputError(f"flwr {arguments[0]} did not print JSON: {output[-200:]!r}") from None


def status_text(status: str) -> str:
    """Flower's status of a run in plain words."""
    words = {
        "finished:completed": "finished",
        "finished:failed": "stopped",
        "finished:stopped": "stopped with flwr stop",
    }
    return words.get(status, status)
