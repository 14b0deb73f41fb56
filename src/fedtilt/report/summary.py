"""The results of a run in sentences; every number comes from the run."""

import math
from collections.abc import Sequence
from statistics import median

import torch

from fedtilt.evaluation.certificate import Certificate, describe
from fedtilt.evaluation.metrics import BEYOND_CHANCE
from fedtilt.evaluation.scores import ACCURACY, MAE, Score, shares_of
from fedtilt.evaluation.true_spread import true_spread
from fedtilt.report import compare, weak_spots
from fedtilt.report.figure import capitalise
from fedtilt.report.run_reader import Run
from fedtilt.text_tables import article, join_words


def headline(run: Run) -> str:
    """The main result: which method has the best score and is fairest, or which are not told apart."""
    draws, table = compare.draws_of(run), compare.comparison_table(run, "evaluated")
    main, fairness = compare.lead_metric(run), compare.fairness_metrics(run)
    if len(table) == 1:
        (name, row), = table.items()  # fmt: skip
        amounts = [f"{article(metric.title)} {metric.title} of {_amount(row, metric)}" for metric in (main, *fairness)]
        return f"{name} reaches {join_words(amounts)}."
    wins: dict[str, list[str]] = {}  # method → what it is best in
    ties: dict[tuple[str, ...], list[str]] = {}  # methods that are not told apart → in what
    highest = "highest" if main.higher_is_better else "lowest"
    for metric, superlative in ((main, highest), *((metric, "best") for metric in fairness)):
        names = compare.best_by(table, metric, draws)
        if len(names) == 1:
            amount = _amount(table[names[0]], metric)
            wins.setdefault(names[0], []).append(f"the {superlative} {metric.title} ({amount})")
        else:
            tied = tuple(m for m in table if m in names)
            amounts = list(dict.fromkeys(_amount(table[m], metric) for m in tied))
            ties.setdefault(tied, []).append(f"in {metric.title} ({join_words(amounts)})")
    clauses = [f"{name} has {join_words(what)}" for name, what in wins.items()]
    for group, what in ties.items():
        who = f"all {len(table)} methods" if len(group) == len(table) > 2 else join_words(group)
        clauses.append(f"{who} are not told apart {join_words(what)}")
    text = "; ".join(clauses) + "."
    return f"A{text[1:]}" if text.startswith("all ") else text


def worst_scores(run: Run) -> str:
    """The client and the class or group that each of the best methods fails most, beyond chance; empty: unknown."""
    if not weak_spots.knows_chance(run):
        return ""
    clauses = []
    for method in compare.best_methods(run, 5):
        found = {"client": weak_spots.worst_client(run, method), run.group: weak_spots.worst_group(run, method)}
        texts = []
        for kind, worst in found.items():
            seed = "" if worst is None or worst.seed is None or len(run.compared) == 1 else f" of seed {worst.seed}"
            texts.append(f"{kind} {worst.name}{seed}: {worst_score(run.score, worst)}" if worst else f"no {kind}")
        clauses.append(f"{method}, {', and '.join(texts)}")
    lead = compare.lead_metric(run)
    extreme = "highest" if lead.higher_is_better else "lowest"
    shown = f" These are the {len(clauses)} of {len(run.methods)} methods with the {extreme} {lead.title}."
    text = f"Fails most, worse than the mean beyond chance among that many, with a 95 % interval: {'; '.join(clauses)}."
    return f"{text}{shown if len(clauses) < len(run.methods) else ''}"


def worst_score(score: Score, worst: weak_spots.Worst) -> str:
    """The true score of a client or group, estimated, and its interval."""
    ends = (f"{end:.0f}" if score is ACCURACY else f"{end:.4g}" for end in (worst.low, worst.high))
    value = format_percent(worst.value) if score.unit else f"{worst.value:.4g}"
    return f"{value} ({' to '.join(ends)})"


