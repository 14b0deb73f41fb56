"""`fedtilt methods`: everything that a spec can name, with one line, its settings and its paper."""

import json
from typing import TYPE_CHECKING, Annotated, Any

from rich.text import Text
from typer import Argument

from fedtilt.cli.console import Console, echo, text_table
from fedtilt.cli.options import AsJson
from fedtilt.toml_text import format_toml

if TYPE_CHECKING:
    from fedtilt.spec.catalog import Entry


def methods(
    module: Annotated[
        str | None, Argument(metavar="[MODULE]", help="List the components of this module of yours, such as mymethods.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every method, component, loss and attack with its settings and its paper.

    Use a method with `fedtilt run --method NAME`, anything else with `fedtilt run --set KEY=NAME`.
    """
    from fedtilt.spec.catalog import catalog, own_components

    entries = catalog() if module is None else own_components(module)
    if as_json:
        echo(json.dumps([entry._asdict() for entry in entries], indent=2, default=str))
        return
    console = Console()
    for kind in dict.fromkeys(entry.kind for entry in entries):
        listed = [entry for entry in entries if entry.kind == kind]
        table = text_table([kind, "--method NAME" if kind == "methods" else f"--set {listed[0].key}=NAME"])
        table.columns[0].no_wrap = True
        for entry in listed:
            table.add_row(Text(entry.name, style="cyan"), _description(entry))
        console.print(table)
    console.print(
        "Use them as in: fedtilt run --method scaffold, --set methods.fedavg.aggregator=krum, "
        "--set methods.fedavg.aggregator.bad_share=0.2, --set attack.kind=alie"
    )


def _description(entry: "Entry") -> Text:
    text = Text(entry.summary)
    if entry.settings:
        settings = (key if value is None else f"{key} = {_value(value)}" for key, value in entry.settings.items())
        text.append(f"\n{', '.join(settings)}", style="green")
    return text.append(f"\n{entry.reference}", style="dim") if entry.reference else text


def _value(value: Any) -> str:
    return format_toml(list(value) if isinstance(value, tuple) else value)
