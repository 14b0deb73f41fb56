"""Shared by the sections of the pages: where the records are, tables, and the machine of a result."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
RECORDS = DOCS / "benchmarks"
Record = dict[str, Any]


def machine_text(record: Record) -> str:
    """The machine, the version and the date of a result, or the first and the last of its parts."""
    m = record["machine"]
    parts = [*record.get("rows", ()), *(v for v in record.values() if isinstance(v, dict))]
    days = sorted({str(part["date"])[:10] for part in (record, *parts) if "date" in part})
    gpu = f"{m['gpu']}, " if "gpu" in m else ""
    return (
        f"{gpu}{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB, torch {m['torch']}; "
        f"fedtilt {record['fedtilt']}, {' to '.join(dict.fromkeys((days[0], days[-1])))}"
    )


def device_name(record: Record) -> str:
    """The GPU of a result, or the number of its cores."""
    m = record["machine"]
    return str(m.get("gpu") or f"{m['cores']} CPU cores")


def markdown_table(rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """A table whose first row is the header; columns after the text columns are numbers, aligned right."""
    header, *body = rows
    lines = [header, ["---" if i < text_columns else "---:" for i in range(len(header))], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def not_recorded(command: str) -> str:
    """In place of a section whose result is missing."""
    return f"Not recorded yet; run `{command}`.\n"
