"""Write docs/benchmarks.md, its figures and docs/attacks.md from the recorded results in docs/benchmarks/.

    python -m benchmarks.page                                # write the pages again
    python -m benchmarks.page --record bench-results/*.json  # record these results, then write the pages

A recorded result is one JSON file per kind; a new one replaces it. All of them are of one version of fedtilt.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template

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
            added[-1].write_text(json.dumps(record, indent=1) + "\n")
    return added


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
