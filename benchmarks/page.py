"""Write docs/performance.md and its figures from the recorded results in docs/performance/.

    python -m benchmarks.page                                # write the page again
    python -m benchmarks.page --record bench-results/*.json  # record these results, then write the page

Each recorded result is one JSON file, named by date and benchmark. The page shows the latest result of each kind in
full (of the rounds: of each task) and all of them in the history.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from string import Template
from typing import Any

from benchmarks.chart import log_log_chart
from benchmarks.options import make_page_parser

TEMPLATE = Path(__file__).parent / "performance.template.md"
DOCS = Path(__file__).parent.parent / "docs"
RECORDS = DOCS / "performance"
KINDS = ("rounds", "scale", "scale-cuda", "memory", "aggregation", "gpu", "gpu_recipes")
PREFIX = "fedtilt: "  # of the names of our implementations
Record = dict[str, Any]


def read_records(folder: Path = RECORDS) -> list[Record]:
    """All recorded results, the oldest first."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return sorted(records, key=lambda record: (record["date"], record["kind"]))


def add_records(paths: Iterable[Path], folder: Path = RECORDS) -> list[Path]:
    """Copy results into the folder, named by date and kind; return the new paths."""
    folder.mkdir(parents=True, exist_ok=True)
    added = []
    for path in paths:
        record = json.loads(path.read_text())
        if record.get("kind") not in KINDS:
            continue  # a smoke test
        name = f"{record['date'].replace(':', '').replace('-', '')}-{record['kind']}.json"
        (folder / name).write_text(json.dumps(record, indent=1) + "\n")
        added.append(folder / name)
    return added


def latest(records: Sequence[Record], kind: str) -> Record | None:
    """The latest result of a kind."""
    return next((record for record in reversed(records) if record["kind"] == kind), None)


def render_page(records: Sequence[Record]) -> str:
    """The page as Markdown."""
    return Template(TEMPLATE.read_text()).substitute(
        rounds=_rounds(records),
        scale=_scale(records),
        memory=_memory(latest(records, "memory")),
        aggregation=_aggregation(latest(records, "aggregation")),
        gpu=_gpu(latest(records, "gpu")),
        gpu_recipes=_gpu_recipes(latest(records, "gpu_recipes")),
        history=_history(records),
    )


def render_figures(records: Sequence[Record]) -> dict[str, str]:
    """The figures by file name."""
    figures = {}
    devices = {_device(r): r for r in (latest(records, "scale"), latest(records, "scale-cuda")) if r is not None}
    names = [name for record in devices.values() for name in record["curves"]]
    for name in dict.fromkeys(names):
        curves = {device: r["curves"][name] for device, r in devices.items() if name in r["curves"]}
        curve = next(iter(curves.values()))
        first = curve["points"][0]
        figures[f"{name}.svg"] = log_log_chart(
            f"Seconds per round against {curve['label']}",
            curve["label"],
            "seconds per round",
            {device: [(p[name], p["seconds"]) for p in curve["points"]] for device, curve in curves.items()},
            reference=[(p[name], first["seconds"] * p["operations"] / first["operations"]) for p in curve["points"]],
        )
    return figures


def add_page_options(parser: argparse.ArgumentParser, page: Path) -> None:
    """The options of a benchmark that writes its own page from one recorded result."""
    name = page.relative_to(DOCS.parent)
    parser.add_argument("--record", type=Path, metavar="FILE", help=f"record this result and write {name}")
    parser.add_argument("--page", action="store_true", help=f"only write {name} from the recorded result")


def record_and_write(options: argparse.Namespace, record: Path, page: Path, render: Callable[[], str]) -> bool:
    """Do what `add_page_options` offers, if it was asked for; False: it was not. With --quick, nothing is written."""
    if options.quick and (options.record or options.page):
        render()
        return True
    if options.record:
        record.parent.mkdir(exist_ok=True)
        shutil.copyfile(options.record, record)
    if options.record or options.page:
        page.write_text(render())
    return bool(options.record or options.page)


def machine_text(record: Record) -> str:
    """The machine, the version and the date of a result."""
    m = record["machine"]
    gpu = f"{m['gpu']}, " if "gpu" in m else ""
    return (
        f"{gpu}{m['processor']}, {m['cores']} cores, {m['memory_gib']} GiB, torch {m['torch']}; "
        f"fedtilt {record['fedtilt']}, {record['date'][:10]}"
    )


