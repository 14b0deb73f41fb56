"""Benchmarks, chaos, the reproduction and examples import nothing that is gone."""

import ast
import importlib
import sys
from pathlib import Path

import pytest

from benchmarks.processes import SCRIPTS

ROOT = Path(__file__).parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("benchmarks", "chaos", "reproduction")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.parent != SCRIPTS and path.stem != "__main__"
]
PROGRAMS = sorted(SCRIPTS.glob("run_*.py"))  # they train when they are imported, some in environments of their own
FILES = sorted({*SCRIPTS.glob("*.py"), *(ROOT / "examples").glob("*.py")} - set(PROGRAMS))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_can_be_imported(name: str) -> None:
    importlib.import_module(name)


@pytest.fixture
def import_from(monkeypatch: pytest.MonkeyPatch):
    """Import a module as a script of this folder does."""

    def load(folder: Path, name: str):
        neighbours = {file.stem for file in folder.glob("*.py")}
        for neighbour in neighbours:  # not one of the same name in another folder, nor later for other tests
            monkeypatch.delitem(sys.modules, neighbour, raising=False)
        monkeypatch.syspath_prepend(str(folder))
        try:
            return importlib.import_module(name)
        finally:
            for neighbour in neighbours:
                sys.modules.pop(neighbour, None)

    return load


def case(path: Path):
    slow = [pytest.mark.slow] if path.stem in ("lora", "language") else []  # tests/test_examples.py runs them
    return pytest.param(path, id=f"{path.parent.name}/{path.stem}", marks=slow)


@pytest.mark.parametrize("path", [case(path) for path in FILES])
def test_a_script_can_be_imported(path: Path, import_from) -> None:
    assert import_from(path.parent, path.stem).__doc__


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_imports_what_exists(path: Path, import_from) -> None:
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module in ("protocol", "torch_models") or "fedtilt" in str(node.module)]
    assert ours
    for node in ours:
        module = import_from(path.parent, node.module)
        assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
