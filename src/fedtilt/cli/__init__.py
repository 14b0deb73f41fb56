"""The command line: one file per command, and the only place that prints."""

import ast
import difflib
import errno
import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import CodeType
from typing import Annotated, Any, NoReturn

import typer
import typer.core
import typer.main

from fedtilt.cli.console import Console, echo, escape, print_warnings
from fedtilt.errors import InputError, InputWarning
from fedtilt.version import __version__

_COMMANDS = (
    "run", "tune", "init", "resume", "list", "report", "audit", "metrics", "methods", "export", "predict", "forget",
    "check", "data", "deploy",
)  # fmt: skip
_LIGHT = ("fedtilt.cli", "fedtilt.cli.options", "fedtilt.cli.console", "fedtilt.errors")  # without PyTorch
_SKIP = "try:\n    pass\nexcept NameError:\n    pass"


class _Commands(typer.core.TyperGroup):
    """The commands; the module of a command is imported when it is used, because most of them import PyTorch."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command with this name, or only its help text if it has not been imported; None: there is none."""
        if cmd_name not in _COMMANDS:
            return None
        return self.commands.get(cmd_name) or typer.core.TyperCommand(cmd_name, help=_help_text(cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name, imported."""
        # names, of which Typer suggests one for a misspelt one
        self.commands: dict[str, Any] = dict.fromkeys(_COMMANDS)
        if args[0] in self.commands:
            wants_help = args[-1] in ("-h", "--help") and not any(arg.startswith("-") for arg in args[:-1])
            self.commands[args[0]] = _declared_command(args[0]) if wants_help else import_command(args[0])
        return super().resolve_command(ctx, args)


def _help_text(name: str) -> str:
    """The help of a command from the source of its module, because to import it takes seconds."""
    module = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == name:
            return ast.get_docstring(statement) or ""
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "app":
            assert isinstance(statement.value, ast.Call)
            (text,) = (keyword.value for keyword in statement.value.keywords if keyword.arg == "help")
            return str(ast.literal_eval(text))
    raise LookupError(f"fedtilt.cli.{name} has neither a function {name} nor an app")


def _declared_command(name: str) -> Any:
    """A command that can only show its help, which takes no import of PyTorch."""
    full_name = f"fedtilt.cli.{name}"
    loader = _DeclarationLoader(full_name, str(Path(__file__).parent / f"{name}.py"))
    module = module_from_spec(ModuleSpec(full_name, loader))
    loader.exec_module(module)
    return _command(name, vars(module))


class _DeclarationLoader(SourceFileLoader):
    """Loads the module of a command without its imports from the package, which take seconds."""

    def get_code(self, fullname: str) -> CodeType:
        """The module; a statement that needs what was not imported, as no option does, is skipped."""
        module, skip = ast.parse(Path(self.path).read_text(encoding="utf-8")), ast.parse(_SKIP).body[0]
        assert isinstance(skip, ast.Try)
        imports = [s for s in module.body if isinstance(s, ast.ImportFrom) and str(s.module).startswith("fedtilt")]
        left_out = [s for s in imports if s.module not in _LIGHT]
        module.body = [ast.Try([s], skip.handlers, [], []) for s in module.body if s not in left_out]
        return compile(ast.fix_missing_locations(module), self.path, "exec")


def import_command(name: str) -> Any:
    """The command of a module."""
    return _command(name, vars(import_module(f"fedtilt.cli.{name}")))


def _command(name: str, names: Mapping[str, Any]) -> Any:
    """The command in the names of a module: its `app`, or the function with the name of the module."""
    app = names.get("app")
    if app is None:
        app = typer.Typer(add_completion=False)
        app.command()(names[name])
    command = typer.main.get_command(app)
    command.name = name
    return command


app = typer.Typer(
    name="fedtilt",
    cls=_Commands,
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
