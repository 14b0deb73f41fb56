"""`--help` of every command: without the seconds that PyTorch takes to import, and with the names of the code."""

import json
import subprocess
import sys

import pytest
import typer.main

from fedtilt.cli import app
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.tuning.tune import TRIALS

HEAVY = (
    "torch",
    "numpy",
    "pyarrow",
    "sklearn",
    "flwr",
    "cryptography",
    "fedtilt.spec",
    "fedtilt.runs",
    "fedtilt.report",
)


def _commands(command, path=()):
    """The names that lead to a command and to each of its own."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


COMMANDS = list(_commands(typer.main.get_command(app)))


def test_no_help_imports_what_is_slow():
    code = (
        "import contextlib, json, sys\n"
        "from fedtilt.cli import app\n"
        "for names in json.loads(sys.argv[1]):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        app([*names, '--help'])\n"
        "    found = [name for name in json.loads(sys.argv[2]) if name in sys.modules]\n"
        "    assert not found, (names, found)\n"
    )
    arguments = json.dumps(COMMANDS), json.dumps(HEAVY)
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Train every method of a spec on one federation" in done.stdout
    for text in ("--node-config", "--back-to", "The seed of the run"):  # of deploy up, deploy run and metrics
        assert text in done.stdout


@pytest.mark.parametrize("names", [names for names in COMMANDS if names], ids=" ".join)
def test_every_command_and_option_has_a_help(names):
    command = typer.main.get_command(app)
    for name in names:
        command = command.commands[name]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None) or parameter.name == "help", parameter.name


def test_numbers_and_names_in_help_texts_are_those_of_the_code():
    commands = typer.main.get_command(app).commands
    options = {name: {p.name: p for p in commands[name].params} for name in ("metrics", "tune")}
    assert f": {', '.join(METRICS)}." in options["metrics"]["metric"].help
    assert f"(default: {TRIALS})" in options["tune"]["trials"].help
