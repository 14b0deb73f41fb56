"""`--help` of every command: complete, and without the seconds that PyTorch takes to import."""

import os
import subprocess
import sys

import pytest

from fedtilt.cli import _COMMANDS, _declared_command, import_command
from fedtilt.evaluation.decision_metrics import METRICS
from fedtilt.tuning.tune import TRIALS


def _help_texts(command, name="fedtilt"):
    """The help of a command and of its own commands."""
    context = command.context_class(command, info_name=name)
    yield command.get_help(context)
    for inner in getattr(command, "commands", {}):
        yield from _help_texts(command.commands[inner], inner)


@pytest.mark.parametrize("name", _COMMANDS)
def test_the_help_of_a_command_is_that_of_its_module(name, capsys):
    def printed(command):
        return [*_help_texts(command), capsys.readouterr().out]

    assert printed(_declared_command(name)) == printed(import_command(name))


def test_the_help_of_no_command_imports_pytorch():
    code = (
        "import sys\nfrom fedtilt.cli import _COMMANDS, _declared_command\n"
        "for name in _COMMANDS:\n    _declared_command(name)\n    assert 'torch' not in sys.modules, name\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ})


def test_numbers_and_names_in_help_texts_are_those_of_the_code():
    options = {name: {p.name: p for p in import_command(name).params} for name in ("metrics", "tune")}
    assert f": {', '.join(METRICS)}." in options["metrics"]["metric"].help
    assert f"(default: {TRIALS})" in options["tune"]["trials"].help
