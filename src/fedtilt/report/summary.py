"""What a run found, in words; every number comes from the run."""

import shlex
from collections.abc import Sequence

from torch import Tensor

from fedtilt.report.compare import ACCURACY, CLASS_FAIRNESS, CLIENT_FAIRNESS, Metric, Row, best_and_tied, leading, rows
from fedtilt.report.run_reader import Run

_SUPERLATIVES = ((ACCURACY, "the most accurate"), (CLIENT_FAIRNESS, "the fairest to clients"),
                 (CLASS_FAIRNESS, "the fairest to classes"))  # fmt: skip
_TIES = {"accuracy": "in accuracy", "client_fairness": "in fairness to clients",
         "client_data_fairness_mean": "in fairness to classes"}  # fmt: skip


def headline(run: Run) -> str:
    """The finding: who is most accurate and who is fairest, or who ties."""
    table = rows(run, "evaluated")
    if len(table) == 1:
        (name, row), = table.items()  # fmt: skip
        return (
            f"{name} reaches {_amount(row, ACCURACY)}, with a spread of {_amount(row, CLIENT_FAIRNESS)} over clients "
            f"and of {_amount(row, CLASS_FAIRNESS)} over the classes inside a client."
        )
    wins: dict[str, list[str]] = {}  # the winner → what it is
    ties: dict[tuple[str, ...], list[str]] = {}  # those that tie → in what
    for metric, superlative in _SUPERLATIVES:
        group = best_and_tied(table, metric)
        if len(group) == 1:
            wins.setdefault(group[0], []).append(f"{superlative} ({_amount(table[group[0]], metric)})")
        else:
            order = tuple(m for m in table if m in group)
            amounts = list(dict.fromkeys(_amount(table[m], metric) for m in order))
            ties.setdefault(order, []).append(f"{_TIES[metric.key]} ({listed(amounts)})")
    clauses = [f"{name} is {listed(what)}" for name, what in wins.items()]
    clauses += [f"{_all(group, len(table))} tie {listed(what)}" for group, what in ties.items()]
    text = "; ".join(clauses) + "."
    return f"A{text[1:]}" if text.startswith("all ") else text


def failures(run: Run) -> str:
    """The client and the class that a method serves worst, for the most accurate methods of many."""
    several = len(run.compared) > 1
    clauses = []
    for method in leading(run, 5):
        lowest = []
        for part in run.compared:
            share = _share(part.correct(method).sum(1), part.total.sum(1))
            client = int(share.argmin())
            where = f", seed {part.seed}" if several else ""
            accuracy = float(share[client])
            lowest.append((accuracy, f"client {part.client_names[client]} ({percent(accuracy)}{where})"))
        right = sum(part.correct(method).sum(0) for part in run.compared)
        total = sum(part.total.sum(0) for part in run.compared)
        by_class = _share(right, total)  # type: ignore[arg-type]
        label = int(by_class.argmin())
        names = run.compared[0].class_names
        class_name = f"class {names[label]} ({percent(float(by_class[label]))})"
        clauses.append(f"by {method}: {min(lowest)[1]} and {class_name}")
    few = f" The {len(clauses)} most accurate of {len(run.methods)} methods." if len(clauses) < len(run.methods) else ""
    return f"Served worst {'; '.join(clauses)}.{few}"


def cautions(run: Run) -> list[str]:
    """What a reader should know before believing the numbers."""
    out = []
    if not run.finished:
        out.append(_unfinished(run))
    if run.search is not None:
        chosen = run.search.get("chosen")
        what = f"of which {chosen} was chosen" if chosen else "of which none is chosen yet"
        out.append(
            f"A search among {len(run.search['settings'])} settings of {run.search['method']}, {what} on validation "
            "data; this page is about test data. The others are in results.json; "
            f"fedtilt resume {shlex.quote(str(run.folder))} tells more."
        )
    if len(run.compared) == 1:
        out.append("One seed: small differences may be chance; more seeds give error bars.")
    else:
        out.append(
            f"Over {len(run.compared)} seeds; a difference within one standard error, seed by seed, is called a tie."
        )
    summaries = [part.last(method) for part in run.compared for method in run.methods]
    absent = [summary.never_selected for summary in summaries if summary.personal is not None]
    low, high = min(absent, default=0), max(absent, default=0)
    if high:
        out.append(
            f"{high if low == high else f'Up to {high}'} of {len(run.compared[0].total):,} clients never took part and "
            "are judged on the shared model; the table gives the figures without them too."
        )
    if any(summary.clean for summary in summaries):
        out.append("Only some clients carry outliers; the table gives the figures over the clean ones too.")
    return out


def _unfinished(run: Run) -> str:
    text = f"Unfinished: compared after round {run.round} of {run.rounds}"
    behind = [seed for seed in run.seeds if seed not in [part.seed for part in run.compared]]
    if behind:
        text += f", without seed{'s' if len(behind) > 1 else ''} {listed([str(s) for s in behind])}, not that far yet"
    remedy = f"; go on with: fedtilt resume {shlex.quote(str(run.folder))}" if run.spec else ""
    return f"{text}{remedy}."


def facts(run: Run) -> str:
    """What was run, in one line."""
    job = run.fingerprint
    outliers = job["outliers"]
    if outliers["kind"] == "none":
        harm = "clean data"
    else:
        harm = f"{float(outliers['rate']):.0%} {outliers['kind']} every round".replace("%", " %")
        if float(outliers["clients"]) < 1:
            harm += f" at {float(outliers['clients']):.0%} of the clients".replace("%", " %")
    seeds = f"{len(run.seeds)} seed{'s' if len(run.seeds) > 1 else ''}"
    return f"{job['data']}, {job['clients']:,} clients, {harm}, {run.rounds} rounds, {seeds}"


def listed(parts: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def percent(value: float) -> str:
    """A share in words: no rounding up to 100 %.

    >>> percent(99.7), percent(61.3)
    ('99.7 %', '61 %')
    """
    return f"{value:.0f} %" if value == 100 or round(value) < 100 else f"{min(value, 99.9):.1f} %"


def _amount(row: Row, metric: Metric) -> str:
    return f"{row[metric.key].mean:.1f} {'%' if metric.higher_is_better else 'points'}"


def _all(group: Sequence[str], methods: int) -> str:
    if len(group) == methods and methods > 2:
        return f"all {methods} methods"
    return listed(group)


def _share(right: Tensor, total: Tensor) -> Tensor:
    """Accuracy in percent; above 100 where there is no data."""
    return (100 * right.double() / total.clamp(min=1).double()).where(total > 0, 101.0)
