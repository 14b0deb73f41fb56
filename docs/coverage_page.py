"""The page docs/coverage.md from the JSON report of coverage.py: `make coverage` runs the tests and writes it."""

import json
import sys
from collections import Counter
from pathlib import Path

COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")
HEADER = """# Coverage

Lines and branches of `src/fedtilt` that {tests} run, by folder; `{command}` measures it again and writes this page
(coverage.py {version}, {date}). Processes that the tests start are counted; what runs on a GPU, in a cluster's
workers or in a browser is not.

| folder | lines | run | branches | taken |
| --- | --- | --- | --- | --- |
"""


def page(report: dict, tests: list[str]) -> str:
    """The page: one row per folder of the package, files beside them in the row `.`, and the total."""
    folders: dict[str, Counter[str]] = {}
    for name, file in report["files"].items():
        inside = Path(name).parts[Path(name).parts.index("fedtilt") + 1 :]
        counts = {key: file["summary"][key] for key in COUNTS}
        folders.setdefault(inside[0] if len(inside) > 1 else ".", Counter()).update(counts)
    rows = [_row(f"`{name}`", folders[name]) for name in sorted(folders)]
    rows.append(_row("**all**", sum(folders.values(), Counter())))
    command = " ".join(["make coverage", *([f'ARGS="{" ".join(tests)}"'] if tests else [])])
    names = ", ".join(f"`{test}`" for test in tests)
    header = HEADER.format(
        tests=names if tests else "the tests of `make test`", command=command, version=report["meta"]["version"],
        date=report["meta"]["timestamp"][:10],
    )  # fmt: skip
    return header + "\n".join(rows) + "\n"


def _row(name: str, counts: Counter[str]) -> str:
    lines, branches = counts["num_statements"], counts["num_branches"]
    run, taken = _percent(counts["covered_lines"], lines), _percent(counts["covered_branches"], branches)
    return f"| {name} | {lines:,} | {run} | {branches:,} | {taken} |"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


if __name__ == "__main__":
    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2:]))
