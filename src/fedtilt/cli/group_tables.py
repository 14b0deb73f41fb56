"""The scores of every method by group, where there are several groupings."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from fedtilt.cli.console import escape
from fedtilt.cli.tables import fits, format_mean_std
from fedtilt.evaluation.metrics import Score, main_score

_COLUMNS = [("spread", "spread"), ("spread in\nclients", "client_spread_mean"), ("worst in\nclients", "client_worst")]


def group_tables(table: Mapping[str, Any], width: int) -> list[Table]:
    """A table per grouping: a row per method, the best value of a column in bold.

    If the groups have no room for a column each, the worst group of each method is named instead.

    Args:
        table: the metrics of all methods, from `over_seeds`
        width: of the terminal, in characters
    """
    methods = table["methods"]
    tables = []
    for name in next(iter(methods.values())).get("groups", {}):
        by_method = {method: values["groups"][name] for method, values in methods.items()}
        score = main_score(next(iter(by_method.values())))
        full = _group_table(name, by_method, score, list(next(iter(by_method.values()))[score.name]))
        tables.append(full if fits(full, width) else _group_table(name, by_method, score, []))
    return tables


def _group_table(name: str, methods: Mapping[str, Any], score: Score, groups: Sequence[str]) -> Table:
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    out.add_column(f"by {escape(name)}", overflow="fold")
    for title in [*map(escape, groups or ["worst group"]), *(title for title, _ in _COLUMNS)]:
        out.add_column(title, justify="right", no_wrap=True)
    rows = {
        method: [values[score.name][group] for group in groups] + [values[key] for _, key in _COLUMNS]
        for method, values in methods.items()
    }
    better = max if score.higher_is_better else min
    choose = [*[better] * len(groups), min, min, better]
    best = [pick(round(row[k]["mean"], 2) for row in rows.values()) for k, pick in enumerate(choose)]
    for method, row in rows.items():
        cells = [format_mean_std(values) for values in row]
        cells = [
            f"[bold green]{cell}[/]" if round(values["mean"], 2) == top else cell
            for cell, values, top in zip(cells, row, best, strict=True)
        ]
        out.add_row(escape(method), *([] if groups else [_worst(methods[method][score.name], score)]), *cells)
    return out


def _worst(by_group: Mapping[str, Any], score: Score) -> str:
    choose = min if score.higher_is_better else max
    name, values = choose(by_group.items(), key=lambda item: item[1]["mean"])
    return f"{escape(name)}: {score.text(values['mean'], 0 if score.higher_is_better else 2)}"


def group_legend(table: Mapping[str, Any]) -> str:
    """The meaning of the columns of `group_tables`; empty without groups."""
    if not next(iter(table["methods"].values())).get("groups"):
        return ""
    score = main_score(next(iter(table["methods"].values())))
    lines = {
        "group": f"{score.unit or score.title} of its test samples at all clients",
        "spread": "std over groups; lower is fairer",
        "in clients": "over a client's own groups; mean over clients",
    }
    return "\n".join(f"[dim]{title:<22}{text}[/]" for title, text in lines.items())
