"""Write docs/performance.md and its figures from the results kept in docs/performance/.

    python benchmarks/page.py                              # write the page again
    python benchmarks/page.py --record bench-results/*.json   # keep these results, then write the page

A result is kept as it was measured, one file a benchmark and date. The newest of each kind is shown in full, all of
them in the history; nothing on the page comes from anywhere else.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from string import Template
from typing import Any

from chart import log_log

TEMPLATE = Path(__file__).parent / "performance.template.md"
DOCS = Path(__file__).parent.parent / "docs"
KEPT = DOCS / "performance"
KINDS = ("rounds", "scale", "scale-cuda", "memory", "aggregation", "gpu")
Record = dict[str, Any]


def records(folder: Path = KEPT) -> list[Record]:
    """All results kept, the oldest first."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda record: (record["date"], record["kind"]))


def keep(paths: Iterable[Path], folder: Path = KEPT) -> list[Path]:
    """Copy results into the documentation under their date and kind."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = []
    for path in paths:
        record = json.loads(path.read_text())
        if record.get("kind") not in KINDS:
            continue  # a trial run
        name = f"{record['date'].replace(':', '').replace('-', '')}-{record['kind']}.json"
        (folder / name).write_text(json.dumps(record, indent=1) + "\n")
        kept.append(folder / name)
    return kept


def newest(found: Sequence[Record], kind: str) -> Record | None:
    """The latest result of a kind."""
    return next((record for record in reversed(found) if record["kind"] == kind), None)


def text(found: Sequence[Record]) -> str:
    """The page."""
    return Template(TEMPLATE.read_text()).substitute(
        rounds=_rounds(newest(found, "rounds")),
        scale=_scale(found),
        memory=_memory(newest(found, "memory")),
        aggregation=_aggregation(newest(found, "aggregation")),
        gpu=_gpu(newest(found, "gpu")),
        history=_history(found),
    )


def figures(found: Sequence[Record]) -> dict[str, str]:
    """The figures by file name."""
    drawn = {}
    devices = {_device(r): r for r in (newest(found, "scale"), newest(found, "scale-cuda")) if r is not None}
    names = [name for record in devices.values() for name in record["curves"]]
    for name in dict.fromkeys(names):
        curves = {device: r["curves"][name] for device, r in devices.items() if name in r["curves"]}
        first = next(iter(curves.values()))
        begin = first["points"][0]
        drawn[f"{name}.svg"] = log_log(
            f"Seconds a round against {first['label']}",
            first["label"],
            "seconds a round",
            {device: [(p[name], p["seconds"]) for p in curve["points"]] for device, curve in curves.items()},
            dashed=[(p[name], begin["seconds"] * p["operations"] / begin["operations"]) for p in first["points"]],
        )
    return drawn


def _where(record: Record) -> str:
    m = record["machine"]
    gpu = f"{m['gpu']}, " if "gpu" in m else ""
    return (
        f"{gpu}{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB, torch {m['torch']}; "
        f"fedtilt {record['fedtilt']}, {record['date'][:10]}"
    )


def _device(record: Record) -> str:
    m = record["machine"]
    return str(m.get("gpu") or f"{m['cores']} CPU cores")


def _missing(command: str) -> str:
    return f"Not recorded yet; `{command}` measures it.\n"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---", *("---:" for _ in head[1:])], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def typical(contenders: Record) -> dict[str, float]:
    """The median seconds a round of every contender that ran."""
    return {name: median(c["seconds"]) for name, c in contenders.items() if "seconds" in c}


def engines(contenders: Record) -> list[str]:
    """Our own contenders as they run by themselves."""
    return [name for name in typical(contenders) if name.startswith("fedtilt: ") and ", backend" not in name]


def _rounds(record: Record | None) -> str:
    if record is None:
        return _missing("make bench")
    parts = [
        f"{_where(record)}. The median of {record['turns']} rounds, the fastest and the slowest. Ratios are of medians."
        "\n"
    ]
    for task in record["tasks"].values():
        contenders, seconds = task["contenders"], typical(task["contenders"])
        own = engines(contenders)
        parts.append(
            f"### {task['title']}\n\n{task['clients']} of {task['of']} clients × {task['samples']} samples × "
            f"{task['epochs']} epoch{'s' if task['epochs'] > 1 else ''}, batch {task['batch_size']}: "
            f"{task['steps']:,} steps, {task['operations'] / 1e9:.1f} GFLOP. "
            f"Matrix peak {task['peak'] / 1e9:.0f} GFLOP/s.\n"
        )
        ratios = [f"{name.removeprefix('fedtilt: ')} here is … × faster" for name in own]
        rows = [["", "seconds a round", *ratios, "of peak", "memory", "loss"]]
        for name, c in contenders.items():
            if "out" in c:
                rows.append([name, c["out"], *([""] * (len(own) + 3))])
                continue
            losses = [c["loss_start"], c["loss_shared"], *([c["loss_personal"]] if "loss_personal" in c else [])]
            rows.append(
                [
                    f"**{name}**" if name in own else f"{name} ({_versions(c)})",
                    f"{seconds[name]:.3f} ({min(c['seconds']):.3f} to {max(c['seconds']):.3f})",
                    *("" if name == engine else f"{seconds[name] / seconds[engine]:.1f}" for engine in own),
                    f"{100 * task['operations'] / seconds[name] / task['peak']:.0f} %",
                    f"{c['peak_memory_mib']:.0f} MiB",
                    " → ".join(f"{loss:.2f}" for loss in losses),
                ]
            )
        parts.append(_table(rows))
    return "\n".join(parts)


def _versions(contender: Record) -> str:
    shown = {k: v.split("+")[0] for k, v in contender["versions"].items() if k != "fedtilt"}
    return ", ".join(f"{k} {v}" for k, v in shown.items())


def _scale(found: Sequence[Record]) -> str:
    shown = [r for r in (newest(found, "scale"), newest(found, "scale-cuda")) if r is not None]
    if not shown:
        return _missing("python benchmarks/scale.py")
    parts = [
        "FedTilt, two models per client, ten clients of 200 samples, one epoch, batch 10, MLP 784-200-200-10, but for "
        "what the axis says.\nA step is one model's on one batch. The dashed line is cost in proportion to the work, "
        "from the first point on.\n"
    ]
    parts += [f"{_device(record)}: {_where(record)}.\n" for record in shown]
    parts += [f"![{name.removesuffix('.svg')}](performance/{name})\n" for name in figures(found)]
    for record in shown:
        for name, curve in record["curves"].items():
            rows = [[f"{curve['label']} ({_device(record)})", "seconds a round", "microseconds a step"]]
            rows += [
                [f"{p[name]:,}", f"{p['seconds']:.3f}", f"{p['microseconds_per_step']:.1f}"] for p in curve["points"]
            ]
            parts.append(_table(rows))
    return "\n".join(parts)


def _memory(record: Record | None) -> str:
    if record is None:
        return _missing("python benchmarks/memory.py")
    trace = record["trace_mib"]
    warm = len(trace) // 4
    return (
        f"{record['clients']:,} clients, 100 a round, {len(trace)} rounds of Ditto with a small model: "
        f"{trace[warm]:.0f} MiB resident after {warm} rounds, {trace[-1]:.0f} MiB at the end,\n"
        f"{record['slope_mib_per_round'] * 1024:+.1f} KiB a round. Personal models beyond a limit live on disk.\n\n"
        f"{_where(record)}.\n"
    )


def _aggregation(record: Record | None) -> str:
    if record is None:
        return _missing("python benchmarks/aggregation.py")
    words = (
        "A tilted aggregation of 100 models of 1,000,000 parameters, in units of the least it could cost: their mean "
        f"and one float32 Gram product.\n\n{_where(record)}.\n"
    )
    return words + "\n" + _table([["rule", "ratio"], *([name, f"{r:.2f}"] for name, r in record["ratios"].items())])


def _gpu(record: Record | None) -> str:
    if record is None:
        return _missing("PYTHONPATH=src python benchmarks/gpu.py")
    parts = [
        f"{_where(record)}. A step trains all models (20: ten clients' w and v; 320: sixteen settings of that) on one "
        "mini-batch each.\n"
    ]
    rows = [["model", "models at once", "precision of products", "microseconds a step", "memory"]]
    for s in record["steps"]:
        step, memory = f"{s['microseconds_per_step']:,.0f}", f"{s['peak_memory_mib']:,.0f} MiB"
        rows.append([s["model"].upper(), str(s["models"]), s["precision"], step, memory])
    parts.append(_table(rows))
    if record["runs"]:
        rows = [["whole run, judged every round or tenth", "precision of products", "rounds", "seconds", "accuracy"]]
        groups = dict.fromkeys((r["asked"], r["data"], r["precision"], r["rounds"]) for r in record["runs"])
        for asked, data, precision, rounds in groups:
            key = asked, data, precision, rounds
            own = [r for r in record["runs"] if (r["asked"], r["data"], r["precision"], r["rounds"]) == key]
            name = f"FedTilt on {asked}" + ("" if data == asked else f" ({data} samples of its size)")
            seeds = f" (mean ± std of {len(own)} seeds)" if len(own) > 1 else ""
            rows.append(
                [name, precision, str(rounds), f"{fmean(r['seconds'] for r in own):.1f}",
                 _spread([r["accuracy"] for r in own]) + seeds]
            )  # fmt: skip
        parts.append(_table(rows))
        parts.append(_precision(record["runs"]))
    return "\n".join(parts)


def _precision(runs: Sequence[Record]) -> str:
    """How far the precisions of products are apart in accuracy."""
    told = []
    for asked in dict.fromkeys(r["asked"] for r in runs):
        by_precision: dict[str, list[float]] = {}
        for r in runs:
            if r["asked"] == asked:
                by_precision.setdefault(r["precision"], []).append(r["accuracy"])
        means = [fmean(values) for values in by_precision.values()]
        if len(means) > 1:
            told.append(f"{max(means) - min(means):.2f} points on {asked}")
    return f"The precisions are at most {' and '.join(told)} apart in accuracy.\n" if told else ""


def _spread(values: Sequence[float]) -> str:
    deviation = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{deviation} %"


def _history(found: Sequence[Record]) -> str:
    parts = []
    rounds = [r for r in found if r["kind"] == "rounds"]
    if rounds:
        names = list(dict.fromkeys(n for r in rounds for t in r["tasks"].values() for n in engines(t["contenders"])))
        tasks = list(dict.fromkeys(task for r in rounds for task in r["tasks"]))
        columns = [(task, name) for task in tasks for name in names if any(_has(r, task, name) for r in rounds)]
        heads = [f"{task}: {name.removeprefix('fedtilt: ')}" for task, name in columns]
        rows = [["date", "version", "machine", *heads]]
        for r in reversed(rounds):
            cells = [_cell(r["tasks"][t]["contenders"], n) if _has(r, t, n) else "" for t, n in columns]
            rows.append(
                [r["date"][:10], r["fedtilt"], f"{r['machine']['processor']}, {r['machine']['cores']} cores", *cells]
            )
        parts.append("Seconds a round, and in brackets how many times the plain loop and the fastest peer take.\n")
        parts.append(_table(rows))
    gpus = [r for r in found if r["kind"] == "gpu"]
    if gpus:
        cases = list(dict.fromkeys((s["model"], s["models"], s["precision"]) for r in gpus for s in r["steps"]))
        rows = [["date", "version", "GPU", *(f"{m.upper()} {jobs}, {p}" for m, jobs, p in cases)]]
        for r in reversed(gpus):
            us = {(s["model"], s["models"], s["precision"]): s["microseconds_per_step"] for s in r["steps"]}
            cells = [f"{us[case]:,.0f}" if case in us else "" for case in cases]
            rows.append([r["date"][:10], r["fedtilt"], r["machine"]["gpu"], *cells])
        parts.append("Microseconds a step.\n")
        parts.append(_table(rows))
    return "\n".join(parts) or "Nothing recorded yet.\n"


def _has(record: Record, task: str, name: str) -> bool:
    return task in record["tasks"] and name in engines(record["tasks"][task]["contenders"])


def _cell(contenders: Record, engine: str) -> str:
    seconds = typical(contenders)
    peers = [s for name, s in seconds.items() if not name.startswith(("fedtilt: ", "plain"))]
    plain = [s for name, s in seconds.items() if name.startswith("plain")]
    ratios = [f"{min(group) / seconds[engine]:.1f} ×" if group else "–" for group in (plain, peers)]
    return f"{seconds[engine]:.3f} ({', '.join(ratios)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", nargs="+", type=Path, default=[], help="results to keep")
    for path in keep(parser.parse_args().record):
        print(f"kept {path.relative_to(DOCS.parent)}")
    found = records()
    (DOCS / "performance.md").write_text(text(found))
    KEPT.mkdir(exist_ok=True)
    for old in KEPT.glob("*.svg"):
        old.unlink()
    for name, drawing in figures(found).items():
        (KEPT / name).write_text(drawing)


if __name__ == "__main__":
    main()
