"""Write docs/benchmarks.md, its figures and docs/attacks.md from the recorded results in docs/benchmarks/.

    python -m benchmarks.page                                # write the pages again
    python -m benchmarks.page --record bench-results/*.json  # record these results, then write the pages

A recorded result is one JSON file per kind. A new one replaces it; where both are of one machine, rows and tasks that
only the earlier one has stay, with their date. All of them are of the last release or of the version that follows it.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Any

from benchmarks import attacks, divisions, page_audit, page_speed, page_tuning
from benchmarks.markdown import DOCS, RECORDS, Record
from benchmarks.options import make_parser

TEMPLATE = Path(__file__).parent / "benchmarks.template.md"
KINDS = (
    "rounds", "scale", "scale-cuda", "memory", "aggregation", "gpu", "gpu_recipes", "others", "others-accuracy",
    "others-cpu", "audit-digits", "audit-mnist", "audit-fashion-mnist", "audit-clients", "audit-kinds", "tuning",
    "tuning-cost-cpu", "tuning-cost-cuda", "attacks", "divisions", "divisions-mnist",
    "divisions-fashion-mnist", "screening",
)  # fmt: skip


PARTIAL = ("gpu_recipes", "others", "others-accuracy", "others-cpu")  # may be measured in several calls


def read_records(folder: Path = RECORDS) -> dict[str, Record]:
    """The recorded results by kind."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def add_records(paths: Iterable[Path], folder: Path = RECORDS) -> list[Path]:
    """Copy results into the folder, named by kind; return the new paths."""
    folder.mkdir(parents=True, exist_ok=True)
    added = []
    for path in paths:
        record = json.loads(path.read_text())
        if record.get("kind") in KINDS:  # no smoke test
            added.append(folder / f"{record['kind']}.json")
            if added[-1].exists():
                record = with_earlier(record, json.loads(added[-1].read_text()))
            added[-1].write_text(json.dumps(record, indent=1) + "\n")
    return added


def with_earlier(record: Record, earlier: Record) -> Record:
    """A record with the rows and tasks that only the earlier one has, if both are of one machine."""
    if record["kind"] not in PARTIAL or record["machine"] != earlier["machine"]:
        return record
    dated = {"date": earlier["date"]}
    if "rows" not in record:  # tasks by name
        return record | {k: dated | v for k, v in earlier.items() if k not in record and isinstance(v, dict)}
    new = {_row_key(row): row for row in record["rows"]}
    rows = [new.pop(_row_key(row), dated | row) for row in earlier["rows"]]
    return record | {"rows": [*rows, *new.values()]}


def _row_key(row: Record) -> tuple[Any, ...]:
    return row.get("case"), row["implementation"], row.get("seed")


def render_page(records: Mapping[str, Record]) -> str:
    """docs/benchmarks.md."""
    sections = page_speed.sections(records) | page_audit.sections(records) | page_tuning.sections(records)
    versions = sorted({record["fedtilt"] for record in records.values()})
    return Template(TEMPLATE.read_text()).substitute(sections, version=" and ".join(versions) or "none")


def render_attacks(records: Mapping[str, Record]) -> str:
    """docs/attacks.md."""
    page = attacks.render(records.get("attacks"), records.get("screening"))
    page = page.replace("{HELD_OUT}", divisions.render_held_out(records))
    return page.replace("{DIVISIONS}", divisions.render(records.get("divisions")))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--record", nargs="+", type=Path, default=[], help="result files to add to the records")
    options = parser.parse_args()
    if not options.quick:
        for path in add_records(options.record):
            print(f"recorded {path.relative_to(DOCS.parent)}")
    records = read_records()
    pages = {
        DOCS / "benchmarks.md": render_page(records),
        DOCS / "attacks.md": render_attacks(records),
    }
    pages |= {RECORDS / name: svg for name, svg in page_speed.figures(records).items()}
    if not options.quick:  # with --quick, everything is rendered and nothing is written
        for path, text in pages.items():
            path.write_text(text)


if __name__ == "__main__":
    main()
