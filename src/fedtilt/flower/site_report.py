"""The site's own report: accuracy per class, shared against personal. It is written on the site and stays there."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtilt.files import write_bytes, write_json


def write_report(
    folder: Path, round: int, class_names: Sequence[str], shared: Tensor, personal: Tensor | None, total: Tensor,
    model_file: Path | None, history: str,
) -> None:  # fmt: skip
    """Write report.json and report.txt about one round; `shared`, `personal` and `total` are counts (K,).

    `history` is the name of the training history, by which a report is known to be of one run and not of another.
    """
    rows = [
        {
            "class": class_names[k],
            "samples": int(total[k]),
            "shared": _percent(shared[k], total[k]),
            "personal": None if personal is None else _percent(personal[k], total[k]),
        }
        for k in range(len(total))
        if total[k]
    ]
    whole = {
        "class": "all",
        "samples": int(total.sum()),
        "shared": _percent(shared.sum(), total.sum()),
        "personal": None if personal is None else _percent(personal.sum(), total.sum()),
    }
    model = None if model_file is None else str(model_file)
    found = {"round": round, "history": history, "accuracy": whole, "classes": rows, "personal_model": model}
    write_json(folder / "report.json", found)
    write_bytes(folder / "report.txt", _text(round, [*rows, whole], model).encode())


def _percent(right: Tensor, samples: Tensor) -> float | None:
    return 100 * int(right) / int(samples) if samples else None


def _text(round: int, rows: Sequence[dict[str, Any]], model: str | None) -> str:
    width = max(len("class"), *(len(str(row["class"])) for row in rows))
    lines = [f"round {round}: accuracy in % on this site's own test data", ""]
    lines += [f"{'class':<{width}}  {'samples':>8}  {'shared':>7}  {'personal':>8}"]
    for row in rows:
        shared, personal = (_cell(row[key]) for key in ("shared", "personal"))
        lines.append(f"{row['class']:<{width}}  {row['samples']:>8}  {shared:>7}  {personal:>8}")
    lines += ["", f"personal model: {model or 'none yet'}", ""]
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