def _device(record: Record) -> str:
    m = record["machine"]
    return str(m.get("gpu") or f"{m['cores']} CPU cores")


def _not_recorded(command: str) -> str:
    return f"Not recorded yet; run `{command}`.\n"


def markdown_table(rows: Sequence[Sequence[str]], text_columns: int = 1) -> str:
    """A table whose first row is the header; columns after the text columns are numbers, aligned right."""
    header, *body = rows
    lines = [header, ["---" if i < text_columns else "---:" for i in range(len(header))], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def median_seconds(implementations: Record) -> dict[str, float]:
    """The median seconds per round of every implementation that ran."""
    return {name: median(i["seconds"]) for name, i in implementations.items() if "seconds" in i}


def our_names(implementations: Record) -> list[str]:
    """The names of our implementations with the default backend."""
    return [name for name in median_seconds(implementations) if name.startswith(PREFIX) and ", backend" not in name]


def _rounds(records: Sequence[Record]) -> str:
    of_task = {name: record for record in records if record["kind"] == "rounds" for name in record["tasks"]}
    if not of_task:
        return _not_recorded("make bench")
    parts = [
        "The median of several rounds, and the fastest and slowest in brackets. Speed-ups are ratios of medians.\n"
    ]
    for name, record in of_task.items():
        task = record["tasks"][name]
        implementations, seconds = task["implementations"], median_seconds(task["implementations"])
        ours = our_names(implementations)
        parts.append(
            f"### {task['title']}\n\n{task['clients']} of {task['total_clients']} clients × {task['samples']} samples "
            f"× {task['epochs']} epoch{'s' if task['epochs'] > 1 else ''}, batch {task['batch_size']}: "
            f"{task['steps']:,} steps, {task['operations'] / 1e9:.1f} GFLOP. "
            f"Peak {task['peak_operations_per_second'] / 1e9:.0f} GFLOP/s.\n"
            f"{record['repeats']} rounds on {machine_text(record)}.\n"
        )
        speed_ups = [f"speed-up of our {name.removeprefix(PREFIX)}" for name in ours]
        rows = [["", "seconds per round", *speed_ups, "of peak", "memory", "loss"]]
        for name, i in implementations.items():
            if "error" in i:
                rows.append([name, i["error"], *([""] * (len(ours) + 3))])
                continue
            losses = [i["loss_start"], i["loss_shared"], *([i["loss_personal"]] if "loss_personal" in i else [])]
            rows.append(
                [
                    f"**{name}**" if name in ours else f"{name} ({_versions(i)})",
                    f"{seconds[name]:.3f} ({min(i['seconds']):.3f} to {max(i['seconds']):.3f})",
                    *("" if name == our_name else f"{seconds[name] / seconds[our_name]:.1f} ×" for our_name in ours),
                    f"{100 * task['operations'] / seconds[name] / task['peak_operations_per_second']:.0f} %",
                    f"{i['peak_memory_mib']:.0f} MiB",
                    " → ".join(f"{loss:.2f}" for loss in losses),
                ]
            )
        parts.append(markdown_table(rows))
    return "\n".join(parts)


def _versions(implementation: Record) -> str:
    versions = {k: v.split("+")[0] for k, v in implementation["versions"].items() if k != "fedtilt"}
    return ", ".join(f"{k} {v}" for k, v in versions.items())


def _scale(records: Sequence[Record]) -> str:
    measured = [r for r in (latest(records, "scale"), latest(records, "scale-cuda")) if r is not None]
    if not measured:
        return _not_recorded("python -m benchmarks.scale")
    parts = [
        "FedTilt, two models per client, ten clients of 200 samples, one epoch, batch 10, MLP 784-200-200-10, except "
        "for the quantity on the axis.\nA step trains one model on one batch. The dashed line is the cost of the first "
        "point, scaled with the operations.\n"
    ]
    parts += [f"{_device(record)}: {machine_text(record)}.\n" for record in measured]
    parts += [f"![{name.removesuffix('.svg')}](performance/{name})\n" for name in render_figures(records)]
    for record in measured:
        for name, curve in record["curves"].items():
            rows = [[f"{curve['label']} ({_device(record)})", "seconds per round", "microseconds per step"]]
            rows += [
                [f"{p[name]:,}", f"{p['seconds']:.3f}", f"{p['microseconds_per_step']:.1f}"] for p in curve["points"]
            ]
            parts.append(markdown_table(rows))
    return "\n".join(parts)


def _memory(record: Record | None) -> str:
    if record is None:
        return _not_recorded("python -m benchmarks.memory")
    trace = record["trace_mib"]
    warmup = len(trace) // 4
    return (
        f"{record['clients']:,} clients, 100 per round, {len(trace)} rounds of Ditto with a small model: "
        f"{trace[warmup]:.0f} MiB resident after {warmup} rounds, {trace[-1]:.0f} MiB at the end,\n"
        f"{record['slope_mib_per_round'] * 1024:+.1f} KiB per round. Personal models beyond a limit are on disk.\n\n"
        f"{machine_text(record)}.\n"
    )


def _aggregation(record: Record | None) -> str:
    if record is None:
        return _not_recorded("python -m benchmarks.aggregation")
    text = (
        "A tilted aggregation of 100 models of 1,000,000 parameters, in units of its lower bound: their mean and one "
        f"float32 Gram product.\n\n{machine_text(record)}.\n"
    )
    return (
        text + "\n" + markdown_table([["rule", "ratio"], *([name, f"{r:.2f}"] for name, r in record["ratios"].items())])
    )


def _gpu(record: Record | None) -> str:
    if record is None:
        return _not_recorded("PYTHONPATH=src python -m benchmarks.gpu")
    parts = [
        f"{machine_text(record)}. A step trains all models (20: w and v of ten clients; 320: the same for sixteen "
        "settings) on one mini-batch each.\n"
    ]
    rows = [["model", "models at once", "precision of products", "microseconds per step", "memory"]]
    for s in record["steps"]:
        step, memory = f"{s['microseconds_per_step']:,.0f}", f"{s['peak_memory_mib']:,.0f} MiB"
        rows.append([s["model"].upper(), str(s["models"]), s["precision"], step, memory])
    parts.append(markdown_table(rows))
    if record["runs"]:
        rows = [
            [
                "whole run, evaluated every round or every tenth",
                "precision of products",
                "rounds",
                "seconds",
                "accuracy",
            ]
        ]
        groups: dict[tuple[str, str, str, int], list[Record]] = {}
        for r in record["runs"]:
            groups.setdefault((r["dataset"], r["samples_from"], r["precision"], r["rounds"]), []).append(r)
        for (dataset, samples_from, precision, rounds), runs in groups.items():
            name = f"FedTilt on {dataset}"
            name += "" if samples_from == dataset else f" ({samples_from} samples of its size)"
            seeds = f" (mean ± std of {len(runs)} seeds)" if len(runs) > 1 else ""
            accuracy = _mean_and_std([r["accuracy"] for r in runs]) + seeds
            rows.append([name, precision, str(rounds), f"{fmean(r['seconds'] for r in runs):.1f}", accuracy])
        parts.append(markdown_table(rows))
        parts.append(_precision_difference(record["runs"]))
    return "\n".join(parts)


def _gpu_recipes(record: Record | None) -> str:
    if record is None:
        return _not_recorded("PYTHONPATH=src python -m benchmarks.gpu_recipes")
    optimizers = [["microseconds per step of the MLP", "plain SGD", "momentum", "Adam"]]
    resnets = [["ResNet-18, 20 models of 10 samples", "ms per step, loop", "stacked", "ratio", "first call"]]
    for task in (key for key in record if key.startswith(("mlp", "resnet18"))):
        values = record[task]
        if task.startswith("mlp"):
            steps = {name: values[name]["microseconds_per_step"] for name in ("plain", "momentum", "adam")}
            ratios = [f"{step:,.0f} ({step / steps['plain']:.2f} ×)" for step in steps.values()]
            optimizers.append([f"{task.split()[1]} models", *ratios])
        else:
            times = [f"{values[f'{backend}_milliseconds']:.1f}" for backend in ("loop", "stacked")]
            first = f"{values['first_call_seconds']:.0f} s"
            resnets.append([_resnet_title(task), *times, f"{values['ratio']:.1f} ×", first])
    parts = [
        f"{machine_text(record)}. A stack of any model is compiled by torch at its first call; a second process finds "
        "the compiled step in a cache. The loop trains one model after the other on the same GPU.\n",
        *([f"{record['remark']}\n"] if "remark" in record else []),
    ]
    return "\n".join([*parts, *(markdown_table(rows) for rows in (resnets, optimizers) if len(rows) > 1)])


def _resnet_title(task: str) -> str:
    """What a task of the ResNet measures.

    >>> _resnet_title("resnet18 float32 second")
    'float32, second process'
    """
    _, precision, *process = task.split()
    return ", ".join([precision, *(f"{word} process" for word in process)])


def _precision_difference(runs: Sequence[Record]) -> str:
    """The largest difference in accuracy between precisions, per data set."""
    differences = []
    for dataset in dict.fromkeys(r["dataset"] for r in runs):
        by_precision: dict[str, list[float]] = {}
        for r in runs:
            if r["dataset"] == dataset:
                by_precision.setdefault(r["precision"], []).append(r["accuracy"])
        means = [fmean(values) for values in by_precision.values()]
        if len(means) > 1:
            differences.append(f"{max(means) - min(means):.2f} points on {dataset}")
    return f"Between precisions, accuracy differs by at most {' and '.join(differences)}.\n" if differences else ""


def _mean_and_std(values: Sequence[float]) -> str:
    std = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{std} %"


def _history(records: Sequence[Record]) -> str:
    parts = []
    rounds = [r for r in records if r["kind"] == "rounds"]
    if rounds:
        all_tasks = [task for r in rounds for task in r["tasks"].values()]
        names = list(dict.fromkeys(name for task in all_tasks for name in our_names(task["implementations"])))
        tasks = list(dict.fromkeys(task for r in rounds for task in r["tasks"]))
        columns = [(task, name) for task in tasks for name in names if any(_has(r, task, name) for r in rounds)]
        headers = [f"{task}: {name.removeprefix(PREFIX)}" for task, name in columns]
        rows = [["date", "version", "machine", *headers]]
        for r in reversed(rounds):
            cells = [_speed_ups(r["tasks"][t]["implementations"], n) if _has(r, t, n) else "" for t, n in columns]
            machine = f"{r['machine']['processor']}, {r['machine']['cores']} cores"
            rows.append([r["date"][:10], r["fedtilt"], machine, *cells])
        parts.append("Seconds per round; in brackets, the speed-up over the plain loop and the fastest simulator.\n")
        parts.append(markdown_table(rows))
    gpus = [r for r in records if r["kind"] == "gpu"]
    if gpus:
        cases = list(dict.fromkeys((s["model"], s["models"], s["precision"]) for r in gpus for s in r["steps"]))
        rows = [["date", "version", "GPU", *(f"{model.upper()} {n}, {p}" for model, n, p in cases)]]
        for r in reversed(gpus):
            microseconds = {(s["model"], s["models"], s["precision"]): s["microseconds_per_step"] for s in r["steps"]}
            cells = [f"{microseconds[case]:,.0f}" if case in microseconds else "" for case in cases]
            rows.append([r["date"][:10], r["fedtilt"], r["machine"]["gpu"], *cells])
        parts.append("Microseconds per step.\n")
        parts.append(markdown_table(rows))
    return "\n".join(parts) or "Nothing recorded yet.\n"


def _has(record: Record, task: str, name: str) -> bool:
    return task in record["tasks"] and name in our_names(record["tasks"][task]["implementations"])


def _speed_ups(implementations: Record, our_name: str) -> str:
    seconds = median_seconds(implementations)
    simulators = [s for name, s in seconds.items() if not name.startswith((PREFIX, "plain"))]
    plain = [s for name, s in seconds.items() if name.startswith("plain")]
    speed_ups = [f"{min(group) / seconds[our_name]:.1f} ×" if group else "–" for group in (plain, simulators)]
    return f"{seconds[our_name]:.3f} ({', '.join(speed_ups)})"


def main() -> None:
    options = make_page_parser(__doc__).parse_args()
    if not options.quick:
        for path in add_records(options.record):
            print(f"recorded {path.relative_to(DOCS.parent)}")
    records = read_records()
    page, figures = render_page(records), render_figures(records)
    if options.quick:
        return
    (DOCS / "performance.md").write_text(page)
    RECORDS.mkdir(exist_ok=True)
    for path in RECORDS.glob("*.svg"):
        path.unlink()
    for name, svg in figures.items():
        (RECORDS / name).write_text(svg)


if __name__ == "__main__":
    main()
