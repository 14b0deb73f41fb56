"""The command line: one file per command, and the only place that prints.

The module of a command imports what is slow, such as PyTorch, inside its functions: `--help` imports all of them.
"""

import difflib
import errno
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

from fedtilt.cli import (
    audit,
    check,
    data,
    deploy,
    export,
    forget,
    init,
    list,
    methods,
    metrics,
    predict,
    report,
    resume,
    run,
    tune,
)
from fedtilt.cli.console import Console, echo, escape, print_warnings
from fedtilt.errors import InputError, InputWarning
from fedtilt.version import __version__

app = typer.Typer(
    name="fedtilt",
    help="Federated learning that is fair to every client and class, and robust to bad data.",
    epilog="Start with: fedtilt run",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_UsageError: Any = typer.BadParameter.__base__  # of click, or of the copy of click in newer versions of typer
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


def _version(requested: bool) -> None:
    if requested:
        echo(f"fedtilt {__version__}")
        raise typer.Exit


for _command in (
    run.run, tune.tune, init.init, resume.resume, list.list, report.report, audit.audit, metrics.metrics,
    methods.methods, export.export, predict.predict, forget.forget, check.check,
):  # fmt: skip
    app.command()(_command)
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(commands: typer.Typer = app, name: str = "fedtilt") -> None:
    """Run the command line, or that of another program.

    Bad input and a file that cannot be read or written print one line and exit with code 2; other errors keep their
    traceback.
    """
    _show_data_warnings()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that cannot show a name
    try:
        _check_utf8(sys.argv[1:])
        sys.exit(commands(prog_name=name, standalone_mode=False))
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # since click 8.2; its message is the help text
            error.show()
            sys.exit(2)
        _exit_with_error(_usage_message(error))
    except InputError as error:
        _exit_with_error(str(error))
    except BrokenPipeError:  # the reader, such as head, has stopped
        _discard_output()
        sys.exit(1)
    except OSError as error:
        if error.filename is None and error.errno not in _DISK_ERRORS:
            raise
        if error.filename is None:
            _discard_output()
        what = "the output" if error.filename is None else os.fsdecode(error.filename)
        _exit_with_error(f"{what} cannot be used: {error.strerror}; check the path, its permissions and the disk")
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)


def _check_utf8(arguments: Sequence[str]) -> None:
    """Raise InputError for names that no JSON, TOML or HTML file can contain."""
    for what, text in [*(("the argument", argument) for argument in arguments), ("the current folder", os.getcwd())]:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"{what} {text!a} is not UTF-8; rename the file or folder")


def _discard_output() -> None:
    """Write what is left in the buffer of the output to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_data_warnings() -> None:
    """Print each warning about data once, as one line, when it is emitted."""
    show, shown = warnings.showwarning, set[str]()

    def show_once(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if not issubclass(category, InputWarning):
            show(message, category, *args, **kwargs)
        elif str(message) not in shown:
            shown.add(str(message))
            print_warnings(Console(stderr=True), [str(message)])

    warnings.simplefilter("always", InputWarning)
    warnings.showwarning = show_once


def _exit_with_error(message: str) -> NoReturn:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(message)}")
    sys.exit(2)


def _usage_message(error: Any) -> str:
    """Click's message in one line, with what was probably meant, or a hint at --help."""
    command = error.ctx.command_path if error.ctx else "fedtilt"
    message = " ".join(error.format_message().split())
    if type(error).__name__ == "NoSuchOption":
        meant = _meant_option(error)
        message = f"no such option: {error.option_name}{f'; did you mean {meant}?' if meant else ''}"
    message = f"{message[:1].lower()}{message[1:]}".replace(". Did you mean", "; did you mean")
    see = " See" if message.endswith("?") else "; see"
    return f"{message.rstrip('.')}{see} {command} --help"


def _meant_option(error: Any) -> str:
    """The key of a spec that has the name of an unknown option, as --set; else options with a similar name."""
    name = error.option_name.lstrip("-")
    options = [option for parameter in error.ctx.command.params for option in parameter.opts] if error.ctx else []
    if "--set" in options:
        from fedtilt.spec.error_messages import key_named

        if key := key_named(name.replace("-", "_")):
            return f"--set {key}=…"
    similar = difflib.get_close_matches(name, [option.lstrip("-") for option in options if option[:2] == "--"])
    return " or ".join(f"--{option}" for option in similar)
