"""The tables of a run: the comparison of methods, and the progress."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from rich import box
from rich.console import Group
from rich.measure import Measurement
from rich.table import Table
from torch import Tensor

from fedtilt.cli.console import Console, escape
from fedtilt.evaluation.certificate import Certificate, describe
from fedtilt.evaluation.results import MethodResult, Result
from fedtilt.evaluation.summary import Summary

# title, key in `over_seeds`, whether higher is better
COLUMNS = [
    ("accuracy", "accuracy", True),
    ("client\nfairness", "client_fairness", False),
    ("client data\nfairness", "client_data_fairness_mean", False),
    ("worst\n10 %", "worst", True),
]
_MAX_CERTIFIED = 4  # methods in the line of the certificate
_FEW_SAMPLES = 10  # an accuracy on fewer test samples is printed with their number
_MAX_NAMES = 5  # in a list of clients
_UNBOUNDED = Console(width=10_000)  # to measure the full width of a table


def comparison_table(
    table: Mapping[str, Any],
    results: Mapping[int, Result],
    client_names: Sequence[str],
    class_names: Sequence[str],
    width: int,
) -> Group:
    """One row per method, the best value of a column in bold, and the worst client and class of each method.

    On a narrow terminal, the worst clients and classes are lines below the table, and columns are left out.

    Args:
        table: the metrics of all methods, from `over_seeds`
        results: the results of every seed
        client_names: the names of the clients
        class_names: the names of the classes
        width: of the terminal, in characters
    """
    first = next(iter(results.values()))
    worst = {
        name: worst_client_and_class(
            {seed: result[name] for seed, result in results.items()}, client_names, class_names
        )
        for name in first
    }
    full = _method_rows(table, COLUMNS, worst)
    if fits(full, width):
        return Group(full)
    lines = []
    for name, (client, class_) in worst.items():
        failing = [f"client {client}"] * bool(client) + [f"class {class_}"] * bool(class_)
        lines.append(f"[bold]{escape(name)}[/] fails most: {', '.join(failing) or 'nowhere'}")
    narrower = [_method_rows(table, COLUMNS[:count], None) for count in range(len(COLUMNS), 0, -1)]
    return Group(next((rows for rows in narrower if fits(rows, width)), narrower[-1]), *lines, "")


def fits(rows: Table, width: int) -> bool:
    """Whether a table fits into this many characters."""
    return Measurement.get(_UNBOUNDED, _UNBOUNDED.options, rows).maximum <= width


def _method_rows(
    table: Mapping[str, Any], columns: Sequence[tuple[str, str, bool]], worst: Mapping[str, tuple[str, str]] | None
) -> Table:
    methods = table["methods"]
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    out.add_column("method", overflow="fold")
    titles = [title for title, _, _ in columns] + (["fails most\nclient", "\nclass"] if worst else [])
    for title in titles:
        out.add_column(title, justify="right", no_wrap=True)
    best = {}
    for _, key, higher_is_better in columns:
        means = [round(values[key]["mean"], 2) for values in methods.values()]
        best[key] = max(means) if higher_is_better else min(means)
    for name, values in methods.items():
        cells = []
        for _, key, _ in columns:
            text = format_mean_std(values[key])
            cells.append(f"[bold green]{text}[/]" if round(values[key]["mean"], 2) == best[key] else text)
        out.add_row(escape(name), *cells, *((text or "none" for text in worst[name]) if worst else ()))
    return out


def worst_client_and_class(
    results: Mapping[int, MethodResult], client_names: Sequence[str], class_names: Sequence[str]
) -> tuple[str, str]:
    """The client and the class with the lowest accuracy of a method, as text; empty if it is 100 %.

    Classes are the same for every seed, and their samples are added up; the clients of each seed are different.
    """
    correct, total = (torch.stack([getattr(r, part) for r in results.values()]) for part in ("correct", "total"))
    clients = _client_labels(results, client_names)
    return (
        _lowest(correct.sum(2).flatten(), total.sum(2).flatten(), clients),
        _lowest(correct.sum((0, 1)), total.sum((0, 1)), class_names),
    )


def _client_labels(seeds: Collection[int], client_names: Sequence[str]) -> list[str]:
    """The clients of all seeds, with the seed in the label if there are several."""
    return [name if len(seeds) == 1 else f"{name}, seed {seed}" for seed in seeds for name in client_names]


def clients_without_test_data(results: Mapping[int, Result], client_names: Sequence[str]) -> str:
    """A line with the clients that have no test data; empty if there are none."""
    total = torch.stack([next(iter(result.values())).total for result in results.values()])  # (seeds, N, K)
    is_empty = (total.sum(2) == 0).flatten().tolist()
    names = [name for name, empty in zip(_client_labels(results, client_names), is_empty, strict=True) if empty]
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"[dim]clients without test data (not evaluated): {escape('; '.join(names[:_MAX_NAMES]))}{more}[/]"


def _lowest(correct: Tensor, total: Tensor, names: Sequence[str]) -> str:
    accuracy = (100 * correct / total.clamp(min=1)).where(total > 0, 101.0)
    worst = int(accuracy.argmin())
    if correct[worst] == total[worst]:  # all are correct: nothing fails
        return ""
    counts = f" ({int(correct[worst])} of {int(total[worst])})" if total[worst] < _FEW_SAMPLES else ""
    return f"{escape(names[worst])}: {accuracy[worst]:.0f} %{counts}"


def legend(results: Mapping[int, Result]) -> Table:
    """The meaning of the columns, and which models are evaluated."""
    first = next(iter(results.values()))
    kinds: dict[str, list[str]] = {"personal models": [], "shared model": []}
    for name, r in first.items():
        kinds["personal models" if r.method.personal else "shared model"].append(escape(name))
    lines = {
        "accuracy": "% of a client's test data, mean over clients",
        "client fairness": "std over clients; lower is fairer",
        "client data fairness": "std over a client's classes, mean over clients",
    }
    if len(results) > 1:
        lines["±"] = f"std over {len(results)} seeds"
    lines["evaluated"] = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in kinds.items() if names)
    never_selected = max(r.summary.never_selected for result in results.values() for r in result.values())
    if kinds["personal models"] and never_selected:
        clients = "1 client" if never_selected == 1 else f"{never_selected} clients"
        lines["never selected"] = f"{clients}, evaluated with the shared model"
    if (privacy := next(iter(first.values())).privacy) is not None:
        covered = "shared model, not personal" if kinds["personal models"] else "shared model"
        lines["privacy"] = f"epsilon {privacy.epsilon:.3g}, delta {privacy.delta:g}: {covered}"
    lines["certificate"] = certificate_text(results)
    out = Table.grid(padding=(0, 2))
    for title, text in lines.items():
        out.add_row(f"[dim]{title}[/]", f"[dim]{text}[/]")
    return out


def certificate_text(results: Mapping[int, Result]) -> str:
    """The certificate of each method over the clients of all seeds; of many methods, of the most accurate."""
    first = next(iter(results.values()))
    shown = most_accurate({name: r.summary for name, r in first.items()}, _MAX_CERTIFIED)
    certificates = {}
    for name in shown:
        correct, total = (
            torch.cat([getattr(r[name], part) for r in results.values()]) for part in ("correct", "total")
        )
        certificates[name] = Certificate(correct, total)
    return escape(describe(certificates, unseen=len(results) == 1))


def format_mean_std(values: Mapping[str, Any]) -> str:
    """Mean and, of several seeds, standard deviation of a metric."""
    return f"{values['mean']:.2f}" + ("" if values["std"] is None else f" ± {values['std']:.2f}")


def most_accurate(summaries: Mapping[str, Summary], count: int) -> dict[str, Summary]:
    """All methods, or the `count` most accurate ones if there are more."""
    if len(summaries) <= count:
        return dict(summaries)
    ranked = sorted(summaries.items(), key=lambda item: -item[1].evaluated.accuracy)
    return dict(ranked[:count])


def progress_table(summaries: Mapping[str, Summary] | None) -> Table:
    """The table below the progress bar."""
    out = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    for title in ("method", "accuracy", "client fairness", "client data fairness"):
        out.add_column(title, justify="left" if title == "method" else "right")
    for name, summary in most_accurate(summaries or {}, 8).items():
        m = summary.evaluated
        out.add_row(escape(name), f"{m.accuracy:.2f}", f"{m.client_fairness:.2f}", f"{m.client_data_fairness[0]:.2f}")
    return out
