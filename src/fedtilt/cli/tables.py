"""The tables of a run on a terminal: the comparison of methods, groups, their legend, and the progress."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group
from rich.table import Table

from fedtilt.cli.console import escape, fits, text_table
from fedtilt.data.groups import in_words
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.evaluation.scores import ACCURACY, SCORES, others_of
from fedtilt.report import compare, summary
from fedtilt.report.compare import Cell, GroupTable, Metric, comparison_cells, overview_metrics
from fedtilt.report.notes import notes
from fedtilt.report.run_reader import Run
from fedtilt.report.summary import format_mean_std


def comparison_table(run: Run, width: int) -> Group:
    """One row per method, the best in bold, as far as they are told apart; the worst client and class of each method.

    On a narrow terminal, the worst clients and classes are lines below the table, and the last columns are omitted.
    """
    metrics = overview_metrics(run)
    cells = comparison_cells(compare.comparison_table(run, "evaluated"), metrics, compare.draws_of(run))
    worst = {method: worst_texts(run, method) for method in run.methods} if summary.knows_chance(run) else {}

    def build(count: int, worst_columns: Sequence[str] = ()) -> Table:
        table = text_table(["method"], [*map(_title, metrics[:count]), *worst_columns])
        for method, row in cells.items():
            fails = [text or "none" for text in worst[method]] if worst_columns else []
            table.add_row(escape(method), *_texts(row[:count]), *fails)
        _add_baselines(table, run, metrics[:count])
        return table

    full = build(len(metrics), ["fails most\nclient", f"\n{escape(run.group)}"] if worst else ())
    if fits(full, width):
        return Group(full)
    lines = []
    for method, (client, group) in worst.items():
        failing = [f"client {client}"] * bool(client) + [f"{escape(run.group)} {group}"] * bool(group)
        lines.append(f"[bold]{escape(method)}[/] fails most: {', '.join(failing) or 'nowhere'}")
    narrower = (build(count) for count in range(len(metrics), 1, -1))
    return Group(next((table for table in narrower if fits(table, width)), build(1)), *lines, "")


def _add_baselines(table: Table, run: Run, metrics: Sequence[Metric]) -> None:
    """A section with what the methods are compared with."""
    table.add_section()
    for name, row in compare.baseline_table(run).items():
        texts = [format_mean_std(row[m.key], m.digits) if m.key in row else "" for m in metrics]
        table.add_row(f"[dim]{escape(name)}[/]", *(f"[dim]{text}[/]" for text in texts))


def _title(metric: Metric) -> str:
    """The title in two lines."""
    return "\n".join(metric.title.replace(" %", "\N{NO-BREAK SPACE}%").rsplit(" ", 1))


def _texts(cells: Sequence[Cell]) -> list[str]:
    texts = [format_mean_std(cell.values, cell.digits) for cell in cells]
    return [f"[bold green]{text}[/]" if cell.is_best else text for text, cell in zip(texts, cells, strict=True)]


def worst_texts(run: Run, method: str) -> tuple[str, str]:
    """The client and the class or group that a method fails most; empty: chance explains all differences."""
    return _worst_text(run, summary.worst_client(run, method)), _worst_text(run, summary.worst_group(run, method))


def _worst_text(run: Run, worst: summary.Worst | None) -> str:
    if worst is None:
        return ""
    seed = f", seed {worst.seed}" if worst.seed is not None and len(run.compared) > 1 else ""
    return f"{escape(worst.name)}{seed}: {summary.worst_score(run.score, worst)}"


def group_tables(run: Run, width: int) -> list[Table]:
    """A table per grouping: a row per method, what is not told apart from the best in bold.

    If the groups have no room for a column each, the worst group of each method is named instead.
    """
    tables = []
    for found in compare.group_tables(run):
        full = _group_table(found, (*found.groups, *found.metrics[1:]))
        tables.append(full if found.groups and fits(full, width) else _group_table(found, found.metrics))
    return tables


def _group_table(found: GroupTable, metrics: Sequence[Metric]) -> Table:
    titles = [escape(metric.title) if metric in found.groups else _title(metric) for metric in metrics]
    table = text_table([f"by {escape(found.column)}"], titles)
    names_worst = metrics[0].key == "worst"
    for method, cells in found.cells(metrics).items():
        texts = _texts(cells)
        if names_worst and method in found.worst:
            texts[0] = f"{escape(found.worst[method])}: {texts[0]}"
        table.add_row(escape(method), *texts)
    return table


_ABOUT_SCORES = {  # by the main score
    "mae": "errors on a client's test data in the unit of the target",
    "loss": "of a client's samples, each the mean over its tokens; perplexity is the exponential of a client's loss",
    "label_accuracy": "% of right labels, of samples with all labels right, and F1 over all labels, of a client",
}


def legend(run: Run) -> Table:
    """The meaning of the columns, which models are evaluated, and what limits the numbers."""
    seed_run, score = run.compared[0], run.score
    kinds: dict[str, list[str]] = {"personal models": [], "shared model": []}
    for method in run.methods:
        has_personal = seed_run.counts[method].personal is not None
        kinds["personal models" if has_personal else "shared model"].append(escape(method))
    of_score = "" if score is ACCURACY else f" of the {score.title}"
    lines = {"accuracy": "% of a client's test data, mean over clients"}
    if rare := compare.rare_class(run):
        labels = next(iter(run.predictions[0].values())).labels
        random = f"a random ranking has {int(labels.bincount(minlength=2).min()) / len(labels):.3f}"
        lines = {"AUPRC": f"average precision of class {escape(rare)} on all test samples; {random}"} | lines
    if score is not ACCURACY:
        titles = ", ".join(each.title for each in (score, *others_of(score)))
        lines = {titles: f"{_ABOUT_SCORES[score.name]}, mean over clients"}
    lines["client fairness"] = f"std{of_score} over clients; lower is fairer"
    if len(compare.fairness_metrics(run)) > 1:
        groups = escape(in_words(run.group))
        lines["client data fairness"] = f"std{of_score} over a client's {groups}, mean over clients"
    if beyond_chance := summary.fairness_beyond_chance(run):
        lines |= {
            "beyond chance": escape(beyond_chance),
            "fails most": "worse than the mean beyond chance, among that many; shrunk towards it; none: nobody is",
        }
    lines["evaluated"] = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in kinds.items() if names)
    if run.baselines:
        lines["compared with"] = _baselines_text(run)
    if certificate := summary.certificates(run):
        lines["certificate"] = escape(f"{certificate[0].lower()}{certificate[1:-1]}")
    return _legend([*lines.items(), *((title, escape(text)) for title, text in notes(run))])


def _baselines_text(run: Run) -> str:
    ends = " or ".join(f"{round:,}" for round in sorted({seed_run.round for seed_run in run.compared}))
    meanings = {
        "local": f"local: every client alone, with as many steps as in {ends} rounds",
        "majority": "majority: the same class for all",
        "mean": "mean: the same number for all",
        "frequencies": "frequencies: as often as in the training data, for all",
    }
    texts = [text for name, text in meanings.items() if name in run.baselines]
    if any(name.startswith("pooled") for name in run.baselines):
        texts.append("pooled: scikit-learn on all clients' rows, with the client as a column")
    return "; ".join(texts)


def group_legend(run: Run) -> Table:
    """The meaning of the columns of `group_tables`."""
    score = run.score
    return _legend(
        [
            ("group", f"{score.unit or score.title} of its test samples at all clients"),
            ("spread", "std over groups; lower is fairer"),
            ("in clients", "over a client's own groups (a spread of 0 if it has one); mean over clients"),
        ]
    )


def _legend(lines: Iterable[tuple[str, str]]) -> Table:
    out = Table.grid(padding=(0, 2))
    out.add_column(min_width=len("client data fairness"))
    for title, text in lines:
        out.add_row(f"[dim]{title}[/]", f"[dim]{text}[/]")
    return out


def leading_methods(summaries: Mapping[str, RoundMetrics], count: int) -> dict[str, RoundMetrics]:
    """All methods, or the `count` with the best score if there are more."""
    if len(summaries) <= count:
        return dict(summaries)
    higher = SCORES[next(iter(summaries.values())).evaluated.score].higher_is_better
    ranked = sorted(summaries.items(), key=lambda item: item[1].evaluated.mean, reverse=higher)
    return dict(ranked[:count])


def progress_table(summaries: Mapping[str, RoundMetrics]) -> Table:
    """The table below the progress bar."""
    out = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    shown = leading_methods(summaries, 8)
    score = SCORES[next(iter(shown.values())).evaluated.score].title
    rows = {}
    for name, metrics in shown.items():
        m = metrics.evaluated
        rows[name] = [m.mean, m.client_fairness, *(m.client_data_fairness or ())[:1]]
    titles = "method", score, "client fairness", "client data fairness"
    for title in titles[: 1 + max(map(len, rows.values()))]:
        out.add_column(title, justify="left" if title == "method" else "right")
    for name, values in rows.items():
        out.add_row(escape(name), *(f"{value:.2f}" for value in values))
    return out
