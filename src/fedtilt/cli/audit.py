"""`fedtilt audit`: which training samples look mislabelled, and training again without them or with other labels."""

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedtilt.cli.console import Console, echo, print_lines, text_table
from fedtilt.cli.options import AsJson, Quiet, SeedOfRun, Verbose
from fedtilt.cli.run import new_folder, print_run, train_and_print, write_report
from fedtilt.errors import InputError
from fedtilt.files import read_json, write_bytes

if TYPE_CHECKING:
    from fedtilt.auditing.samples import Audit, Suspect, WrongLabels
    from fedtilt.runs.audit import AccuracyGain, RunAudit
    from fedtilt.runs.callback import Callback

_CUT, _TOP = 0.5, 15
_MAX_CLIENTS = 10  # in the table of clients


def audit(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder, trained with --audit.")],
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="The method that judges (default: the smallest lam).")
    ] = None,
    seed: SeedOfRun = None,
    cut: Annotated[float, typer.Option(min=0, max=1, help="The lowest score of a suspect.")] = _CUT,
    top: Annotated[int, typer.Option(min=0, help="How many suspects to print.")] = _TOP,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="The file of suspects to write (default: RUN/suspects.csv).")
    ] = None,
    drop: Annotated[
        Path | None, typer.Option("--drop", metavar="CSV", help="Train again without the samples of this file.")
    ] = None,
    relabel: Annotated[
        Path | None,
        typer.Option("--relabel", metavar="CSV", help="Train again with the label that these samples look like."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="With --drop or --relabel: the new run (default: a folder in runs/).")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Print the samples whose labels look wrong, worst first; write them into a CSV file and RUN/audit.html.

    Nothing is trained, unless with --drop or --relabel: these train the run again, and print what it gained.
    """
    from fedtilt.runs.audit import audit_run

    if drop is None and relabel is None:
        if out is not None:
            raise InputError(f"--out {out} is the folder of a new run; use it with --drop or --relabel, or use --csv")
        _audit(folder, audit_run(folder, method, seed), cut, top, csv or folder / "suspects.csv", quiet, as_json)
        return
    ignored: dict[str, tuple[object, object]] = {
        "--method": (method, None), "--seed": (seed, None), "--csv": (csv, None), "--cut": (cut, _CUT),
        "--top": (top, _TOP),
    }  # fmt: skip
    for option, (value, default) in ignored.items():
        if value != default:
            raise InputError(f"{option} {value} has no effect with --drop or --relabel; remove it")
    _train_again(folder, drop, relabel, out, quiet, verbose, as_json)


def _audit(folder: Path, run: "RunAudit", cut: float, top: int, csv: Path, quiet: bool, as_json: bool) -> None:
    from fedtilt.auditing.samples import UNKNOWN, suspects_csv
    from fedtilt.report.audit_page import build_audit_page

    audit, suspects = run.audit, run.audit.suspects(cut)
    write_bytes(csv, suspects_csv(suspects).encode())
    page = folder / "audit.html"
    name = folder.resolve().name
    html = build_audit_page(name, audit, run.clients, run.federation, round=run.round, seed=run.seed, csv=csv.name)
    write_bytes(page, html.encode())
    if (folder / "report.html").exists():
        write_report(folder)  # which links to the page
    if as_json:
        echo(json.dumps(_as_json(run, suspects, cut) | {"csv": str(csv), "page": str(page)}, indent=2))
        return
    if quiet:
        echo(f"suspects: {csv}")
        return
    console = Console()
    console.print(Text(_headline(run)))
    if audit.is_known:
        console.print(_expectation(audit, cut))
        if suspects:
            console.print(_suspect_table(suspects[:top]))
        console.print(_client_table(audit.wrong_labels()[:_MAX_CLIENTS]))
    else:
        console.print(Text(UNKNOWN))
    if audit.never_selected:
        names = ", ".join(audit.never_selected[:5]) + (", …" if len(audit.never_selected) > 5 else "")
        console.print(Text(f"skipped: {len(audit.never_selected)} clients that were never selected ({names})"))
    for sentence in run.clients.sentences():
        console.print(Text(sentence))
    console.print(Text("A hard but correct sample looks bad too: look at the suspects before you act on them."))
    print_lines(console, f"suspects: {csv}", f"page:     {page}")
    if suspects:
        command = f"fedtilt audit {shlex.quote(str(folder))} --drop {shlex.quote(str(csv))}"
        print_lines(console, f"next:     {command}   (or --relabel)")


def _headline(run: "RunAudit") -> str:
    audit, clients = run.audit, len(run.audit.client.unique())
    others = [name for name in run.methods if name != audit.method]
    choice = f" (--method for {', '.join(others[:3])})" if others else ""
    return (
        f"{len(audit):,} samples of {clients} clients, judged by {audit.method}{choice} after round {run.round}, "
        f"seed {run.seed}"
    )


def _expectation(audit: "Audit", cut: float) -> Table:
    """How many suspects each cut has, and how many of these are expected to be wrong."""
    table = text_table([], ["score", "suspects", "expected wrong", "of all wrong labels"])
    for found in audit.cuts(sorted({cut, 0.5, 0.9, 0.99})):
        table.add_row(f"≥ {found.score:g}", f"{found.suspects:,}", f"{found.precision:.0%}", f"{found.recall:.0%}")
    return table


def _suspect_table(suspects: "Sequence[Suspect]") -> Table:
    table = text_table(["row", "client", "labelled", "looks like"], ["score", "loss", "weight"])
    for s in suspects:
        names = (Text(text) for text in (s.row, s.client, s.label, s.looks_like))
        table.add_row(*names, f"{s.score:.3f}", f"{s.loss:.2f}", f"{s.weight:.2f}")
    return table


def _client_table(clients: "Sequence[WrongLabels]") -> Table:
    table = text_table(["client"], ["samples", "suspects", "wrong labels", "95 % interval"])
    for client, _, samples, suspects, wrong in clients:
        interval = f"{wrong.low:.1%} to {wrong.high:.1%}"
        table.add_row(Text(client), f"{samples:,}", f"{suspects:,}", f"{wrong.share:.1%}", interval)
    return table


def _as_json(run: "RunAudit", suspects: "Sequence[Suspect]", cut: float) -> dict[str, object]:
    audit = run.audit
    return {
        "method": audit.method,
        "seed": run.seed,
        "round": run.round,
        "samples": len(audit),
        "cut": cut,
        "cuts": [found._asdict() for found in audit.cuts()],
        "clients": [_wrong_json(row) for row in audit.wrong_labels()],
        "classes": [_wrong_json(row) for row in audit.wrong_labels(by_class=True)],
        "bad_clients": list(run.clients.bad),
        "different_clients": list(run.clients.different),
        "never_selected": list(audit.never_selected),
        "suspects": [suspect._asdict() for suspect in suspects],
    }


def _wrong_json(row: "WrongLabels") -> dict[str, object]:
    share = None if math.isnan(row.wrong.share) else row.wrong.share
    return row._asdict() | {"wrong": row.wrong._asdict() | {"share": share}}


def _train_again(
    folder: Path, drop: Path | None, relabel: Path | None, out: Path | None, quiet: bool, verbose: bool, as_json: bool
) -> None:
    from fedtilt.runs.audit import corrected_spec, gains
    from fedtilt.runs.spec_run import run_spec

    spec = corrected_spec(folder, exclude=drop, relabel=relabel)
    if not (folder / "results.json").exists():
        raise InputError(f"{folder} is not finished; fedtilt resume {shlex.quote(str(folder))} first")
    new = out or new_folder(f"{spec.name}-corrected")

    def train(callbacks: "Sequence[Callback]") -> object:
        return run_spec(spec, new, callbacks=callbacks)

    train_and_print(new, train, print_run, seeds=spec.seeds, quiet=quiet, verbose=verbose, as_json=as_json)
    if not (quiet or as_json):
        found = gains(read_json(folder / "results.json"), read_json(new / "results.json"))
        Console().print(_gain_table(found))
        if not any(gain.split == "validation" for gain in found):
            echo("no validation data; set clients.validation = 0.1 in the spec to measure the gain without test data")


def _gain_table(found: "Sequence[AccuracyGain]") -> Table:
    table = text_table(["method", "accuracy on"], ["before", "after", "gain"])
    for method, split, before, after in found:
        table.add_row(Text(method), split, f"{before:.2f} %", f"{after:.2f} %", f"{after - before:+.2f} points")
    return table
