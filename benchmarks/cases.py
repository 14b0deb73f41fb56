"""Measure many cases on several processes, and continue where an earlier call stopped."""

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from benchmarks.markdown import machine_text
from benchmarks.measure import available_cores, provenance, write_result
from benchmarks.options import make_result_parser

Case = dict[str, Any]


def make_case_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark of cases; the cases that --out has are not measured again."""
    parser = make_result_parser(description)
    parser.add_argument("--jobs", type=int, help=f"processes at once (default: one per core, {available_cores()})")
    return parser


def run_cases(
    kind: str, cases: Sequence[Case], measure: Callable[[Case], Case], header: Mapping[str, Any], jobs: int | None,
    path: Path, device: str = "cpu",
) -> Iterator[Case]:  # fmt: skip
    """Measure the cases that the file lacks; yields each when it is measured and written.

    A case in the file has where and when it was measured, "measured": those of a file may be of several calls.

    Args:
        kind: of the result
        cases: what distinguishes the cases, as JSON values
        measure: a function of a module, which returns a case with its results
        header: settings that all cases share; a file with others is an error
        jobs: processes at once; None: one per core, but none for a single case
        path: the file of the result
        device: what the cases run on, for the description of the machine
    """
    measured: list[Case] = []
    if path.exists():
        before = json.loads(path.read_text())
        if any(before.get(key) != json.loads(json.dumps(value)) for key, value in header.items()):
            raise SystemExit(f"{path} has other settings than this benchmark; move it away")
        measured = before["cases"]
    missing = [case for case in cases if not any(_is(case, other) for other in measured)]
    print(f"{len(cases) - len(missing)} of {len(cases)} cases are in {path}", flush=True)
    for case in _results(measure, missing, jobs):
        measured.append({**case, "measured": machine_text(provenance(device))})
        ordered = sorted(measured, key=lambda m: _position(m, cases))
        write_result(kind, {**header, "cases": ordered}, device=device, out=path)
        yield case


def _results(measure: Callable[[Case], Case], cases: Sequence[Case], jobs: int | None) -> Iterator[Case]:
    jobs = jobs or min(available_cores(), max(1, len(cases)))
    if jobs == 1:
        yield from map(measure, cases)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for future in as_completed([pool.submit(measure, case) for case in cases]):
            yield future.result()


def _position(measured: Case, cases: Sequence[Case]) -> int:
    """Where this case is among those of this call; cases of earlier calls come first."""
    return next((n for n, case in enumerate(cases) if _is(case, measured)), -1)


def _is(case: Case, measured: Case) -> bool:
    return all(measured.get(key) == value for key, value in case.items())
