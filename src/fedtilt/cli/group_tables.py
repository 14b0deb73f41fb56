"""The accuracy of every method by group, for data that names groups."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedtilt.cli.tables import format_mean_std
from fedtilt.data.groups import CLASS

_MAX_GROUPS = 6  # with a column each; of more, the worst is named
# title, key in `over_seeds`, whether higher is better
_COLUMNS = [
    ("spread", "spread", False),
    ("spread in\nclients", "client_spread_mean", False),
    ("worst in\nclients", "client_worst", True),
]


def group_tables(table: Mapping[str, Any]) -> list[Table]:
    """A table per column of groups: a row per method, the best value of a column in bold.

    Args:
        table: the metrics of all methods, from `over_seeds`
    """
    methods = table["methods"]
    names = [name for name in next(iter(methods.values())).get("groups", {}) if name != CLASS]
    return [
        _group_table(name, {method: values["groups"][name] for method, values in methods.items()}) for name in names
    ]


def _group_table(name: str, methods: Mapping[str, Any]) -> Table:
    groups = list(next(iter(methods.values()))["accuracy"])
    shown = groups if len(groups) <= _MAX_GROUPS else []
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    out.add_column(f"by {escape(name)}", overflow="fold")
    for title in [*map(escape, shown), *([] if shown else ["worst group"]), *(title for title, _, _ in _COLUMNS)]:
        out.add_column(title, justify="right")
    rows = {
        method: [v["accuracy"][g] for g in shown] + [v[key] for _, key, _ in _COLUMNS] for method, v in methods.items()
    }
    higher = [True] * len(shown) + [better for _, _, better in _COLUMNS]
    best = [
        (max if better else min)(round(row[k]["mean"], 2) for row in rows.values()) for k, better in enumerate(higher)
    ]
    for method, row in rows.items():
        cells = [
            f"[bold green]{format_mean_std(values)}[/]"
            if round(values["mean"], 2) == best[k]
            else format_mean_std(values)
            for k, values in enumerate(row)
        ]
        out.add_row(escape(method), *([] if shown else [_worst(methods[method]["accuracy"])]), *cells)
    return out


def _worst(accuracy: Mapping[str, Any]) -> str:
    name, values = min(accuracy.items(), key=lambda item: item[1]["mean"])
    return f"{escape(name)}: {values['mean']:.0f} %"


def group_legend(table: Mapping[str, Any]) -> str:
    """The meaning of the columns of `group_tables`; empty without groups."""
    if not next(iter(table["methods"].values())).get("groups"):
        return ""
    lines = {
        "group": "% of its test samples at all clients",
        "spread": "std over groups; lower is fairer",
        "spread, worst in clients": "std over a client's groups, its worst group; mean over clients",
    }
    return "\n".join(f"[dim]{title:<26}{text}[/]" for title, text in lines.items())
