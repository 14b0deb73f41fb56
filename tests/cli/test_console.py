"""Names cannot control the terminal."""

import io

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
