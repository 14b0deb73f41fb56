"""How far the run in a server's run folder is: from its files alone, without PyTorch, while the server writes them."""

import contextlib
import json
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtilt.files import read_json, read_toml


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """The state of one run."""

    name: str
    round: int  # the last that is done
    rounds: int
    is_finished: bool
    stopped: str | None  # why the server stopped
    seconds_left: float | None  # None: not known yet, or nothing is left
    idle_seconds: float  # since the server recorded something
    metrics: tuple[int, dict[str, float]] | None  # of the last evaluation: its round, and metrics by name
    sites: dict[int, str]  # the last round of each site, and why it is not in the last one


def run_status(folder: Path, now: float | None = None) -> RunStatus | None:
    """The status of the run in a folder; None if there is none yet."""
    spec, stopped_file, seeds = folder / "spec.toml", folder / "stopped.json", sorted(folder.glob("seed-*"))
    if not spec.exists() or not seeds or not (seeds[0] / "participation.json").exists():
        return None
    rounds = int(tomllib.loads(read_toml(spec))["train"]["rounds"])
    entries = read_json(seeds[0] / "participation.json")["rounds"]
    times = _times(seeds[0])
    is_finished = (folder / "results.json").exists()
    stopped = read_json(stopped_file)["reason"] if stopped_file.exists() else None
    return RunStatus(
        name=folder.name,
        round=max(map(int, entries), default=0),
        rounds=rounds,
        is_finished=is_finished,
        stopped=stopped,
        seconds_left=None if is_finished or stopped is not None else _seconds_left(times, rounds),
        idle_seconds=max(0.0, (time.time() if now is None else now) - max(times.values(), default=0.0)),
        metrics=_last_metrics(seeds[0] / "metrics.jsonl"),
        sites=_sites(entries),
    )


def _times(seed: Path) -> dict[int, float]:
    """When the checkpoints that are kept were written, by round."""
    found = {}
    for manifest in seed.glob("checkpoints/round-*/manifest.json"):
        with contextlib.suppress(OSError, ValueError):  # it is deleted just now
            found[int(manifest.parent.name.removeprefix("round-"))] = manifest.stat().st_mtime
    return found


def _seconds_left(times: dict[int, float], rounds: int) -> float | None:
    """From the time between the first and the last checkpoint that are kept."""
    if len(times) < 2:
        return None
    first, last = min(times), max(times)
    return max(0.0, (times[last] - times[first]) / (last - first) * (rounds - last))


def _last_metrics(path: Path) -> tuple[int, dict[str, float]] | None:
    if not path.exists():
        return None
    for line in reversed(path.read_text().splitlines()):
        with contextlib.suppress(ValueError):  # the last line may be written just now
            values: dict[str, Any] = json.loads(line)
            found = values.get("personal") or values["shared"]
            return values["round"], {key: value for key, value in found.items() if isinstance(value, float)}
    return None


def _sites(entries: dict[str, Any]) -> dict[int, str]:
    """In words, for each site that was selected: its last round, and what happened to it since."""
    texts: dict[int, str] = {}
    last_round: dict[int, int] = {}
    for number, entry in sorted(entries.items(), key=lambda item: int(item[0])):
        for site in entry["accepted"]:
            last_round[site] = int(number)
            texts[site] = f"round {number}"
        for site, reason in {**entry["missing"], **entry["rejected"]}.items():
            before = f"round {last_round[int(site)]}" if int(site) in last_round else "no round yet"
            texts[int(site)] = f"{before}; in round {number}: {reason}"
    return dict(sorted(texts.items()))
