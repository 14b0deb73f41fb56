"""The results of a run in sentences; every number comes from the run."""

import shlex
from collections.abc import Sequence

import torch
from torch import Tensor

from fedtilt.evaluation.certificate import Certificate, describe
from fedtilt.report.compare import (
    ACCURACY,
    CLIENT_DATA_FAIRNESS,
    CLIENT_FAIRNESS,
    VIEWS,
    Metric,
    Row,
    best_and_tied,
    comparison_table,
    most_accurate,
)
from fedtilt.report.run_reader import Run

_SUPERLATIVES = ((ACCURACY, "highest"), (CLIENT_FAIRNESS, "best"), (CLIENT_DATA_FAIRNESS, "best"))


def headline(run: Run) -> str:
    """The main result: which methods are most accurate and fairest, or tie."""
    table = comparison_table(run, "evaluated")
    if len(table) == 1:
        (name, row), = table.items()  # fmt: skip
        return (
            f"{name} reaches an accuracy of {_amount(row, ACCURACY)}, a client fairness of "
            f"{_amount(row, CLIENT_FAIRNESS)} and a client data fairness of {_amount(row, CLIENT_DATA_FAIRNESS)}."
        )
    wins: dict[str, list[str]] = {}  # method → what it is best in
    ties: dict[tuple[str, ...], list[str]] = {}  # methods that tie → in what
    for metric, superlative in _SUPERLATIVES:
        group = best_and_tied(table, metric)
        if len(group) == 1:
            amount = _amount(table[group[0]], metric)
            wins.setdefault(group[0], []).append(f"the {superlative} {metric.title} ({amount})")
        else:
            tied = tuple(m for m in table if m in group)
            amounts = list(dict.fromkeys(_amount(table[m], metric) for m in tied))
            ties.setdefault(tied, []).append(f"in {metric.title} ({join_words(amounts)})")
    clauses = [f"{name} has {join_words(what)}" for name, what in wins.items()]
    clauses += [f"{_name_methods(group, len(table))} tie {join_words(what)}" for group, what in ties.items()]
    text = "; ".join(clauses) + "."
    return f"A{text[1:]}" if text.startswith("all ") else text


def lowest_accuracies(run: Run) -> str:
    """The client and the class with the lowest accuracy under each of the most accurate methods."""
    several_seeds = len(run.compared) > 1
    clauses = []
    for method in most_accurate(run, 5):
        lowest = []
        for seed_run in run.compared:
            by_client = _percent_correct(seed_run.sums(method).sum(1), seed_run.total.sum(1))
            client = int(by_client.argmin())
            accuracy = float(by_client[client])
            seed = f", seed {seed_run.seed}" if several_seeds else ""
            lowest.append((accuracy, f"client {seed_run.client_names[client]} ({format_percent(accuracy)}{seed})"))
        correct = sum(seed_run.sums(method).sum(0) for seed_run in run.compared)
        total = sum(seed_run.total.sum(0) for seed_run in run.compared)
        by_class = _percent_correct(correct, total)  # type: ignore[arg-type]
        label = int(by_class.argmin())
        class_name = run.compared[0].class_names[label]
        clauses.append(f"{method}, {min(lowest)[1]} and class {class_name} ({format_percent(float(by_class[label]))})")
    shown = f" These are the {len(clauses)} most accurate of {len(run.methods)} methods."
    return f"Lowest accuracy: {'; '.join(clauses)}.{shown if len(clauses) < len(run.methods) else ''}"


def certificates(run: Run) -> str:
    """The certificates of the most accurate methods, over the clients of all seeds."""
    total = torch.cat([seed_run.total for seed_run in run.compared])
    by_method = {
        method: Certificate(torch.cat([seed_run.sums(method) for seed_run in run.compared]), total)
        for method in most_accurate(run, 5)
    }
    text = describe(by_method, unseen=len(run.compared) == 1)
    return f"{text[0].upper()}{text[1:]}."


