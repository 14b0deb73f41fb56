"""What a person sees of a run: the comparison table, and who each method fails."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from torch import Tensor

from fedtilt.results import MethodResult, Result, Summary

# column, key in `over_seeds`, whether more is better
COLUMNS = [
    ("accuracy", "accuracy", True),
    ("client\nfairness", "client_fairness", False),
    ("class\nfairness", "client_data_fairness_mean", False),
    ("worst\n10 %", "worst", True),
]


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
            text = f"{values[key]['mean']:.2f}"
            if values[key]["std"] is not None:
                text += f" ± {values[key]['std']:.2f}"
            cells.append(f"[bold green]{text}[/]" if round(values[key]["mean"], 2) == best[key] else text)
        out.add_row(escape(name), *cells, *(failed[name] if failed else ()))
    return out


def failures(
    results: Mapping[int, MethodResult], client_names: Sequence[str], class_names: Sequence[str]
) -> tuple[str, str]:
    """The client and the class that a method fails most, with their accuracy.

    Classes are the same under every seed, and counted together; clients are drawn anew, and named with theirs.
    """
    correct, total = (torch.stack([getattr(r, part) for r in results.values()]) for part in ("correct", "total"))
    clients = [name if len(results) == 1 else f"{name}, seed {seed}" for seed in results for name in client_names]
    return (
        _lowest(correct.sum(2).flatten(), total.sum(2).flatten(), clients),
        _lowest(correct.sum((0, 1)), total.sum((0, 1)), class_names),
    )


def _lowest(correct: Tensor, total: Tensor, names: Sequence[str]) -> str:
    share = (100 * correct / total.clamp(min=1)).where(total > 0, 101.0)
    worst = int(share.argmin())
    return f"{escape(names[worst])}: {share[worst]:.0f} %"


def legend(results: Mapping[int, Result]) -> str:
    """What the columns mean, in two lines."""
    first = next(iter(results.values()))
    own = [escape(name) for name, r in first.items() if r.method.personal]
    judged = f" {' and '.join(own)} judged on personal models" if own else ""
    judged += ", the others on the shared one" if 0 < len(own) < len(first) else ""
    unvisited = max(r.summary.unvisited for result in results.values() for r in result.values())
    late = f"; {unvisited} clients never took part and are judged on the shared model" if judged and unvisited else ""
    over = f" ± std over {len(results)} seeds" if len(results) > 1 else ""
    return (
        f"[dim]accuracy in % of the clients' own test data, mean over clients{over}; fairness = spread in points over "
        f"clients, and over the classes inside a client: lower is fairer.{judged}{late}{'.' if judged else ''}[/]"
    )


def so_far(summaries: Mapping[str, Summary] | None) -> Table:
    """The small table under the progress bar."""
    out = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for title in ("method", "accuracy", "client fairness", "class fairness"):
        out.add_column(title, justify="left" if title == "method" else "right")
    for name, summary in (summaries or {}).items():
        m = summary.judged
        out.add_row(escape(name), f"{m.accuracy:.2f}", f"{m.client_fairness:.2f}", f"{m.client_data_fairness[0]:.2f}")
    return out
