"""The sections of docs/benchmarks.md on the tuning."""

from collections.abc import Mapping

from benchmarks.markdown import Record, device_name, machine_text, markdown_table, not_recorded
from benchmarks.tuning import gains

LIMITS = {"tuning-cost-cpu": 6, "tuning-cost-cuda": 4}  # runs that a search over 64 settings may cost


def sections(records: Mapping[str, Record]) -> dict[str, str]:
    """The sections by their names in the template."""
    return {"tuning": _recommendations(records.get("tuning")), "tuning_cost": _cost(records)}


def _recommendations(record: Record | None) -> str:
    command = "python -m benchmarks.tuning"
    if record is None:
        return not_recorded(command)
    rows = [["search", "seeds", "gain, points", "default kept", "rounds saved"]]
    for name, gain in gains(record["cases"]).items():
        kept, saving = f"{gain.kept} of {gain.seeds}", f"{100 * gain.saving:.0f} %"
        rows.append([name, str(gain.seeds), str(gain), kept, saving])
    return f"{markdown_table(rows)}\n`{command}`. {machine_text(record)}.\n"


def _cost(records: Mapping[str, Record]) -> str:
    rows, notes = [["device", "samples per client", "one run", "64 settings", "ratio", "at most"]], []
    for kind, limit in LIMITS.items():
        command = f"python -m benchmarks.tuning --cost --device {kind.rpartition('-')[2]}"
        if kind not in records:
            notes.append(not_recorded(command))
            continue
        record = records[kind]
        seconds = [f"{record[key]:.1f} s" for key in ("run", "search")]
        samples = f"at most {record['max_train']}" if record["max_train"] else "all"
        rows.append([device_name(record), samples, *seconds, f"{record['ratio']:.2f}", str(limit)])
        notes.append(f"`{command}`. {machine_text(record)}.\n")
    return "\n".join([*([markdown_table(rows)] if len(rows) > 1 else []), *notes])
