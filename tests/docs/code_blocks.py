"""The code blocks of a Markdown page, and how they run.

All blocks of a page run in order: `python` blocks in one namespace, `sh` blocks in bash, both in one new
folder. Two kinds of comments, which readers do not see, help:

    <!-- skip: needs three machines -->     the next block does not run, for this reason
    <!-- hidden sh                          a block that readers do not see, such as one that writes a file that the
    …  -->                                  page takes for granted; or hidden python
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

RUNNABLE = ("python", "sh")
LANGUAGES = (*RUNNABLE, "toml", "json", "text", "{toctree}", "{eval-rst}", "{command-reference}", "{include}")
_SKIP = re.compile(r"<!-- skip: (.+?) -->\s*")
_HIDDEN = re.compile(r"<!-- hidden (\w+)\n(.*?)-->\s*", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code, the line of its page where it starts, and why it does not run, '' if it does."""

    language: str
    code: str
    line: int
    skip: str = ""


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page, hidden ones included, in order."""
    blocks: list[Block] = []
    skip = ""
    for token in MarkdownIt().parse(page.read_text()):
        line = 0 if token.map is None else token.map[0] + 1
        if token.type == "html_block" and (found := _SKIP.fullmatch(token.content)):
            skip = found[1]
        elif token.type == "html_block" and (found := _HIDDEN.fullmatch(token.content)):
            blocks.append(Block(found[1], found[2], line))
        elif token.type == "fence":
            blocks.append(Block(token.info.partition(" ")[0], token.content, line, skip))
            skip = ""
    return blocks


def run_blocks(blocks: list[Block], page: str, folder: Path) -> dict[str, Any]:
    """Run the blocks in a folder, which is the working folder; return the names that Python code has defined."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        if block.language not in RUNNABLE or block.skip:
            continue
        where = f"{page}, line {block.line}"
        if block.language == "python":
            exec(compile("\n" * block.line + block.code, where, "exec"), names)
            continue
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
        script = f"set -euo pipefail\n{block.code}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return names
