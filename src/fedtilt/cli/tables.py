"""What a person sees of a run: the comparison table, and who each method fails."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from torch import Tensor

from fedtilt.evaluation.results import MethodResult, Result, Summary
from fedtilt.runs.tune import MAX_ACCURACY_LOSS

# column, key in `over_seeds`, whether more is better
COLUMNS = [
    ("accuracy", "accuracy", True),
    ("client\nfairness", "client_fairness", False),
    ("class\nfairness", "client_data_fairness_mean", False),
    ("worst\n10 %", "worst", True),
]
_FEW = 10  # test samples below which a share means little
_SHOWN = 5  # clients named in a line
_UNBOUNDED = Console(width=10_000)  # to see how wide a table would like to be


def comparison(
    table: Mapping[str, Any],
    results: Mapping[int, Result],
    client_names: Sequence[str],
    class_names: Sequence[str],
    width: int,
) -> Group:
    """One row per method, the best of a column bold, and who each method fails: beside, or below where it is narrow."""
    first = next(iter(results.values()))
    failed = {
        name: failures({seed: result[name] for seed, result in results.items()}, client_names, class_names)
        for name in first
    }
    whole = _rows(table, COLUMNS, failed)
    if _fits(whole, width):
        return Group(whole)
    told = [f"[bold]{escape(name)}[/] fails most: client {c}, class {k}" for name, (c, k) in failed.items()]
    narrower = [_rows(table, COLUMNS[:count], None) for count in range(len(COLUMNS), 0, -1)]
    return Group(next((rows for rows in narrower if _fits(rows, width)), narrower[-1]), *told, "")


def _fits(rows: Table, width: int) -> bool:
    return Measurement.get(_UNBOUNDED, _UNBOUNDED.options, rows).maximum <= width


def _rows(
    table: Mapping[str, Any], columns: Sequence[tuple[str, str, bool]], failed: Mapping[str, tuple[str, str]] | None
) -> Table:
    methods = table["methods"]
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    out.add_column("method", overflow="fold")
    titles = [title for title, _, _ in columns] + (["fails most\nclient", "\nclass"] if failed else [])
    for title in titles:
        out.add_column(title, justify="right", no_wrap=True)
    best = {key: (max if more else min)(round(m[key]["mean"], 2) for m in methods.values()) for _, key, more in columns}
    for name, values in methods.items():
        cells = []
        for _, key, _ in columns:
            text = _cell(values[key])
            cells.append(f"[bold green]{text}[/]" if round(values[key]["mean"], 2) == best[key] else text)
        out.add_row(escape(name), *cells, *(failed[name] if failed else ()))
    return out


def failures(
    results: Mapping[int, MethodResult], client_names: Sequence[str], class_names: Sequence[str]
) -> tuple[str, str]:
    """The client and the class that a method fails most, with their accuracy.

    Classes are the same under every seed, and counted together; clients are not. With few test samples, how many.
    """
    correct, total = (torch.stack([getattr(r, part) for r in results.values()]) for part in ("correct", "total"))
    clients = _named(results, client_names)
    return (
        _lowest(correct.sum(2).flatten(), total.sum(2).flatten(), clients),
        _lowest(correct.sum((0, 1)), total.sum((0, 1)), class_names),
    )


def _named(seeds: Collection[int], client_names: Sequence[str]) -> list[str]:
    """The clients of every seed: they are drawn anew, and named with theirs where there are several."""
    return [name if len(seeds) == 1 else f"{name}, seed {seed}" for seed in seeds for name in client_names]


def unjudged(results: Mapping[int, Result], client_names: Sequence[str]) -> str:
    """Who has no test data, in one line; empty where everyone has."""
    total = torch.stack([next(iter(result.values())).total for result in results.values()])  # (seeds, N, K)
    without = (total.sum(2) == 0).flatten().tolist()
    names = [name for name, none in zip(_named(results, client_names), without, strict=True) if none]
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    whose = "clients without test data, which are" if len(names) > 1 else "a client without test data, which is"
    return f"[dim]{whose} not judged: {escape('; '.join(names[:_SHOWN]))}{more}[/]"


def _lowest(correct: Tensor, total: Tensor, names: Sequence[str]) -> str:
    share = (100 * correct / total.clamp(min=1)).where(total > 0, 101.0)
    worst = int(share.argmin())
    few = f" ({int(correct[worst])} of {int(total[worst])})" if total[worst] < _FEW else ""
    return f"{escape(names[worst])}: {share[worst]:.0f} %{few}"


def legend(results: Mapping[int, Result]) -> str:
    """What the columns mean, in two lines."""
    first = next(iter(results.values()))
    own = [escape(name) for name, r in first.items() if r.method.personal]
    evaluated = f" {' and '.join(own)} judged on personal models" if own else ""
    evaluated += ", the others on the shared one" if 0 < len(own) < len(first) else ""
    never_selected = max(r.summary.never_selected for result in results.values() for r in result.values())
    who = (
        "1 client never took part and is"
        if never_selected == 1
        else f"{never_selected} clients never took part and are"
    )
    late = f"; {who} judged on the shared model" if evaluated and never_selected else ""
    over = f" ± std over {len(results)} seeds" if len(results) > 1 else ""
    return (
        f"[dim]accuracy in % of the clients' own test data, mean over clients{over}; fairness = spread in points over "
        f"clients, and over the classes inside a client: lower is fairer.{evaluated}{late}{'.' if evaluated else ''}[/]"
    )


def tell_tuning(console: Console, table: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """Print what a search found on so many samples, and give back the table of the methods to compare on test data."""
    tuning, methods = table["tuning"], table["methods"]
    settings, chosen, lost = tuning["settings"], tuning["chosen"], tuning["diverged"]
    named = escape(tuning["method"])
    console.print(
        f"\n[bold]On validation data[/], of {len(settings)} settings of {named}, those within {MAX_ACCURACY_LOSS:g} "
        "points of the best that no other beats in accuracy and both kinds of fairness:"
    )
    console.print(_front(methods, settings, tuning["pareto_front"]))
    if lost:
        console.print(f"{len(lost)} diverged and had to be left out: {escape(', '.join(lost))}")
    share = methods[chosen]["validation"]["accuracy"]["mean"] / 100
    chance = 100 * (max(share * (1 - share), 0.01) / samples) ** 0.5
    console.print(
        f"[dim]{samples:,} samples decided; about {chance:.1f} points of accuracy are chance, less with more --seeds "
        "or clients.validation.[/]"
    )
    word = "keep" if chosen == tuning["method"] else "take"
    console.print(f"{word} it:  {tuning['run']}", highlight=False, soft_wrap=True, markup=False)
    console.print("[dim](which trains on the validation data too, unless the spec sets some aside)[/]\n")
    others = [name for name in methods if name not in settings]
    shown = [name for name in dict.fromkeys([*others, tuning["method"], chosen]) if name in methods]
    console.print("[bold]On test data[/], which had no say in it:")
    return {**table, "methods": {name: methods[name] for name in shown}}


def _front(methods: Mapping[str, Any], settings: Mapping[str, Mapping[str, str]], shown: Sequence[str]) -> Table:
    keys = list(next(iter(settings.values())))
    columns = [column for column in COLUMNS if column[1] != "worst"]
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for title in [*keys, *(title for title, _, _ in columns)]:
        out.add_column(title, justify="right", no_wrap=True)
    for name in shown:
        held = methods[name]["validation"]
        cells = [f"{float(settings[name][key]):g}" for key in keys] + [_cell(held[key]) for _, key, _ in columns]
        out.add_row(*cells, style="bold green" if name == shown[0] else None)
    return out


def _cell(values: Mapping[str, Any]) -> str:
    return f"{values['mean']:.2f}" + ("" if values["std"] is None else f" ± {values['std']:.2f}")


def leaders(summaries: Mapping[str, Summary], most: int) -> dict[str, Summary]:
    """The most accurate so far, where there are more than fit."""
    if len(summaries) <= most:
        return dict(summaries)
    ranked = sorted(summaries.items(), key=lambda item: -item[1].evaluated.accuracy)
    return dict(ranked[:most])


def so_far(summaries: Mapping[str, Summary] | None) -> Table:
    """The small table under the progress bar."""
    out = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for title in ("method", "accuracy", "client fairness", "class fairness"):
        out.add_column(title, justify="left" if title == "method" else "right")
    for name, summary in leaders(summaries or {}, 8).items():
        m = summary.evaluated
        out.add_row(escape(name), f"{m.accuracy:.2f}", f"{m.client_fairness:.2f}", f"{m.client_data_fairness[0]:.2f}")
    return out