def fairness_beyond_chance(run: Run) -> str:
    """Intervals of the spread of true scores over clients, and which method is fairer; empty: of this score, unknown.

    Seeds draw the same rows again, so the ends are medians over seeds, and not narrower with more of them.
    """
    if run.score not in (ACCURACY, MAE):
        return ""
    spreads = {
        m: [true_spread(*s.of_chance(m), fixed_shares=s.fixed_shares) for s in run.compared]
        for m in compare.best_methods(run, 5)
    }
    digits = ".1f" if run.score is ACCURACY else ".3g"
    texts = []
    for method, found in spreads.items():
        known = [spread for spread in found if not spread.reason]
        low, high = (median(getattr(s, end) for s in known) if known else math.nan for end in ("low", "high"))
        texts.append(f"{method} {low:{digits}} to {high:{digits}}" if known else f"{method} none, as {found[0].reason}")
    fairest, others = _fairest(run, tuple(spreads))
    fairer = f"; {fairest} is fairer than {join_words(others)} beyond chance" if others else ""
    return f"std over clients of the true {run.score.title}; 95 % intervals: {', '.join(texts)}{fairer}"


def _fairest(run: Run, methods: Sequence[str]) -> tuple[str, list[str]]:
    """The fairest of these methods beyond chance, and those that it is fairer than."""
    metric = next((metric for metric in compare.metrics_of(run) if metric.key == BEYOND_CHANCE), None)
    if metric is None:  # such as of sites that withhold their counts by class
        return "", []
    table = compare.comparison_table(run, "evaluated")
    names = compare.best_by({method: table[method] for method in methods}, metric, compare.draws_of(run))
    return names[0], [method for method in methods if method not in names]


def certificates(run: Run) -> str:
    """The certificates of the best methods, over the clients of all seeds; empty for numbers as targets."""
    if shares_of(run.compared[0].sums(run.methods[0])) is None:
        return ""
    total = torch.cat([seed_run.total for seed_run in run.compared])
    absent = sum(len(seed_run.attackers) + len(seed_run.left_out) for seed_run in run.compared)
    by_method = {
        method: Certificate.of(torch.cat([s.sums(method) for s in run.compared]), total, group=run.group, absent=absent)
        for method in compare.best_methods(run, 5)
    }
    return f"{capitalise(describe(by_method, unseen=len(run.compared) == 1))}."


def facts(run: Run) -> str:
    """Data set, clients, outliers, rounds and seeds in one line."""
    settings = run.fingerprint
    outliers, data = settings["outliers"], "clean data"
    if outliers["kind"] != "none":
        drawn = "every round" if outliers.get("redraw", "round") == "round" else "drawn once"
        data = f"{float(outliers['rate']):.0%} {outliers['kind']} {drawn}".replace("%", " %")
        if float(outliers["clients"]) < 1:
            data += f" at {float(outliers['clients']):.0%} of the clients".replace("%", " %")
    rounds = f"{run.rounds}" if run.round >= run.rounds else f"{run.round} of {run.rounds}"
    if any(seed_run.has_ended for seed_run in run.compared):
        ends = sorted({seed_run.round for seed_run in run.compared})
        rounds = f"ended early after {ends[0]}{f' to {ends[-1]}' * (len(ends) > 1)} of {run.rounds}"
    counts = f"{rounds} round{'' if rounds == '1' else 's'}, {len(run.seeds)} seed{'s' if len(run.seeds) > 1 else ''}"
    return f"{settings['data']}, {run.compared[0].clients:,} clients, {data}, {counts}"


def format_percent(value: float) -> str:
    """A percentage without rounding up to 100 %.

    >>> format_percent(99.7), format_percent(61.3)
    ('99.7 %', '61 %')
    """
    return f"{value:.0f} %" if value == 100 or round(value) < 100 else f"{min(value, 99.9):.1f} %"


def _amount(row: compare.Row, metric: compare.Metric) -> str:
    digits = 1 if metric.digits == 2 else metric.digits
    return f"{row[metric.key].mean:.{digits}f} {metric.unit}".rstrip()
