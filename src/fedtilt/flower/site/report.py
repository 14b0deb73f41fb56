"""A site's report: scores by class or range of its models, and suspects. It never leaves the site."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedtilt.auditing.samples import audit_samples
from fedtilt.auditing.suspects_file import suspects_csv
from fedtilt.data import Federation
from fedtilt.data.groups import in_words
from fedtilt.engine.client_states import ClientStates
from fedtilt.evaluation.metrics import ACCURACY, Score, scores_of
from fedtilt.files import write_bytes, write_json
from fedtilt.parts import Tensors

_KEPT = {"personal": "personal model", "local": "local parameters", "buffers": "buffers"}


def write_report(
    folder: Path, round: int, class_names: Sequence[str], shared: Tensor, personal: Tensor | None, total: Tensor,
    history_id: str, *, kept: Sequence[str], file: Path | None, damage: str | None = None,
) -> None:  # fmt: skip
    """Write report.json and report.txt of one round.

    Args:
        folder: where to write them
        round: the evaluated round
        class_names: K names of classes, or of ranges of the target
        shared: (K, …) correct predictions or errors of the shared model
        personal: (K, …) the same of the personal model, or None if there is none
        total: (K,) test samples
        history_id: the id of the training history, which tells the reports of different runs apart
        kept: names of the tensors that the site keeps, such as "personal"
        file: the file they are in, or None if there is none
        damage: why the site starts again without what it kept
    """
    score = scores_of(shared)[0]
    group = "class" if score is ACCURACY else "range"

    def row(name: str, part: slice) -> dict[str, Any]:
        samples = total[part].sum()
        values = [None if s is None else _value(score, s[part].sum(0), samples) for s in (shared, personal)]
        return {group: name, "samples": int(samples), "shared": values[0], "personal": values[1]}

    rows = [row(class_names[k], slice(k, k + 1)) for k in range(len(total)) if total[k]]
    all_classes = row("all", slice(None))
    stored = None if file is None else str(file)
    report = {
        "round": round, "history": history_id, score.name: all_classes, in_words(group): rows, "kept": list(kept),
        "file": stored, **({} if damage is None else {"damage": damage}),
    }  # fmt: skip
    write_json(folder / "report.json", report)
    what = ", ".join(_KEPT[name] for name in kept if name in _KEPT)
    last_line = damage or f"kept on this site: {f'{what} in {stored}' if stored else 'nothing'}"
    write_bytes(folder / "report.txt", _text(round, score, group, [*rows, all_classes], last_line).encode())


def write_suspects(folder: Path, federation: Federation, site: int, method: str, kept: Tensors) -> int:
    """Write suspects.csv, the samples of the site whose labels look wrong; returns how many there are."""
    states = ClientStates()
    states.put((method, site), 0, kept)
    suspects = audit_samples(method, states, federation).suspects()
    write_bytes(folder / "suspects.csv", suspects_csv(suspects).encode())
    return len(suspects)


def _value(score: Score, sums: Tensor, samples: Tensor) -> float | None:
    return float(score.values(sums, samples)) if samples else None


def _text(round: int, score: Score, group: str, rows: Sequence[dict[str, Any]], last_line: str) -> str:
    width = max(len(group), *(len(str(row[group])) for row in rows))
    unit = f" in {score.unit}" if score.unit else ""
    lines = [f"round {round}: {score.title}{unit} on this site's test data", ""]
    lines += [f"{group:<{width}}  {'samples':>8}  {'shared':>7}  {'personal':>8}"]
    for row in rows:
        shared, personal = (_format_percent(row[key]) for key in ("shared", "personal"))
        lines.append(f"{row[group]:<{width}}  {row['samples']:>8}  {shared:>7}  {personal:>8}")
    lines += ["", last_line, ""]
    return "\n".join(lines)


def _format_percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
