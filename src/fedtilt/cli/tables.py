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
from fedtilt.data.groups import in_words
from fedtilt.evaluation.certificate import Certificate, describe
from fedtilt.evaluation.metrics import ACCURACY, SCORES, main_score, scores_of
from fedtilt.evaluation.results import MethodResult, Result
from fedtilt.evaluation.round_metrics import RoundMetrics

Column = tuple[str, str, bool]  # title, key in `over_seeds`, whether higher is better
_MAX_CERTIFIED = 4  # methods in the line of the certificate
_FEW_SAMPLES = 10  # a score on fewer test samples is printed with their number
_MAX_NAMES = 5  # in a list of clients
_UNBOUNDED = Console(width=10_000)  # to measure the full width of a table


def _columns(table: Mapping[str, Any]) -> list[Column]:
    """The columns of a table from `over_seeds`: its scores, and their fairness."""
    keys = next(iter(table["methods"].values()))
    main = main_score(keys)
    return [
        *((score.title, score.name, score.higher_is_better) for score in SCORES.values() if score.name in keys),
        ("client\nfairness", "client_fairness", False),
        ("client data\nfairness", "client_data_fairness_mean", False),
        ("worst\n10 %", "worst", main.higher_is_better),
    ]


def comparison_table(
    table: Mapping[str, Any],
    results: Mapping[int, Result],
    client_names: Sequence[str],
    class_names: Sequence[str],
    width: int,
) -> Group:
    """One row per method, the best value of a column in bold, and the worst client and class or group of each method.

    On a narrow terminal, the worst clients and classes are lines below the table, and columns are left out.

    Args:
        table: the metrics of all methods, from `over_seeds`
        results: the results of every seed
        client_names: the names of the clients
        class_names: the names of the classes, or of the groups in their place
        width: of the terminal, in characters
    """
    first = next(iter(results.values()))
    worst = {
        name: worst_client_and_class(
            {seed: result[name] for seed, result in results.items()}, client_names, class_names
        )
        for name in first
    }
    columns, group = _columns(table), next(iter(first.values())).group
    full = _method_rows(table, columns, group, worst)
    if fits(full, width):
        return Group(full)
    lines = []
    for name, (client, class_) in worst.items():
        failing = [f"client {client}"] * bool(client) + [f"{escape(group)} {class_}"] * bool(class_)
        lines.append(f"[bold]{escape(name)}[/] fails most: {', '.join(failing) or 'nowhere'}")
    narrower = [_method_rows(table, columns[:count], group, None) for count in range(len(columns), 0, -1)]
    return Group(next((rows for rows in narrower if fits(rows, width)), narrower[-1]), *lines, "")


def fits(rows: Table, width: int) -> bool:
    """Whether a table fits into this many characters."""
    return Measurement.get(_UNBOUNDED, _UNBOUNDED.options, rows).maximum <= width


def _method_rows(
    table: Mapping[str, Any], columns: Sequence[Column], group: str, worst: Mapping[str, tuple[str, str]] | None
) -> Table:
    methods = table["methods"]
    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    out.add_column("method", overflow="fold")
    titles = [title for title, _, _ in columns] + (["fails most\nclient", f"\n{escape(group)}"] if worst else [])
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
    """The client and the class or group with the worst score of a method, as text; empty if nothing is wrong.

    Classes are the same for every seed, and their samples are added up; the clients of each seed are different.
    """
    sums, total = (torch.stack([getattr(r, part) for r in results.values()]) for part in ("sums", "total"))
    clients = _client_labels(results, client_names)
    return (
        _worst(sums.sum(2).flatten(0, 1), total.sum(2).flatten(), clients),
        _worst(sums.sum((0, 1)), total.sum((0, 1)), class_names),
    )


def _client_labels(seeds: Collection[int], client_names: Sequence[str]) -> list[str]:
    """The clients of all seeds, with the seed in the label if there are several."""
    return [name if len(seeds) == 1 else f"{name}, seed {seed}" for seed in seeds for name in client_names]


def clients_without_test_data(results: Mapping[int, Result], client_names: Sequence[str]) -> str:
    """A line with the clients that have no test data; empty if there are none."""
    total = torch.stack([next(iter(result.values())).total for result in results.values()])  # (seeds, N, K)
    is_empty = (total.sum(2) == 0).flatten().tolist()
    attack = [name in result.attackers for result in results.values() for name in client_names]
    labels = zip(_client_labels(results, client_names), is_empty, attack, strict=True)
    names = [name for name, empty, attacks in labels if empty and not attacks]
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"[dim]clients without test data (not evaluated): {escape('; '.join(names[:_MAX_NAMES]))}{more}[/]"


