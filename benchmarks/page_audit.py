"""The sections of docs/benchmarks.md on the audit."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev

from benchmarks.markdown import Record, machine_text, markdown_table, not_recorded

DATA = ("digits", "mnist", "fashion-mnist")
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # of the score, in the reliability curve
PARTITIONS = {"classes": "two classes per client", "dirichlet": "Dirichlet 0.5", "iid": "IID"}


def sections(records: Mapping[str, Record]) -> dict[str, str]:
    """The sections by their names in the template."""
    samples = {name: records[f"audit-{name}"] for name in DATA if f"audit-{name}" in records}
    clients = records.get("audit-clients")
    kinds = records.get("audit-kinds")
    return {
        "audit_kinds": _kinds(kinds) if kinds else not_recorded("python -m benchmarks.audit_kinds"),
        "audit": _samples(samples) if samples else not_recorded("python -m benchmarks.audit"),
        "audit_clients": _clients(clients) if clients else not_recorded("python -m benchmarks.audit_clients"),
    }


def _samples(records: Mapping[str, Record]) -> str:
    """One table for each way to judge a ranking, with a row for each data set, partition and kind of flips."""
    groups = {
        f"{name}, {PARTITIONS[partition]}, {noise}": [
            case for case in record["cases"] if (case["partition"], case["noise"]) == (partition, noise)
        ]
        for name, record in records.items()
        for partition, noise in dict.fromkeys((case["partition"], case["noise"]) for case in record["cases"])
    }
    methods = list(next(iter(groups.values()))[0]["rankings"])
    found = [(method, key) for method in ("audit", "cleanlab") for key in ("precision", "recall")]
    tables = [
        _table("AUROC", methods, groups, lambda case, method: case["rankings"][method]["auroc"], 4),
        _table(
            "precision at the number of flips", methods, groups, lambda case, m: case["rankings"][m]["precision"], 3
        ),
        _table(
            "named, by the audit with a score ≥ 0.5",
            [f"{method}: {key}" for method, key in found],
            groups,
            lambda case, column: case["found"][column.split(": ")[0]][column.split(": ")[1]],
            3,
        ),
    ]
    means = [[fmean(case["rankings"][m]["auroc"] for case in cases) for m in ("audit", "cleanlab")]
             for cases in groups.values()]  # fmt: skip
    better = sum(ours >= theirs for ours, theirs in means)
    worst = max(theirs - ours for ours, theirs in means)
    summary = f"The AUROC of the audit is at least that of cleanlab in {better} of {len(means)} rows"
    summary += "." if better == len(means) else f", and lower by up to {worst:.4f} in the others."
    return "\n".join([f"**{summary}**\n", *tables, *(_setting(name, record) for name, record in records.items())])


def _table(
    title: str, columns: Sequence[str], groups: Mapping[str, Sequence[Record]],
    value: Callable[[Record, str], float], digits: int,
) -> str:  # fmt: skip
    rows = [[title, "seeds", *columns]]
    for name, cases in groups.items():
        cells = [_mean([value(case, column) for case in cases], digits) for column in columns]
        rows.append([name, str(len(cases)), *cells])
    return markdown_table(rows)


def _setting(name: str, record: Record) -> str:
    setting = record["setting"]
    partitions = " ".join(dict.fromkeys(case["partition"] for case in record["cases"]))
    return (
        f"- {name}: {setting['clients']} clients of at most {setting['samples']} samples, {setting['rounds']} rounds "
        f"of {setting['epochs']} epochs, {100 * setting['participation']:g} % of the clients in each; "
        f"`python -m benchmarks.audit --data {name} --partition {partitions}`. {machine_text(record)}."
    )


def _kinds(record: Record) -> str:
    """The ranking of every kind of wrong labels, and whether the scores are probabilities."""
    cases = record["cases"]
    rows = [["data, wrong labels", "audit", "cleanlab", "named", "expected wrong", "wrong"]]
    for data, kind in dict.fromkeys((case["data"], case["kind"]) for case in cases):
        group = [case for case in cases if (case["data"], case["kind"]) == (data, kind)]
        ranked = [case["precision"] for case in group if "precision" in case]
        cells = [_mean([found[m] for found in ranked], 3) if ranked else "" for m in ("audit", "cleanlab")]
        named, expected, hits = (sum(case[key] for case in group) for key in ("named", "expected", "hits"))
        shares = [f"{100 * value / named:.0f} %" if named else "" for value in (expected, hits)]
        rows.append([f"{data}, {kind}", *cells, f"{named} of {sum(case['samples'] for case in group):,}", *shares])
    curve = [["score", "samples", "mean score", "wrong"]]
    for low, high, found in zip(BINS, BINS[1:], zip(*(case["bins"] for case in cases), strict=True), strict=False):
        count, total, wrong = (sum(part[i] for part in found) for i in range(3))
        values = [f"{value / count:.2f}" if count else "" for value in (total, wrong)]
        curve.append([f"{low:g} to {high:g}", f"{count:,}", *values])
    seeds = len({case["seed"] for case in cases})
    source = f"`python -m benchmarks.audit_kinds --seeds {seeds}`. {machine_text(record)}.\n"
    return "\n".join([markdown_table(rows), markdown_table(curve), source])


def _clients(record: Record) -> str:
    cases = record["cases"]
    noisy, clean = [c for c in cases if c["bad"]], [c for c in cases if not c["bad"]]
    right = sum(c["bad"] == c["named"] for c in noisy)
    parts = [
        f"**Exactly the bad clients are named in {right} of {len(noisy)} federations ({100 * right / len(noisy):.0f} "
        f"%); some client is named in {sum(bool(c['named']) for c in clean)} of {len(clean)} federations without "
        "flips.**\n"
    ]
    rows = [["data, partition", "federations", "exactly the bad ones", "missed clients", "wrongly named"]]
    for data, partition in dict.fromkeys((c["data"], c["partition"]) for c in cases):
        group = [c for c in cases if (c["data"], c["partition"]) == (data, partition)]
        missed = sum(len(set(c["bad"]) - set(c["named"])) for c in group)
        wrong = sum(len(set(c["named"]) - set(c["bad"])) for c in group)
        exact = sum(c["bad"] == c["named"] for c in group)
        rows.append([f"{data}, {PARTITIONS[partition]}", str(len(group)), str(exact), str(missed), str(wrong)])
    seeds = len({c["seed"] for c in cases})
    source = f"`python -m benchmarks.audit_clients --seeds {seeds}`. {machine_text(record)}.\n"
    return "\n".join([*parts, markdown_table(rows), source])


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{fmean(values):.{digits}f}" + (f" ± {pstdev(values):.{digits}f}" if len(values) > 1 else "")
