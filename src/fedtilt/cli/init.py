"""`fedtilt init`: write a spec to start from."""

from pathlib import Path
from typing import Annotated

import typer

from fedtilt.cli.console import echo
from fedtilt.cli.options import Client, Drop, Force, Group, Schema, Settings, Target, Task, first_given
from fedtilt.errors import InputError
from fedtilt.files import write_bytes


def init(
    path: Annotated[Path, typer.Argument(metavar="[PATH]", help="The file to write.")] = Path("fedtilt.toml"),
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="A spec for this table, or folder of tables.")
    ] = None,
    target: Target = None,
    task: Task = None,
    client: Client = None,
    group: Group = None,
    drop: Drop = None,
    schema: Schema = None,
    settings: Settings = None,
    every_key: Annotated[bool, typer.Option("--all", help="Write and explain every key.")] = False,
    force: Force = False,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print a JSON schema of specs, for editors, in place of a spec.")
    ] = False,
) -> None:
    """Write a spec to start from: the built-in spec digits, or one for your own table."""
    from fedtilt import spec
    from fedtilt.spec.table_spec import table_spec

    if json_schema:
        echo(spec.json_schema().rstrip("\n"))
        return
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it, as in {path / 'fedtilt.toml'}")
    if path.suffix != ".toml":
        raise InputError(f"{path} is no name for a spec, which ends in .toml; of a table: fedtilt init --table {path}")
    if path.exists() and not force:
        raise InputError(f"{path} already exists; give another name, or --force to overwrite it")
    given = first_given(target=target, task=task, client=client, group=group, drop=drop, schema=schema, set=settings)
    if table is None and given:
        raise InputError(f"--{given[0]} {given[1]} describes a table; name it with --table")
    content = None
    if table is not None:
        content = table_spec(
            path, table, target=target, client=client, group=group or [], drop=drop or [], schema=schema, task=task,
            overrides=settings or [],
        )  # fmt: skip
    write_bytes(path, (spec.annotated if every_key else spec.starter)(str(path), content).encode())
    what = "the built-in spec digits" if table is None else f"FedAvg, Ditto and FedTilt on {table}"
    keys = "with every key explained" if every_key else "with the keys that are changed most; --all writes every key"
    echo(f"wrote {path}: {what}, {keys}")
    echo(f"next: fedtilt run {path}")
