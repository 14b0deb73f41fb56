"""The options that every benchmark has, where its result goes, and one line where it cannot run."""

import argparse
import contextlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from benchmarks.measure import RESULTS, write_result


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with --quick, which every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same with tiny sizes, to see that it works: seconds")
    return parser


def make_result_parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark that writes a result."""
    parser = make_parser(description)
    parser.add_argument("--out", type=Path, help="the JSON file (default: in bench-results/; with --quick, none)")
    return parser


@contextlib.contextmanager
def result_file(options: argparse.Namespace, kind: str) -> Iterator[Path]:
    """The file of the result; with --quick and without --out, one that is removed again."""
    with tempfile.TemporaryDirectory() as folder:
        yield options.out or (Path(folder) if options.quick else RESULTS) / f"{kind}.json"


def save_result(options: argparse.Namespace, kind: str, result: Mapping[str, Any], device: str = "cpu") -> None:
    """Write a result; with --quick, only to --out, and as one that no page records."""
    if options.out or not options.quick:
        write_result("quick" if options.quick else kind, result, device=device, out=options.out)


def require_cuda(what: str) -> None:
    """Stop with one line where there is no GPU."""
    if not torch.cuda.is_available():
        _stop(f"{what} needs a CUDA device, and this machine has none")


def require_package(name: str, command: str) -> None:
    """Stop with one line where a package is missing that only this benchmark needs."""
    if importlib.util.find_spec(name) is None:
        _stop(f"this benchmark needs {name}, which is not installed; {command}")


def _stop(reason: str) -> NoReturn:
    print(reason, file=sys.stderr)
    raise SystemExit(2)
