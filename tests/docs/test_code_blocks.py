"""Every code block of the README and the guides runs."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.code_blocks import LANGUAGES, RUNNABLE, blocks_of, run_blocks

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FAST = ("data", "groups", "index", "randomness")  # run with `make test`; the others with `make test-all`


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.stem in FAST else pytest.mark.slow, id=page.stem) for page in PAGES],
)
def test_every_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # as in a clone
    try:
        run_blocks(blocks_of(page), page.name, tmp_path)
    finally:
        for project in tmp_path.glob("*/.fedtilt"):  # what a block that failed left running
            subprocess.run([sys.executable, "-m", "fedtilt", "deploy", "down", str(project.parent)], check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_has_a_language_and_data_is_valid(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{page.name}, line {block.line}: {block.language!r}"
        if block.language == "toml":
            tomllib.loads(block.code)
        elif block.language == "json":
            json.loads(block.code)
        elif block.language == "python":
            compile(block.code, f"{page.name}, line {block.line}", "exec")


def test_most_blocks_run() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page) if block.language in RUNNABLE]
    skipped = [block for block in blocks if block.skip]
    assert len(skipped) <= len(blocks) // 4, [block.skip for block in skipped]
