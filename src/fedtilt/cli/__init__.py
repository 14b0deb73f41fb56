"""The command line: one file per verb, and the only place that prints."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedtilt.cli import data, deploy, export, init, report, reproduce, resume, run
from fedtilt.errors import InputError
from fedtilt.version import __version__

app = typer.Typer(
    name="fedtilt",
    help="Federated learning that is fair to every client and class, and unharmed by bad data.",
    epilog="Start with: fedtilt run",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(run.run)
app.command()(init.init)
app.command()(resume.resume)
app.command()(report.report)
app.command()(export.export)
app.command()(reproduce.reproduce)
app.add_typer(data.app, name="data", help="List, download, check and look at data sets.")
app.add_typer(deploy.app, name="deploy", help="Train the same spec on a real Flower federation.")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedtilt {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; bad input is one line and exit code 2, anything unexpected keeps its traceback."""
    try:
        app()
    except InputError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
