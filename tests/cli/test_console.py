"""Names cannot control the terminal."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from fedtilt.cli.console import Console, echo, escape
from fedtilt.errors import InputError, InputWarning, printable

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\x7f\r\u202etxt\udc80"
SHOWN = r"\x1b[2J\x1b]0;title\x07\u009b31m\u007f\r\u202etxt\udc80"


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable(ESCAPES) == SHOWN
    assert printable("Zürich, 東京 😀\u00a0%") == "Zürich, 東京 😀\u00a0%"


@pytest.mark.parametrize("kind", [InputError, InputWarning])
def test_every_error_and_warning_is_one_printable_line(kind: type[Exception]) -> None:
    assert str(kind(f"client {ESCAPES}\nis bad")) == rf"client {SHOWN}\nis bad"


@pytest.mark.parametrize("make", [str, Text, lambda name: Text.assemble(("client ", "bold"), name)])
def test_the_console_prints_names_as_text_and_styles_as_styles(make) -> None:
    table = Table("name")
    table.add_row(make(ESCAPES))
    for shown in (make(ESCAPES), table):
        out = io.StringIO()
        Console(file=out, force_terminal=True, width=200, color_system="standard").print(
            shown, style="green", markup=False, highlight=False
        )
        plain = out.getvalue()
        for style in ("\x1b[1;32m", "\x1b[32m", "\x1b[1m", "\x1b[0m"):
            plain = plain.replace(style, "")
        assert r"\x1b[2J" in plain
        assert not set(plain) & set("\x1b\x07\x9b\x7f\r\u202e\udc80")


def test_lines_are_printed_with_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"wrote {ESCAPES}\nnext: run")
    echo(ESCAPES, err=True)
    captured = capsys.readouterr()
    assert captured.out == f"wrote {SHOWN}\nnext: run\n"
    assert captured.err == f"{SHOWN}\n"


def test_a_name_in_a_table_has_its_full_width() -> None:
    table = Table("name")
    table.add_row(f"{escape(ESCAPES)}: 50 %")
    out = io.StringIO()
    Console(file=out, width=200).print(table)
    assert f"{SHOWN}: 50 %" in out.getvalue()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    name = b"r\xffun"
    command = [sys.executable.encode(), b"-m", b"fedtilt", b"deploy", b"new", name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the argument 'r\\udcffun' is not UTF-8; rename the file or folder\n"
    os.mkdir(os.fsencode(tmp_path) + b"/" + name)
    done = subprocess.run(
        [*command[:-1], b"x"], capture_output=True, text=True, cwd=os.fsencode(tmp_path) + b"/" + name
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the current folder ")
