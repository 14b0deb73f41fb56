"""The sections of docs/benchmarks.md on speed and memory."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median, stdev

from benchmarks.gpu_recipes import WORKERS
from benchmarks.markdown import Record, device_name, machine_text, markdown_table, not_recorded
from benchmarks.others_cases import CASES
from benchmarks.page_chart import log_log_chart

PREFIX = "fedtilt: "  # of the names of our implementations


def sections(records: Mapping[str, Record]) -> dict[str, str]:
    """The sections by their names in the template."""
    return {
        "rounds": _rounds(records["rounds"]) if "rounds" in records else not_recorded("make bench"),
        "scale": _scale(records),
        "memory": _memory(records.get("memory")),
        "aggregation": _aggregation(records.get("aggregation")),
        "gpu": _gpu(records.get("gpu")),
        "gpu_recipes": _gpu_recipes(records.get("gpu_recipes")),
        "others": _others(records.get("others"), "PYTHONPATH=src python -m benchmarks.others"),
        "others_accuracy": _others_accuracy(records.get("others-accuracy")),
        "others_cpu": _others(records.get("others-cpu"), "PYTHONPATH=src python -m benchmarks.others --device cpu"),
    }


def figures(records: Mapping[str, Record]) -> dict[str, str]:
    """The figures by file name."""
    drawn = {}
    measured = _scale_records(records)
    for name in dict.fromkeys(name for record in measured.values() for name in record["curves"]):
        curves = {device: r["curves"][name] for device, r in measured.items() if name in r["curves"]}
        curve = next(iter(curves.values()))
        first = curve["points"][0]
        drawn[f"{name}.svg"] = log_log_chart(
            f"Seconds per round against {curve['label']}",
            curve["label"],
            "seconds per round",
            {device: [(p[name], p["seconds"]) for p in curve["points"]] for device, curve in curves.items()},
            reference=[(p[name], first["seconds"] * p["operations"] / first["operations"]) for p in curve["points"]],
        )
    return drawn


def median_seconds(implementations: Record) -> dict[str, float]:
    """The median seconds per round of every implementation that ran."""
    return {name: median(i["seconds"]) for name, i in implementations.items() if "seconds" in i}


def our_names(implementations: Record) -> list[str]:
    """The names of our implementations with the default backend."""
    return [name for name in median_seconds(implementations) if name.startswith(PREFIX) and ", backend" not in name]


def _rounds(record: Record) -> str:
    parts = [f"{record['repeats']} rounds on {machine_text(record)}.\n"]
    for task in record["tasks"].values():
        implementations, seconds = task["implementations"], median_seconds(task["implementations"])
        ours = our_names(implementations)
        parts.append(
            f"**{task['title']}**: {task['clients']} of {task['total_clients']} clients × {task['samples']} samples "
            f"× {task['epochs']} epoch{'s' if task['epochs'] > 1 else ''}, batch {task['batch_size']}: "
            f"{task['steps']:,} steps, {task['operations'] / 1e9:.1f} GFLOP. "
            f"Peak {task['peak_operations_per_second'] / 1e9:.0f} GFLOP/s.\n"
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
    versions = {k: v.split("+")[0] for k, v in implementation["versions"].items() if k not in ("fedtilt", "backend")}
    return ", ".join(f"{k} {v}" for k, v in versions.items())


def _scale_records(records: Mapping[str, Record]) -> dict[str, Record]:
    """The measured curves by device."""
    return {device_name(records[kind]): records[kind] for kind in ("scale", "scale-cuda") if kind in records}


def _scale(records: Mapping[str, Record]) -> str:
    measured = _scale_records(records)
    if not measured:
        return not_recorded("python -m benchmarks.scale")
    parts = [f"{device}: {machine_text(record)}.\n" for device, record in measured.items()]
    parts += [f"![{name.removesuffix('.svg')}](benchmarks/{name})\n" for name in figures(records)]
    rows = [["microseconds per step", *measured]]
    for name, curve in next(iter(measured.values()))["curves"].items():
        by_device = [{p[name]: p["microseconds_per_step"] for p in r["curves"][name]["points"]}
                     for r in measured.values()]  # fmt: skip
        for size in by_device[0]:
            cells = [f"{values[size]:.1f}" if size in values else "" for values in by_device]
            rows.append([f"{curve['label']}: {size:,}", *cells])
    return "\n".join([*parts, markdown_table(rows)])


def _memory(record: Record | None) -> str:
    if record is None:
        return not_recorded("python -m benchmarks.memory")
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
        return not_recorded("python -m benchmarks.aggregation")
    ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in record["ratios"].items())
    return (
        "A tilted aggregation of 100 models of 1,000,000 parameters, in units of its lower bound, their mean and one "
        f"float32 Gram product: {ratios}.\n\n{machine_text(record)}.\n"
    )


def _others(record: Record | None, command: str) -> str:
    if record is None:
        return not_recorded(command)
    theirs = {(row["case"], row["implementation"]): row["round_seconds"] for row in record["rows"] if not _is_ours(row)}
    peers = list(dict.fromkeys(name for _, name in theirs))
    rows = [["benchmark", "", "milliseconds per round", "all its rounds", "first round"]]
    rows[0] += [f"speed-up over {peer}" for peer in peers]
    for row in record["rows"]:
        seconds, name, case = row["round_seconds"], row["implementation"], row["case"]
        compared = [theirs.get((case, peer)) if _is_ours(row) else None for peer in peers]
        rows.append(
            [
                row["title"], f"**{name}**" if _is_ours(row) else name, f"{1e3 * seconds:,.1f}",
                f"{row['rounds']:,} rounds: {_duration(seconds * row['rounds'])}",
                f"{row['first_round_seconds']:.1f} s",
                *("" if other is None else _ratio(other / seconds) for other in compared),
            ]
        )  # fmt: skip
    cases = dict.fromkeys(row["case"] for row in record["rows"])
    published = [f"- {CASES[case].title}: {CASES[case].published}" for case in cases if _published(case)]
    figures = "\nPublished by the authors of these benchmarks, on their machines:\n\n" + "\n".join(published) + "\n"
    return f"{machine_text(record)}.\n\n{markdown_table(rows)}{figures if published else ''}"


def _is_ours(row: Record) -> bool:
    return str(row["implementation"]).startswith("fedtilt")


def _ratio(value: float) -> str:
    return f"{value:.0f} ×" if value >= 10 else f"{value:.1f} ×"


def _published(case: str) -> str:
    return CASES[case].published if case in CASES else ""


def _others_accuracy(record: Record | None) -> str:
    if record is None:
        return not_recorded("PYTHONPATH=src python -m benchmarks.others_accuracy")
    last = sorted({row["rounds"][-1] for row in record["rows"]})
    shown = sorted({200, 400, 800, *last})
    rows = [["accuracy on all test images, %", "seed", *(f"round {number:,}" for number in shown)]]
    for row in record["rows"]:
        tested = dict(zip(row["rounds"], row["accuracy"], strict=True))
        name = f"**{row['implementation']}**" if _is_ours(row) else row["implementation"]
        rows.append([name, str(row["seed"]), *(f"{tested[n]:.2f}" if n in tested else "" for n in shown)])
    return f"{machine_text(record)}.\n\n{markdown_table(rows)}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:,.1f} min"


def _gpu(record: Record | None) -> str:
    if record is None:
        return not_recorded("PYTHONPATH=src python -m benchmarks.gpu")
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
        rows = [["whole run, evaluated every round or every tenth", "precision", "rounds", "seconds", "accuracy"]]
        groups: dict[tuple[str, str, str, int], list[Record]] = {}
        for r in record["runs"]:
            groups.setdefault((r["dataset"], r["samples_from"], r["precision"], r["rounds"]), []).append(r)
        for (dataset, samples_from, precision, rounds), runs in groups.items():
            name, accuracy = f"FedTilt on {dataset}", _mean_and_std([r["accuracy"] for r in runs])
            if samples_from != dataset:  # random samples: their accuracy means nothing
                name, accuracy = f"{name} ({samples_from} samples of its size)", ""
            rows.append([name, precision, str(rounds), f"{fmean(r['seconds'] for r in runs):.1f}", accuracy])
        parts.append(markdown_table(rows))
    return "\n".join(parts)


def _gpu_recipes(record: Record | None) -> str:
    if record is None:
        return not_recorded("PYTHONPATH=src python -m benchmarks.gpu_recipes")
    optimizers = [["microseconds per step of the MLP", "plain SGD", "momentum", "Adam"]]
    resnets = [["ResNet-18, 20 models of 10 samples", "ms per step, loop", "stacked", "ratio", "first call"]]
    loops = [
        ["seconds a round, 16 clients in the loop", *(f"{n} processes" if n else "the run's own" for n in WORKERS)]
    ]
    for task in (key for key in record if key.startswith(("mlp", "resnet18", "loop"))):
        values = record[task]
        if task.startswith("loop"):
            times = {workers: values["processes"][str(workers)]["round"] for workers in WORKERS}
            gains = [f"{seconds:.2f} ({times[0] / seconds:.1f} ×)" for seconds in times.values()]
            loops.append([_LOOPS[task.split()[1]], *gains])
        elif task.startswith("mlp"):
            steps = {name: values[name]["microseconds_per_step"] for name in ("plain", "momentum", "adam")}
            ratios = [f"{step:,.0f} ({step / steps['plain']:.2f} ×)" for step in steps.values()]
            optimizers.append([f"{task.split()[1]} models", *ratios])
        else:
            times = [f"{values[f'{backend}_milliseconds']:.1f}" for backend in ("loop", "stacked")]
            first = f"{values['first_call_seconds']:.0f} s"
            resnets.append([_resnet_title(task), *times, f"{values['ratio']:.1f} ×", first])
    text = (
        f"{machine_text(record)}. A stack of any model is compiled by torch at its first call; a second process finds "
        "the compiled step in a cache. Python's byte code of torch is on the disk, as pip leaves it. The autograd loop "
        "trains one model after the other on the same GPU; what cannot be stacked trains so, in four processes if the "
        "run is long.\n"
    )
    return "\n".join([text, *(markdown_table(rows) for rows in (resnets, loops, optimizers) if len(rows) > 1)])


_LOOPS = {"lstm": "two LSTM layers with dropout between them", "resnet18": "ResNet-18 (backend = autograd)"}


def _resnet_title(task: str) -> str:
    """What a task of the ResNet measures.

    >>> _resnet_title("resnet18 float32 second")
    'float32, second process'
    """
    _, precision, *process = task.split()
    return ", ".join([precision, *(f"{word} process" for word in process)])


def _mean_and_std(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f} %"
    return f"{fmean(values):.2f} ± {stdev(values):.2f} % (mean ± std of {len(values)} seeds)"
