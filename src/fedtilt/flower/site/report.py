"""A site's report: accuracy by class of the shared and the personal model, and suspects. It never leaves the site."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtilt.audit.samples import audit_samples
from fedtilt.audit.suspects_file import suspects_csv
from fedtilt.data import Federation
from fedtilt.files import write_bytes, write_json
from fedtilt.parts import Tensors
from fedtilt.rounds.client_states import ClientStates

_KEPT = {"personal": "personal model", "local": "local parameters", "buffers": "buffers"}


def write_report(
    folder: Path, round: int, class_names: Sequence[str], shared: Tensor, personal: Tensor | None, total: Tensor,
    history_id: str, *, kept: Sequence[str], file: Path | None, damage: str | None = None,
) -> None:  # fmt: skip
    """Write report.json and report.txt of one round.

    Args:
        folder: where to write them
        round: the evaluated round
        class_names: K names
        shared: (K,) correct predictions of the shared model
        personal: (K,) correct predictions of the personal model, or None if there is none
        total: (K,) test samples
        history_id: the id of the training history, which tells the reports of different runs apart
        kept: names of the tensors that the site keeps, such as "personal"
        file: the file they are in, or None if there is none
        damage: why the site starts again without what it kept
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
    all_classes = {
        "class": "all",
        "samples": int(total.sum()),
        "shared": _percent(shared.sum(), total.sum()),
        "personal": None if personal is None else _percent(personal.sum(), total.sum()),
    }
    stored = None if file is None else str(file)
    report = {
        "round": round, "history": history_id, "accuracy": all_classes, "classes": rows, "kept": list(kept),
        "file": stored, **({} if damage is None else {"damage": damage}),
    }  # fmt: skip
    write_json(folder / "report.json", report)
    what = ", ".join(_KEPT[name] for name in kept if name in _KEPT)
    last_line = damage or f"kept on this site: {f'{what} in {stored}' if stored else 'nothing'}"
    write_bytes(folder / "report.txt", _text(round, [*rows, all_classes], last_line).encode())


def write_suspects(folder: Path, federation: Federation, site: int, method: str, kept: Tensors) -> int:
    """Write suspects.csv, the samples of the site whose labels look wrong; returns how many there are."""
    states = ClientStates()
    states.put((method, site), 0, kept)
    suspects = audit_samples(method, states, federation).suspects()
    write_bytes(folder / "suspects.csv", suspects_csv(suspects).encode())
    return len(suspects)


def _percent(correct: Tensor, samples: Tensor) -> float | None:
    return 100 * int(correct) / int(samples) if samples else None


def _text(round: int, rows: Sequence[dict[str, Any]], last_line: str) -> str:
    width = max(len("class"), *(len(str(row["class"])) for row in rows))
    lines = [f"round {round}: accuracy in % on this site's test data", ""]
    lines += [f"{'class':<{width}}  {'samples':>8}  {'shared':>7}  {'personal':>8}"]
    for row in rows:
        shared, personal = (_format_percent(row[key]) for key in ("shared", "personal"))
        lines.append(f"{row['class']:<{width}}  {row['samples']:>8}  {shared:>7}  {personal:>8}")
    lines += ["", last_line, ""]
    return "\n".join(lines)


def _format_percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
