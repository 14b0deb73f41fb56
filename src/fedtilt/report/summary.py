"""The results of a run as text: in sentences, where its methods fail, and its tables as Markdown and CSV."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple, Self

import torch

from fedtilt.evaluation.certificate import Certificate, describe
from fedtilt.evaluation.metrics import BEYOND_CHANCE, GroupCounts
from fedtilt.evaluation.results import SeedValues
from fedtilt.evaluation.scores import ACCURACY, MAE, Score, client_scores, shares_of
from fedtilt.evaluation.true_spread import client_estimates, knows_variances, true_spread
from fedtilt.evaluation.verdicts import Verdict
from fedtilt.report import compare
from fedtilt.report.figure import capitalise
from fedtilt.report.notes import notes
from fedtilt.report.run_reader import Run, SeedRun
from fedtilt.report.verdict import thresholds, verdict
from fedtilt.text_tables import article, csv_text, join_words, markdown_table, markdown_text


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


def knows_chance(run: Run) -> bool:
    """Whether the part of chance in the scores is known; otherwise, nothing can be said to fail beyond it."""
    return all(knows_variances(*s.of_chance(run.methods[0]), fixed_shares=s.drawn.fixed_shares) for s in run.compared)


class Worst(NamedTuple):
    """The client, or the class or group, that a method fails most: the worst of those below the mean beyond chance."""

    name: str
    value: float  # estimate of its true score
    low: float  # of its interval
    high: float
    seed: int | None = None  # None: of all seeds

    @classmethod
    def of(
        cls, score: Score, counts: GroupCounts, names: Sequence[str], seed: int | None = None, *,
        fixed_shares: bool = False, error: float = 0.05,
    ) -> Self | None:  # fmt: skip
        """The worst of several, named wrongly with the probability `error` at most; None: all is chance, or unknown."""
        found = client_estimates(*counts, fixed_shares=fixed_shares)
        i = found.worst(score.higher_is_better, error)
        if i is None:
            return None
        return cls(names[i], float(found.estimate[i]), float(found.low[i]), float(found.high[i]), seed)


def worst_client(run: Run, method: str) -> Worst | None:
    """The client that a method fails most, of all seeds, which have clients of their own."""
    error = 0.05 / len(run.compared)
    found = [
        Worst.of(run.score, s.of_chance(method), s.client_names, s.seed, fixed_shares=s.drawn.fixed_shares, error=error)
        for s in run.compared
    ]
    worst = [client for client in found if client is not None]
    return (min if run.score.higher_is_better else max)(worst, key=lambda client: client.value, default=None)


def worst_group(run: Run, method: str) -> Worst | None:
    """The class or group that a method fails most, over the samples of all clients in the first seed.

    Other seeds have new samples if data is generated; otherwise they draw the same rows again, and are no more samples.
    """
    first, seed_runs = run.compared[0], run.compared
    if not first.drawn.generated or any(s.class_names != first.class_names for s in run.compared):
        seed_runs = run.compared[:1]
    sums = torch.stack([s.sums(method).sum(0) for s in seed_runs]).sum(0)
    total = torch.stack([s.total.sum(0) for s in seed_runs]).sum(0)
    seed = first.seed if len(seed_runs) < len(run.compared) else None
    return Worst.of(run.score, GroupCounts(sums[:, None], total[:, None]), first.class_names, seed)


class ClientScores(NamedTuple):
    """The score of every method on one client."""

    seed_run: SeedRun
    client: int
    values: dict[str, float]  # by method

    @property
    def never_selected(self) -> bool:
        """Whether a method has no personal model of it, though it has of others."""
        counts = [self.seed_run.counts[method] for method in self.values]
        return any(found.personal is not None and bool(found.never_selected[self.client]) for found in counts)


def worst_clients(run: Run, methods: Sequence[str], limit: int = 12) -> list[ClientScores]:
    """The clients with the worst score under any method, worst first; methods contribute clients in turn."""
    sign = 1 if run.score.higher_is_better else -1
    queues = []
    for method in methods:
        entries = []
        for i, seed_run in enumerate(run.compared):
            values = sign * client_scores(seed_run.sums(method), seed_run.total)
            entries += [(v, i, client) for client, v in zip(seed_run.tested, values.tolist(), strict=True)]
        queues.append(sorted(entries)[:limit])
    turns = [(i, client) for turn in zip(*queues, strict=True) for _, i, client in turn]
    worst = []
    for i, client in list(dict.fromkeys(turns))[:limit]:
        seed_run, rows = run.compared[i], slice(client, client + 1)
        by_method = {m: float(client_scores(seed_run.sums(m)[rows], seed_run.total[rows])) for m in methods}
        worst.append(ClientScores(seed_run, client, by_method))
    return sorted(worst, key=lambda entry: min(sign * value for value in entry.values.values()))


def worst_scores(run: Run) -> str:
    """The client and the class or group that each of the best methods fails most, beyond chance; empty: unknown."""
    if not knows_chance(run):
        return ""
    clauses = []
    for method in compare.best_methods(run, 5):
        found = {"client": worst_client(run, method), run.group: worst_group(run, method)}
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


def worst_score(score: Score, worst: Worst) -> str:
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
        m: [true_spread(*s.of_chance(m), fixed_shares=s.drawn.fixed_shares) for s in run.compared]
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


def as_markdown(runs: Sequence[Run], published: Sequence[compare.Published]) -> str:
    """A section per run: the summary, then a table per view; what is not told apart from the best is bold."""
    compare.check_splits(runs)
    blocks = []
    for run, numbers in zip(runs, published, strict=True):
        blocks += [f"## {markdown_text(run.name)}", f"{markdown_text(facts(run))}."]
        blocks.append(f"**{markdown_text(headline(run))}** {markdown_text(worst_scores(run))}".rstrip())
        if text := fairness_beyond_chance(run):
            blocks.append(markdown_text(f"Client fairness beyond chance, {text}."))
        blocks.append(markdown_text(" ".join([*verdict(run), *thresholds(run), *(note.text for note in notes(run))])))
        if text := certificates(run):
            blocks.append(markdown_text(text))
        for table in compare.view_tables(run, numbers):
            blocks += [f"### {table.view.title}", table.view.description, _markdown_table(table)]
    return "\n\n".join(blocks) + "\n"


def as_csv(runs: Sequence[Run], published: Sequence[compare.Published]) -> str:
    """One row per run, method and view, every metric with its standard deviation over seeds, unrounded."""
    metrics = compare.metrics_of(*runs)
    header = ["run", "method", "models", "round", "seeds"]
    header += [name for m in metrics for name in (m.key, f"{m.key}_seed_std")]
    published_metrics = [m for m in metrics if any(m.key in row for numbers in published for row in numbers.values())]
    lines: list[list[Any]] = [header + [f"{m.key}_published" for m in published_metrics]]
    for run, numbers in zip(runs, published, strict=True):
        for view, table in [*compare.comparison_tables(run).items(), ("baseline", compare.baseline_table(run))]:
            for method, row in table.items():
                line = [run.name, method, view, run.round, len(row[metrics[0].key].values)]
                line += [value for m in metrics for value in (row[m.key].mean, row[m.key].std)]
                method_numbers = numbers.get(method, {}) if view == "evaluated" else {}
                lines.append(line + [method_numbers.get(m.key) for m in published_metrics])
    return csv_text(lines)


def format_mean_std(values: SeedValues, digits: int = 2) -> str:
    """Mean ± standard deviation over seeds.

    >>> format_mean_std(SeedValues((1.0, 3.0))), format_mean_std(SeedValues((2.5,)))
    ('2.00 ± 1.41', '2.50')
    """
    return f"{values.mean:.{digits}f}" + ("" if values.std is None else f" ± {values.std:.{digits}f}")


def format_difference(values: SeedValues, published: float) -> str:
    """The mean minus the published number, with its sign.

    >>> format_difference(SeedValues((96.0,)), 97.1)
    '−1.10'
    """
    return f"{values.mean - published:+.2f}".replace("-", "−")


def format_interval(verdict: Verdict) -> str:
    """A difference and its interval, if there is one.

    >>> format_interval(Verdict(2.0, -0.48, 4.48, 0.07)), format_interval(Verdict(1.0, -math.inf, math.inf, 1.0))
    ('+2.00 (−0.48 to +4.48)', '+1.00')
    """
    text = f"{verdict.difference:+.2f}"
    if math.isfinite(verdict.low):
        text += f" ({verdict.low:+.2f} to {verdict.high:+.2f})"
    return text.replace("-", "−")


def _markdown_table(table: compare.ViewTable) -> str:
    lines: list[list[str]] = []
    for method, cells in table.rows.items():
        texts = [format_mean_std(cell.values, cell.digits) for cell in cells]
        bold = [f"**{text}**" if cell.is_best else text for text, cell in zip(texts, cells, strict=True)]
        lines.append([markdown_text(method), *bold])
        if any(cell.published is not None for cell in cells):
            lines.append(["published", *("" if c.published is None else f"{c.published:.2f}" for c in cells)])
            differences = ("" if c.published is None else format_difference(c.values, c.published) for c in cells)
            lines.append(["difference", *differences])
    for name, found in table.baselines.items():
        texts = ["" if cell is None else format_mean_std(cell.values, cell.digits) for cell in found]
        lines.append([f"*{markdown_text(name)}*", *texts])
    return markdown_table(["method", *(m.title for m in table.metrics)], lines, "---:")
