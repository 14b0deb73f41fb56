"""The argument of the commands that run a spec."""

from typing import Annotated

import typer

from fedtilt.spec import builtin_names

SpecArgument = Annotated[
    str, typer.Argument(metavar="[SPEC]", help=f"A TOML file, or a built-in spec: {', '.join(builtin_names())}.")
]