def cautions(run: Run) -> list[str]:
    """What to know before trusting the numbers."""
    sentences = []
    if not run.finished:
        sentences.append(_unfinished(run))
    if len(run.compared) == 1:
        sentences.append("One seed: small differences may be chance; more seeds give error bars.")
    else:
        few = " With fewer than five seeds, most differences are ties." if len(run.compared) < 5 else ""
        sentences.append(
            f"Over {len(run.compared)} seeds; a tie is a difference to the best whose 95 % interval, paired by seed, "
            f"contains 0.{few}"
        )
    summaries = [seed_run.last(method) for seed_run in run.compared for method in run.methods]
    never_selected = [summary.never_selected for summary in summaries if summary.personal is not None]
    low, high = min(never_selected, default=0), max(never_selected, default=0)
    if high:
        count = high if low == high else f"Up to {high}"
        sentences.append(
            f"{count} of {len(run.compared[0].total):,} clients were never selected and are evaluated on the shared "
            f"model; the table “{VIEWS['ever_selected'].title}” leaves them out."
        )
    if (privacy := summaries[0].privacy) is not None:
        sentences.append(
            f"Client-level differential privacy: epsilon {privacy.epsilon:.3g} at delta {privacy.delta:g} after round "
            f"{run.round}, with noise multiplier {privacy.noise:g}. It covers the shared model of one method, but "
            "neither personal models nor the counts on this page."
        )
    if any(summary.clean for summary in summaries):
        sentences.append(f"Only some clients have outliers; the table “{VIEWS['clean'].title}” leaves them out.")
    return sentences


def _unfinished(run: Run) -> str:
    text = f"Unfinished: compared after round {run.round} of {run.rounds}"
    behind = [str(seed) for seed in run.seeds if seed not in [seed_run.seed for seed_run in run.compared]]
    if behind:
        text += f", without seed{'s' if len(behind) > 1 else ''} {join_words(behind)}, not yet at this round"
    remedy = f"; continue with: fedtilt resume {shlex.quote(str(run.folder))}" if run.spec else ""
    return f"{text}{remedy}."


def facts(run: Run) -> str:
    """Data set, clients, outliers, rounds and seeds in one line."""
    settings = run.fingerprint
    outliers = settings["outliers"]
    if outliers["kind"] == "none":
        data = "clean data"
    else:
        drawn = "every round" if outliers.get("redraw", "round") == "round" else "drawn once"
        data = f"{float(outliers['rate']):.0%} {outliers['kind']} {drawn}".replace("%", " %")
        if float(outliers["clients"]) < 1:
            data += f" at {float(outliers['clients']):.0%} of the clients".replace("%", " %")
    seeds = f"{len(run.seeds)} seed{'s' if len(run.seeds) > 1 else ''}"
    return f"{settings['data']}, {settings['clients']:,} clients, {data}, {run.rounds} rounds, {seeds}"


def join_words(words: Sequence[str]) -> str:
    """Join words with commas and "and".

    >>> join_words(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def format_percent(value: float) -> str:
    """A percentage without rounding up to 100 %.

    >>> format_percent(99.7), format_percent(61.3)
    ('99.7 %', '61 %')
    """
    return f"{value:.0f} %" if value == 100 or round(value) < 100 else f"{min(value, 99.9):.1f} %"


def _amount(row: Row, metric: Metric) -> str:
    return f"{row[metric.key].mean:.1f} {metric.unit}"


def _name_methods(group: Sequence[str], methods: int) -> str:
    if len(group) == methods and methods > 2:
        return f"all {methods} methods"
    return join_words(group)


def _percent_correct(correct: Tensor, total: Tensor) -> Tensor:
    """Accuracy in percent; 101 where there is no data, so that it is never the lowest."""
    return (100 * correct.double() / total.clamp(min=1).double()).where(total > 0, 101.0)
