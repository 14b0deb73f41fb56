"""The evaluated rounds of a run: a line of metrics per round and method, and a file of counts per round.

Every line has its own digest. A round is intact if all its lines and its counts are; others are skipped, and named.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.evaluation.metrics import Counts, GroupCounts
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.files import check_digest, read_tensors, reading, with_digest, write_bytes, write_tensors, writing

History = dict[str, list[tuple[int, RoundMetrics]]]  # method → (round, metrics)


class Line(NamedTuple):
    """The metrics of one method after one round."""

    text: str
    summary: RoundMetrics
    validation: RoundMetrics | None


class Lines(NamedTuple):
    """The content of metrics.jsonl."""

    rounds: dict[int, dict[str, Line]]  # round → method → line, in the order of the file
    damaged: list[str]  # one sentence per line that cannot be used


class EvaluationHistory:
    """The evaluated rounds of a run, in memory."""

    def __init__(self) -> None:
        self.history: History = {}
        self.validations: list[tuple[int, dict[str, RoundMetrics]]] = []  # (round, metrics on validation data)
        self._last: tuple[dict[str, Counts], Tensor] | None = None

    def record(
        self, round: int, summaries: Mapping[str, RoundMetrics], counts: Mapping[str, Counts], total: Tensor,
        validation: Mapping[str, RoundMetrics] | None = None,
    ) -> None:  # fmt: skip
        """Add an evaluated round."""
        if validation:
            self.validations.append((round, dict(validation)))
        for name, summary in summaries.items():
            self.history.setdefault(name, []).append((round, summary))
        self._last = dict(counts), total

    @property
    def validation(self) -> dict[str, RoundMetrics]:
        """The metrics on validation data after the last evaluated round, by method; empty: there is no such data."""
        return self.validations[-1][1] if self.validations else {}

    def counts(self, round: int) -> tuple[dict[str, Counts], Tensor]:
        """The counts of an evaluated round by method, and the number of samples; in memory, of the last alone."""
        assert self._last is not None
        return self._last


class Evaluations(EvaluationHistory):
    """metrics.jsonl and counts/ in the folder of one seed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.metrics_file = folder / "metrics.jsonl"
        self._counts_folder = folder / "counts"

    def record(
        self, round: int, summaries: Mapping[str, RoundMetrics], counts: Mapping[str, Counts], total: Tensor,
        validation: Mapping[str, RoundMetrics] | None = None,
    ) -> None:  # fmt: skip
        """Add an evaluated round."""
        super().record(round, summaries, counts, total, validation)
        lines = ""
        for name, summary in summaries.items():
            entry = {"round": round, "method": name} | summary.to_json()
            if validation and name in validation:
                entry["validation"] = validation[name].to_json()
            lines += json.dumps(with_digest(entry), allow_nan=False) + "\n"
        write_counts(self.counts_file(round), counts, total)
        with writing(self.metrics_file), self.metrics_file.open("a") as file:
            file.write(lines)

    def sync(self) -> None:
        """Make sure that the metrics survive a crash."""
        if self.metrics_file.exists():
            with writing(self.metrics_file), self.metrics_file.open("rb") as file:
                os.fsync(file.fileno())

    def counts(self, round: int) -> tuple[dict[str, Counts], Tensor]:
        """The counts of an evaluated round by method, and the number of samples."""
        return read_counts(self.counts_file(round))

    def counts_file(self, round: int) -> Path:
        """The file with the counts of a round."""
        return self._counts_folder / f"round-{round:05d}.safetensors"

    def counted_rounds(self) -> list[int]:
        """The rounds with a file of counts, in order."""
        return list(rounds_in(self._counts_folder, r"\.safetensors").values())

    def read_lines(self) -> Lines:
        """Read metrics.jsonl; a damaged line is reported and skipped, also one that a kill has cut off."""
        if not self.metrics_file.exists():
            return Lines({}, [])
        with reading(self.metrics_file):
            content = self.metrics_file.read_bytes()
        lines = Lines({}, [])
        for number, text in enumerate(content.split(b"\n"), 1):
            if not text and number > content.count(b"\n"):
                break  # after the last line
            try:
                entry = check_digest(json.loads(text))
                validation = RoundMetrics.from_json(entry["validation"]) if "validation" in entry else None
                line = Line(text.decode(), RoundMetrics.from_json(entry), validation)
                lines.rounds.setdefault(int(entry["round"]), {})[str(entry["method"])] = line
            except (ValueError, KeyError, TypeError, AttributeError, AssertionError, RecursionError) as error:
                lines.damaged.append(f"{self.metrics_file} is damaged in line {number} ({_first_line(error)})")
        return lines

    def problems(self, lines: Lines, methods: Collection[str]) -> dict[int, str]:
        """Rounds whose metrics or counts are missing, and a sentence about each."""
        counted = set(self.counted_rounds())
        problems = {}
        for round in sorted(counted | set(lines.rounds)):
            missing = [name for name in methods if name not in lines.rounds.get(round, {})]
            if missing:
                problems[round] = f"{self.metrics_file} has no metrics of {', '.join(missing)} after round {round}"
            elif round not in counted:
                problems[round] = f"{self.counts_file(round)} is missing"
        return problems

    def check(self, round: int) -> None:
        """Raise InputError, which names the file, if the metrics or counts of a round cannot be read."""
        counts, _ = self.counts(round)
        lines = self.read_lines()
        for name in counts:
            if name not in lines.rounds.get(round, {}):
                raise InputError(
                    [*lines.damaged, f"{self.metrics_file} has no metrics of {name} after round {round}"][0]
                )

    def restore(
        self, last: int, methods: Collection[str], evaluates: Callable[[int], bool], notice: Callable[[str], None]
    ) -> None:
        """Read the history up to a round, and delete everything else: also the rounds that the run does not evaluate.

        `notice` is called with a message about each damaged line or file.
        """
        lines = self.read_lines()
        problems = self.problems(lines, methods)
        rounds = [r for r in lines.rounds if r <= last and evaluates(r) and r not in problems]
        lost = [problem for round, problem in problems.items() if round <= last and evaluates(round)]
        for problem in [*(lines.damaged if lost else []), *lost]:
            notice(f"{problem}; this evaluation is missing from the curves")
        kept = [(round, name, line) for round in rounds for name, line in lines.rounds[round].items()]
        self.history, validations = {}, dict[int, dict[str, RoundMetrics]]()
        for round, name, line in kept:
            self.history.setdefault(name, []).append((round, line.summary))
            if line.validation is not None:
                validations.setdefault(round, {})[name] = line.validation
        self.validations = list(validations.items())
        if self.metrics_file.exists():
            write_bytes(self.metrics_file, "".join(line.text + "\n" for _, _, line in kept).encode())
        for path, round in rounds_in(self._counts_folder, r"\.safetensors(\.part)?").items():
            if round not in rounds:
                with writing(path):
                    path.unlink()


