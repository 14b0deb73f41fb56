"""How far the runs of a server are, from the files that it writes meanwhile: without PyTorch, which takes seconds."""

import contextlib
import json
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedtilt.files import read_json, read_toml

_METRICS = ("accuracy", "mae", "loss", "label_accuracy", "client_fairness", "worst")


class RunStatus(NamedTuple):
    """How far one run is."""

    lines: list[str]  # its round and the time that is left, its last metrics, and each of its sites
    has_ended: bool


def run_statuses(runs: Path, now: float | None = None) -> Iterator[tuple[Path, RunStatus]]:
    """The status of each run in a folder."""
    for folder in sorted(runs.glob("*/")):
        spec, seed = folder / "spec.toml", min(folder.glob("seed-*"), default=folder)
        if not spec.exists() or not (seed / "participation.json").exists():
            continue  # it is written just now
        rounds = int(tomllib.loads(read_toml(spec))["train"]["rounds"])
        recorded = {int(n): entry for n, entry in read_json(seed / "participation.json")["rounds"].items()}
        ended = _end(folder, seed)
        state = ended or _progress(seed, rounds, time.time() if now is None else now)
        first = f"{folder.name}: round {max(recorded, default=0)} of {rounds}, {state}"
        sites = [f"site {site}: {text}" for site, text in sorted(_sites(recorded).items())]
        yield folder, RunStatus([first, *_last_metrics(seed / "metrics.jsonl"), *sites], bool(ended))


def _end(folder: Path, seed: Path) -> str:
    """How a run ended; empty if it has not."""
    if (folder / "results.json").exists():
        return f"finished{early_end(seed)}"
    stopped = folder / "stopped.json"
    return f"stopped: {read_json(stopped)['reason']}" if stopped.exists() else ""


def early_end(seed: Path) -> str:
    """Why a run ended before its last round, after a colon; empty if it did not."""
    file = seed / "early_stop.json"
    return f": {read_json(file)['reason']}" if file.exists() else ""


def _progress(seed: Path, rounds: int, now: float) -> str:
    """The time that is left, from the first to the last checkpoint that are kept, and the age of the last."""
    times = _checkpoint_times(seed)
    idle = f"last recorded {_duration(max(0.0, now - max(times.values(), default=0.0)))} ago"
    if len(times) < 2:
        return idle
    first, last = min(times), max(times)
    left = max(0.0, (times[last] - times[first]) / (last - first) * (rounds - last))
    return f"about {_duration(left)} left, {idle}"


def _checkpoint_times(seed: Path) -> dict[int, float]:
    """When the checkpoints of a seed were written, by round."""
    times = {}
    for manifest in seed.glob("checkpoints/round-*/manifest.json"):
        with contextlib.suppress(OSError, ValueError):  # it is deleted just now
            times[int(manifest.parent.name.removeprefix("round-"))] = manifest.stat().st_mtime
    return times


def kept_rounds(folder: Path) -> str:
    """The rounds that a run can go back to, in words: "3, 4 (the shared model jumped), 5"; empty if there are none."""
    texts = []
    for seed in sorted(folder.glob("seed-*")):
        file = seed / "participation.json"
        entries = read_json(file)["rounds"] if file.exists() else {}
        for round in sorted(_checkpoint_times(seed)):
            texts.append(f"{round}{' (the shared model jumped)' if 'jump' in entries.get(str(round), {}) else ''}")
    return ", ".join(texts)


def _duration(seconds: float) -> str:
    """A time in one word.

    >>> _duration(45), _duration(250), _duration(9000)
    ('45 s', '4 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _last_metrics(path: Path) -> list[str]:
    for line in reversed(path.read_text().splitlines() if path.exists() else []):
        with contextlib.suppress(ValueError):  # the last line may be written just now
            values: dict[str, Any] = json.loads(line)
            metrics = values.get("personal") or values["shared"]
            is_one = metrics["clients"] == 1  # the spread over one site is always 0
            shown = [key for key in _METRICS if key in metrics and not (is_one and key == "client_fairness")]
            texts = [f"{key.replace('_', ' ')} {metrics[key]:.2f}" for key in shown]
            return [f"after round {values['round']}: {'  '.join(texts)}{'  (one site evaluated)' if is_one else ''}"]
    return []


def _sites(recorded: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """In words, for each site that was selected: its last round, and what happened to it since."""
    texts: dict[int, str] = {}
    last_round: dict[int, int] = {}
    for number, entry in sorted(recorded.items()):
        for site in entry["accepted"]:
            last_round[site], texts[site] = number, f"round {number}"
        for site, reason in {**entry["missing"], **entry["rejected"]}.items():
            before = f"round {last_round[int(site)]}" if int(site) in last_round else "no round yet"
            texts[int(site)] = f"{before}; in round {number}: {reason}"
    return texts
