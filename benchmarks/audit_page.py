"""Write docs/audit-benchmark.md from the recorded results in docs/audit-benchmark/.

    python -m benchmarks.audit_page                                      # write the page again
    python -m benchmarks.audit_page --record bench-results/audit-*.json  # record these results, then write the page

A recorded result is one JSON file per data set, and one for the clients.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from benchmarks.options import make_page_parser
from benchmarks.page import DOCS, machine_text, markdown_table

RECORDS = DOCS / "audit-benchmark"
PAGE = DOCS / "audit-benchmark.md"
CLIENTS = "audit-clients"
Record = dict[str, Any]
PARTITIONS = {"classes": "two classes per client", "dirichlet": "Dirichlet 0.5", "iid": "IID"}

_INTRODUCTION = """\
# How well the audit finds wrong labels

Labels are flipped once, before the training: symmetric to any other class, or pairwise to the class with the nearest
mean. A ranking is judged by its AUROC and by its precision at the number of flips: mean, and ± std if there are several
seeds.

- **audit**: the suspicion score of `fedtilt audit`, by FedTilt with `tau = 0`, `lam = -2`. Nothing is pooled.
- **cleanlab**: its quality score, with 5-fold cross-validated probabilities of the same network, trained on the
  *pooled* samples for the number of epochs with the highest held-out accuracy on the labels as they are.
- **loss, FedAvg** and **loss, Ditto**: the loss under the last shared model, and under the last personal models.

The audit knows which client a sample is from, and so how often a class occurs there; the pooled ranking does not. With
two classes per client this helps a lot, with Dirichlet less."""

_FOOTER = "This page is generated: `python -m benchmarks.audit_page`; the commands are in `benchmarks/`."


def read_records(folder: Path = RECORDS) -> dict[str, Record]:
    """The recorded results by kind."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {record["kind"]: record for record in records}


def render(records: Mapping[str, Record]) -> str:
    """The page as Markdown."""
    parts = [_INTRODUCTION]
    order = ["digits", "mnist", "fashion-mnist"]
    samples = {kind.removeprefix("audit-"): record for kind, record in records.items() if kind != CLIENTS}
    for name in sorted(samples, key=order.index):
        parts += [f"## {name}", *_data_set(name, samples[name])]
    parts += ["## Bad clients", *(_clients(records[CLIENTS]) if CLIENTS in records else ["Not recorded yet."])]
    return "\n\n".join(part.strip() for part in [*parts, _FOOTER]) + "\n"


def _data_set(name: str, record: Record) -> list[str]:
    cases, setting = record["cases"], record["setting"]
    partitions = list(dict.fromkeys(case["partition"] for case in cases))
    parts = [
        f"{setting['clients']} clients of at most {setting['samples']} samples, {setting['rounds']} rounds of "
        f"{setting['epochs']} epochs, {100 * setting['participation']:g} % of the clients in each; "
        f"`python -m benchmarks.audit --data {name} --partition {' '.join(partitions)}`. {machine_text(record)}."
    ]
    for partition in partitions:
        chosen = [case for case in cases if case["partition"] == partition]
        methods = list(chosen[0]["rankings"])
        tables = {"auroc": ("AUROC", 4), "precision": ("precision at the number of flips", 3)}
        for key, (title, digits) in tables.items():
            rows = [[f"{title}, {PARTITIONS[partition]}", "seeds", *methods]]
            for noise, group in _by_noise(chosen).items():
                values = [[case["rankings"][method][key] for case in group] for method in methods]
                rows.append([noise, str(len(group)), *(_mean(v, digits) for v in values)])
            parts.append(markdown_table(rows))
        rows = [
            [
                f"named, {PARTITIONS[partition]}", "seeds", "score ≥ 0.5: precision", "recall", "cleanlab: precision",
                "recall",
            ]
        ]  # fmt: skip
        for noise, group in _by_noise(chosen).items():
            values = [[case["found"][m][key] for case in group] for m in ("audit", "cleanlab") for key in _FOUND]
            rows.append([noise, str(len(group)), *(_mean(v, 3) for v in values)])
        parts += [markdown_table(rows), _summary(chosen)]
    return parts


_FOUND = ("precision", "recall")


def _by_noise(cases: Sequence[Record]) -> dict[str, list[Record]]:
    return {noise: [c for c in cases if c["noise"] == noise] for noise in dict.fromkeys(c["noise"] for c in cases)}


def _summary(cases: Sequence[Record]) -> str:
    """Where the audit is better and where it is worse than cleanlab."""
    texts = []
    for noise, group in _by_noise(cases).items():
        ours, theirs = (fmean(case["rankings"][m]["auroc"] for case in group) for m in ("audit", "cleanlab"))
        texts.append(f"{noise} {'better' if ours >= theirs else '**worse**'} by {abs(ours - theirs):.4f}")
    return f"AUROC of the audit against cleanlab: {', '.join(texts)}."


def _clients(record: Record) -> list[str]:
    cases = record["cases"]
    noisy, clean = [c for c in cases if c["bad"]], [c for c in cases if not c["bad"]]
    right = sum(c["bad"] == c["named"] for c in noisy)
    parts = [
        "A quarter of the clients have 60 % of their labels flipped: to another class of the client, to any other "
        "class or to the nearest. The audit of clients should name all of them and nobody else, and nobody where no "
        f"label is flipped. `python -m benchmarks.audit_clients --seeds {len({c['seed'] for c in cases})}`. "
        f"{machine_text(record)}.",
        f"**Exactly the bad clients are named in {right} of {len(noisy)} federations ({100 * right / len(noisy):.0f} "
        f"%); somebody is named in {sum(bool(c['named']) for c in clean)} of {len(clean)} federations without flips.**",
    ]
    rows = [["data, partition, flips to", "federations", "exactly the bad ones", "missed clients", "wrongly named"]]
    for key in dict.fromkeys((c["data"], c["partition"], c["flip_to"]) for c in cases):
        group = [c for c in cases if (c["data"], c["partition"], c["flip_to"]) == key]
        missed = sum(len(set(c["bad"]) - set(c["named"])) for c in group)
        wrong = sum(len(set(c["named"]) - set(c["bad"])) for c in group)
        exact = sum(c["bad"] == c["named"] for c in group)
        name = f"{key[0]}, {PARTITIONS[key[1]]}, {key[2]}"
        rows.append([name, str(len(group)), str(exact), str(missed), str(wrong)])
    return [*parts, markdown_table(rows)]


def _mean(values: Sequence[float], digits: int) -> str:
    return f"{fmean(values):.{digits}f}" + (f" ± {pstdev(values):.{digits}f}" if len(values) > 1 else "")


def main() -> None:
    options = make_page_parser(__doc__).parse_args()
    if options.quick:
        render(read_records())
        return
    for path in options.record:
        RECORDS.mkdir(exist_ok=True)
        shutil.copy(path, RECORDS / path.name)
    PAGE.write_text(render(read_records()))
    print(PAGE)


if __name__ == "__main__":
    main()
