"""Methods that are submitted to the leaderboard: every other file of this folder is one.

A file NAME.py has `TITLE`, the name in the tables; `SETTINGS`, four settings, of which the best on validation data is
measured; and what they use. A setting is `{"use": "reproduction.submitted.NAME:function", …}`: the function is called
with `name` and the other keys, and returns a `Method`.
"""

import hashlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError

FOLDER = Path(__file__).parent
_TRIALS = 4  # as many as every other method has


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A submitted method."""

    name: str  # of its file, and in the names of its cases
    title: str
    settings: list[dict[str, Any]]
    code: str  # SHA-256 of its file: results of an older one are stale


def submissions() -> Iterator[Submission]:
    """All submitted methods, by name."""
    for path in sorted(FOLDER.glob("[!_]*.py")):
        module = importlib.import_module(f"{__name__}.{path.stem}")
        title, settings = getattr(module, "TITLE", None), getattr(module, "SETTINGS", None)
        if not isinstance(title, str) or not isinstance(settings, list) or len(settings) != _TRIALS:
            raise InputError(f"{path} needs TITLE, a name, and SETTINGS, a list of {_TRIALS} settings")
        code = hashlib.sha256(path.read_bytes()).hexdigest()
        yield Submission(name=path.stem, title=title, settings=settings, code=code)
