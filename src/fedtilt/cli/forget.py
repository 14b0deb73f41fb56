"""`fedtilt forget`: a client leaves."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from fedtilt.cli.console import Console, echo, plural, print_lines
from fedtilt.cli.options import Quiet
from fedtilt.cli.run import print_run, train_and_print
from fedtilt.errors import InputError

if TYPE_CHECKING:
    from fedtilt.runs.callback import Callback

_NAMED = 3  # clients that gain or lose most


def forget(
    folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The run folder; of a deployment, the project, or on a site its state-dir."),
    ],
    client: Annotated[str, typer.Option(metavar="NAME", help="The client that leaves; on a site, its number.")],
    out: Annotated[Path | None, typer.Option(help="The new run folder (default: RUN-without-NAME).")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a run again without a client, as if it had never had it, and say who gains and who loses by it.

    The new folder has a whole run, from the first round on: it is bit-identical to a run whose spec has the client in
    clients.leave_out, and depends on nothing of the client. Delete the old folder then. In the project of a deployment,
    it writes the site into clients.leave_out, and the server trains with those that stay. On a site, it deletes what
    the site keeps of a federation.
    """
    from fedtilt import report
    from fedtilt.runs.forget import changes, first_round, forget_site, last_round, model_digest
    from fedtilt.runs.forget import forget as forget_client
    from fedtilt.runs.spec_run import spec_of

    if not (folder / "run.json").exists():
        if out is not None:
            raise InputError(f"--out {out} has no effect: {folder} is not a run folder")
        if (folder / "spec.toml").exists():
            _leave_project(folder, client)
        else:
            for path in forget_site(folder, client):
                echo(f"deleted {path}")
        return
    new, spec = out or folder.with_name(f"{folder.name}-without-{client}"), spec_of(folder)

    def train(callbacks: "Sequence[Callback]") -> None:
        forget_client(folder, client, new, callbacks)

    train_and_print(new, train, print_run, seeds=spec.seeds, quiet=quiet, verbose=False, as_json=False)
    page = report.write([folder, new], new / "without.html")
    console = Console()
    for change in changes(folder, new):
        ordered = sorted(change.clients.items(), key=lambda item: item[1])
        mean = fmean(change.clients.values()) if change.clients else 0.0
        least, most = (", ".join(f"{name} {value:+.1f}" for name, value in part)
                       for part in (ordered[:_NAMED], ordered[::-1][:_NAMED]))  # fmt: skip
        print_lines(
            console, f"{change.method}, seed {change.seed}: the others change by {mean:+.2f} on average; "
            f"lowest {least}; highest {most}",
        )  # fmt: skip
    first = first_round(folder, client)
    selected = f"was first selected in round {first}" if first else "was never selected"
    again = f"fedtilt run {shlex.quote(str(new / 'spec.toml'))} --out OTHER, then fedtilt check OTHER"
    print_lines(
        console, f"trained:    {plural(last_round(new), 'round')} again, from the first on: a whole run"
        f" ({client} {selected})",
        f"models:     {model_digest(new)} (blake2b), those of a run that never had the client",
        f"to verify:  delete its rows or samples, {again}", f"compared:   {page}",
        f"next:       rm -r {shlex.quote(str(folder))}, which still has the client",
    )  # fmt: skip


def _leave_project(project: Path, site: str) -> None:
    from fedtilt.flower.deploy.allowed_apps import app_digest
    from fedtilt.flower.deploy.project import leave_site

    leave_site(project, site)
    echo(f"wrote  {project / 'spec.toml'}: site {site} is in clients.leave_out, and the others keep their numbers")
    echo(f"digest {app_digest(project)}, which the sites that stay have to allow")
    echo(f"next   fedtilt deploy run {shlex.quote(str(project))} --out NEW, or flwr run with out=NEW: a whole run")
    echo("       fedtilt report OLD NEW shows who gains and who loses; then delete OLD, which still has the site")
    echo(f"       on site {site}: stop its services, and fedtilt forget STATE_DIR --client {site}")