def write_counts(path: Path, counts: Mapping[str, Counts], total: Tensor) -> None:
    """Write counts by method, and the number of samples."""
    tensors = {"total": total.int()}
    for name, count in counts.items():
        for i, group in enumerate(count.groups):
            tensors[f"total-{i}"], tensors[f"{name}/group-{i}"] = group.total.int(), _stored(group.sums)
        tensors[f"{name}/shared"] = _stored(count.shared)
        tensors[f"{name}/never_selected"] = count.never_selected
        if count.personal is not None:
            tensors[f"{name}/personal"] = _stored(count.personal)
    write_tensors(path, tensors)


def read_counts(path: Path) -> tuple[dict[str, Counts], Tensor]:
    """The inverse of `write_counts`."""
    tensors = read_tensors(path)
    try:
        total = tensors.pop("total").long()
        counts = {}
        columns = sorted((key for key in tensors if "/" not in key), key=lambda key: (len(key), key))  # total-0, …
        totals = [tensors.pop(key).long() for key in columns]
        for key in tensors:
            name, part = key.rsplit("/", 1)
            if part == "shared":
                personal = tensors.get(f"{name}/personal")
                personal = None if personal is None else _restored(personal)
                groups = [GroupCounts(_restored(tensors[f"{name}/group-{i}"]), t) for i, t in enumerate(totals)]
                never_selected = tensors[f"{name}/never_selected"]
                counts[name] = Counts(_restored(tensors[key]), personal, never_selected, tuple(groups))
    except (KeyError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error!r}); restore it from a copy") from error
    return counts, total


def _stored(sums: Tensor) -> Tensor:
    """Correct predictions as int32; sums of errors stay float64."""
    return sums if sums.is_floating_point() else sums.int()


def _restored(sums: Tensor) -> Tensor:
    return sums if sums.is_floating_point() else sums.long()


def rounds_in(folder: Path, suffix: str = "") -> dict[Path, int]:
    """Files or folders that are named after a round, such as round-00040, in order; `suffix` is a pattern."""
    matches = {path: re.fullmatch(rf"round-(\d+){suffix}", path.name) for path in folder.glob("round-*")}
    rounds = {path: int(match[1]) for path, match in matches.items() if match}
    return dict(sorted(rounds.items(), key=lambda item: item[1]))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
