"""Flip one bit in one file of a run: what is read is unchanged, or a sentence names the file."""

import random
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

from chaos.report import Report
from chaos.small_run import METHOD, ROUNDS, write_spec
from fedtilt.errors import InputError

FLIPS = {"resume": 800, "report": 500, "export": 500, "check": 500}
_FLIPS = 10  # of one worker, at least: each trains a run first

Use = Callable[[Path, list[str]], object]  # a run folder and a list for notices → what was read or made


def run(folder: Path, scale: float, jobs: int) -> Report:
    """Flip bits in files of a finished run, for a resume of a run whose last round is missing."""
    import torch

    from chaos.fuzz.runner import fuzz

    torch.set_num_threads(1)
    report = Report("bit flips")
    for name, flips in FLIPS.items():
        number = max(1, round(flips * scale))
        workers = min(jobs, -(-number // _FLIPS))
        fuzz(name, partial(_flips, name=name), number, folder, report, workers)
    report.figures = {"flips": report.figures["inputs"], "refused": report.figures["refused"]}
    return report


def _flips(folder: Path, name: str) -> Callable[[random.Random], object]:
    from fedtilt.runs.spec_run import run_spec
    from fedtilt.spec import load

    original, run = folder / "original", folder / "run"
    run_spec(load(write_spec(folder)), original)
    if name == "resume":
        (original / "results.json").unlink()
        shutil.rmtree(original / "seed-0" / "checkpoints" / f"round-{ROUNDS:05d}")
    files = sorted(path.relative_to(original) for path in original.rglob("*") if path.is_file() and path.stat().st_size)
    sizes = [(original / path).stat().st_size for path in files]
    use = _USES[name]
    shutil.copytree(original, run)
    expected = use(run, []) if name != "check" else None  # it finds every flip

    def flip(rng: random.Random) -> None:
        shutil.rmtree(run)
        shutil.copytree(original, run)
        path = run / rng.choices(files, sizes)[0] if rng.random() < 0.5 else run / rng.choice(files)
        content = bytearray(path.read_bytes())
        at = rng.randrange(len(content))
        content[at] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(content))
        notes: list[str] = []
        where = f"byte {at} of {path.relative_to(run)}"
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                result = use(run, notes)
        except InputError as error:
            if path.name in str(error):
                raise
            raise AssertionError(f"{where} is damaged, and the error does not name it: {error}") from error
        notes += [str(warning.message) for warning in warned]
        is_named = any(path.name in note for note in notes)
        assert result == expected or is_named, f"{where} is damaged, and nothing says so"

    return flip


def _export(run: Path, notes: list[str]) -> object:
    from fedtilt.runs.export import export_model

    exports = [export_model(run, METHOD, client) for client in (None, "1", "2")]
    return [({n: t.numpy().tobytes() for n, t in e.tensors.items()}, e.metadata) for e in exports]


def _report(run: Path, notes: list[str]) -> object:
    from fedtilt.report import write

    return Path(write([run], run.parent / "page.html")).read_bytes()


def _resume(run: Path, notes: list[str]) -> object:
    from fedtilt.runs.spec_run import resume
    from tests.helpers.callbacks import Calls

    resume(run, callbacks=[calls := Calls()])
    notes += calls.notices
    return _export(run, notes), (run / "seed-0" / "metrics.jsonl").read_bytes()


def _check(run: Path, notes: list[str]) -> object:
    from fedtilt.storage.integrity import check_run

    notes += [sentence for part in check_run(run) for sentence in part.damaged]
    return "intact"


_USES: dict[str, Use] = {"resume": _resume, "report": _report, "export": _export, "check": _check}
