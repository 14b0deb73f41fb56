"""Write docs/tuning-benchmark.md from the recorded results in docs/tuning-benchmark/.

    python -m benchmarks.tuning_page                                                 # write the page again
    python -m benchmarks.tuning_page --record bench-results/{tuning,learned}*.json   # record these results first

A recorded result is one JSON file per kind: `tuning`, `tuning-cost-cpu`, `tuning-cost-cuda` and `learned-tilts`.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.learned_tilts import DATA, LEARNED, METRICS, OUTLIERS, Cell
from benchmarks.options import make_page_parser
from benchmarks.page import DOCS, machine_text, markdown_table
from benchmarks.tuning import gains

RECORDS = DOCS / "tuning-benchmark"
PAGE = DOCS / "tuning-benchmark.md"
LIMITS = {"tuning-cost-cpu": 6, "tuning-cost-cuda": 4}  # runs that a search over 64 settings may cost
Record = dict[str, Any]

_INTRODUCTION = """\
# How well the tuning chooses

[Tuning settings](tuning.md) describes the search. This page has what it recommends, what it costs, and a comparison
with tilts that clients learn themselves."""

_RECOMMENDATIONS = """\
## What it recommends, on test data

A search on validation data starts from a default; its recommendation and the default are compared on test data. The
mean gain over the seeds must not be below minus one standard error. Most defaults are plain (no tilts); one is good
already, so that "keep yours" is the right answer."""

_COST = """\
## What 64 settings cost

The seconds of a search over 64 settings with successive halving, over those of one run to the end, with the paper's 100
clients of MNIST and 50 rounds."""

_LEARNED = """\
## Learned tilts: tried, and left out

The tilted loss R is differentiable in its tilts. With the weights p that a tilt gives to the losses l of a class,
d R_k / d lam = (Σ p · l − R_k) / lam, and the same one level up for `tau`. So a client can move its own tilts by the
gradient of its validation loss after a step of SGD, without a search. Here is one run with learned tilts beside a grid
of nine settings, in the paper's setting, on test data: accuracy / client fairness / client data fairness."""

_FOOTER = "This page is generated: `python -m benchmarks.tuning_page`; the commands are in `benchmarks/`."
_MISSING = "Not recorded yet: `{}`."


def read_records(folder: Path = RECORDS) -> dict[str, Record]:
    """The recorded results by kind."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {record["kind"]: record for record in records}


def render(records: Mapping[str, Record]) -> str:
    """The page as Markdown."""
    parts = [_INTRODUCTION, _RECOMMENDATIONS, *_recommendations(records), _COST, *_cost(records)]
    parts += [_LEARNED, *_learned(records), _FOOTER]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _recommendations(records: Mapping[str, Record]) -> list[str]:
    command = "python -m benchmarks.tuning"
    if "tuning" not in records:
        return [_MISSING.format(command)]
    record = records["tuning"]
    rows = [["search", "seeds", "gain, points", "default kept", "rounds saved", "not worse by more than one error"]]
    for name, gain in gains(record["cases"]).items():
        kept, saving = f"{gain.kept} of {gain.seeds}", f"{100 * gain.saving:.0f} %"
        rows.append([name, str(gain.seeds), str(gain), kept, saving, gain.verdict])
    return [markdown_table(rows), f"`{command}`. {machine_text(record)}."]


def _cost(records: Mapping[str, Record]) -> list[str]:
    rows, notes = [["device", "samples per client", "one run", "64 settings", "ratio", "at most"]], []
    for kind, limit in LIMITS.items():
        command = f"python -m benchmarks.tuning --cost --device {kind.rpartition('-')[2]}"
        if kind not in records:
            notes.append(_MISSING.format(command))
            continue
        record = records[kind]
        seconds = [f"{record[key]:.1f} s" for key in ("run", "search")]
        device = record["machine"].get("gpu") or f"{record['machine']['cores']} CPU cores"
        rows.append([device, _samples(record), *seconds, f"{record['ratio']:.2f}", str(limit)])
        notes.append(f"`{command}`. {machine_text(record)}.")
    return [*([markdown_table(rows)] if len(rows) > 1 else []), *notes]


def _learned(records: Mapping[str, Record]) -> list[str]:
    command = "python -m benchmarks.learned_tilts"
    if "learned-tilts" not in records:
        return [_MISSING.format(command)]
    record = records["learned-tilts"]
    if record["max_train"]:
        command += f" --max-train {record['max_train']}"
    rows = [["data", "outliers", "seeds", "learned tau, lam", "learned tilts", "most accurate of the grid", "learned"]]
    cells, missing = [], []
    for data in DATA:
        for outliers in OUTLIERS:
            cell = Cell.of(data, outliers, record["cases"])
            if cell is None:
                missing.append(f"{data}, {outliers}")
            else:
                cells.append(cell)
                verdict = f"dominated by {len(cell.dominators)} of 9" if cell.dominators else "not dominated"
                best = f"{_values(cell, cell.best)} ({cell.best})"
                tilts = f"{cell.tau:.1f}, {cell.lam:.1f}"
                rows.append([data, outliers, str(len(cell.seeds)), tilts, _values(cell, LEARNED), best, verdict])
    dominated = sum(bool(cell.dominators) for cell in cells)
    ahead = sum(cell.points[LEARNED]["accuracy"] > cell.points[cell.best]["accuracy"] for cell in cells)
    return [
        markdown_table(rows, text_columns=2),
        f"**Of {len(cells)} cells, the grid dominates the learned tilts in {dominated}; they are more accurate than "
        f"the whole grid in {ahead}.** For that, every client needs clean validation data in every round, and steps "
        "with second derivatives. A search costs about five runs, and needs neither at the sites.",
        f"`{command}`: {_samples(record)} samples per client, {record['rounds']} rounds. {machine_text(record)}.",
        *([f"Not measured yet: {'; '.join(missing)}."] if missing else []),
    ]


def _samples(record: Record) -> str:
    return f"at most {record['max_train']}" if record["max_train"] else "all"


def _values(cell: Cell, name: str) -> str:
    return " / ".join(f"{cell.points[name][metric]:.2f}" for metric in METRICS)


def main() -> None:
    options = make_page_parser(__doc__).parse_args()
    if options.quick:
        render(read_records())
        return
    for path in options.record:
        RECORDS.mkdir(exist_ok=True)
        shutil.copy(path, RECORDS / f"{json.loads(path.read_text())['kind']}.json")
    PAGE.write_text(render(read_records()))
    print(PAGE)


if __name__ == "__main__":
    main()