def _worst(sums: Tensor, total: Tensor, names: Sequence[str]) -> str:
    score = scores_of(sums)[0]
    values = score.values(sums, total)
    worst = score.worst_position(values)
    if score is not ACCURACY:
        counts = f" ({int(total[worst])} samples)" if total[worst] < _FEW_SAMPLES else ""
        return f"{escape(names[worst])}: {values[worst]:.4g}{counts}"
    if sums[worst] == total[worst]:  # all are correct: nothing fails
        return ""
    counts = f" ({int(sums[worst])} of {int(total[worst])})" if total[worst] < _FEW_SAMPLES else ""
    return f"{escape(names[worst])}: {values[worst]:.0f} %{counts}"


def legend(results: Mapping[int, Result]) -> Table:
    """The meaning of the columns, and which models are evaluated."""
    first = next(iter(results.values()))
    main = scores_of(next(iter(first.values())).sums)[0]
    kinds: dict[str, list[str]] = {"personal models": [], "shared model": []}
    for name, r in first.items():
        kinds["personal models" if r.method.has_personal else "shared model"].append(escape(name))
    group, is_class = next(iter(first.values())).group, main is ACCURACY
    groups = escape(in_words(group))
    of_main = "" if is_class else f" of the {main.title}"
    scores = {"accuracy": "% of a client's test data, mean over clients"}
    if not is_class:
        scores = {"MAE, RMSE": "errors on a client's test data in the unit of the target, mean over clients"}
    lines = scores | {
        "client fairness": f"std{of_main} over clients; lower is fairer",
        "client data fairness": f"std{of_main} over a client's {groups}, mean over clients",
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
    if first.attack is not None:
        lines["attack"] = attack_text(results)
    if is_class:
        lines["certificate"] = certificate_text(results)
    out = Table.grid(padding=(0, 2))
    for title, text in lines.items():
        out.add_row(f"[dim]{title}[/]", f"[dim]{text}[/]")
    return out


def attack_text(results: Mapping[int, Result]) -> str:
    """Who attacks, and how well a backdoor works."""
    first = next(iter(results.values()))
    assert first.attack is not None
    clients = len(next(iter(first.values())).client_names)
    text = f"{first.attack.kind} by {len(first.attackers)} of {clients} clients"
    if len(results) == 1:
        more = ", …" if len(first.attackers) > _MAX_NAMES else ""
        text += f" ({escape(', '.join(first.attackers[:_MAX_NAMES]))}{more})"
    text += f" from round {first.attack.from_round} on; all metrics are over the other {clients - len(first.attackers)}"
    found = {name: [r[name].attack_success for r in results.values()] for name in first}
    success = {name: [value for value in values if value is not None] for name, values in found.items()}
    shown = [f"{escape(name)} {sum(values) / len(values):.1f} %" for name, values in success.items() if values]
    return text + (f"; success of the backdoor: {', '.join(shown)}" if shown else "")


def certificate_text(results: Mapping[int, Result]) -> str:
    """The certificate of each method over the clients of all seeds; of many methods, of the best."""
    first = next(iter(results.values()))
    shown = best_methods({name: r.summary for name, r in first.items()}, _MAX_CERTIFIED)
    attackers = sum(len(result.attackers) for result in results.values())
    certificates = {}
    for name in shown:
        correct, total = (torch.cat([getattr(r[name], part) for r in results.values()]) for part in ("sums", "total"))
        certificates[name] = Certificate(correct, total, group=first[name].group, attackers=attackers)
    return escape(describe(certificates, unseen=len(results) == 1))


def format_mean_std(values: Mapping[str, Any]) -> str:
    """Mean and, of several seeds, standard deviation of a metric."""
    return f"{values['mean']:.2f}" + ("" if values["std"] is None else f" ± {values['std']:.2f}")


def best_methods(summaries: Mapping[str, RoundMetrics], count: int) -> dict[str, RoundMetrics]:
    """All methods, or the `count` with the best score if there are more."""
    if len(summaries) <= count:
        return dict(summaries)
    higher = SCORES[next(iter(summaries.values())).evaluated.score].higher_is_better
    ranked = sorted(summaries.items(), key=lambda item: item[1].evaluated.mean, reverse=higher)
    return dict(ranked[:count])


def progress_table(summaries: Mapping[str, RoundMetrics] | None) -> Table:
    """The table below the progress bar."""
    out = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    shown = best_methods(summaries or {}, 8)
    score = SCORES[next(iter(shown.values())).evaluated.score].title if shown else ""
    for title in ("method", score, "client fairness", "client data fairness"):
        out.add_column(title, justify="left" if title == "method" else "right")
    for name, summary in shown.items():
        m = summary.evaluated
        out.add_row(escape(name), f"{m.mean:.2f}", f"{m.client_fairness:.2f}", f"{m.client_data_fairness[0]:.2f}")
    return out
