"""Everything that a spec can name: methods, rules, steps, weightings, losses and attacks, with settings and papers.

It is read from the functions themselves: the first sentence of a docstring, and the paper that it cites.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedtilt.attacks.attack import KINDS
from fedtilt.errors import InputError
from fedtilt.imports import import_user_module
from fedtilt.losses import LOSSES
from fedtilt.methods import COMPONENTS, PRESETS, Component

# "Li et al., Title, arXiv 1234.56789", or with the names of all authors; without arXiv it ends with the venue or year
_AUTHORS = r"(?:[A-Z]\. )?[A-Z][\w-]+(?:(?: \w+)? et al\.|(?:, [A-Z][\w-]+)+)"
_PAPER = re.compile(
    rf"{_AUTHORS},.*?(?:arXiv \d{{4}}\.\d{{4,5}}|, [A-Z]{{3,}} \d{{4}}(?=\.(?: |$)))"
    r"|(?:[A-Z]\. ){2}[A-Z]\w+, [^.]*\b\d{4}"
)


class Entry(NamedTuple):
    """One thing that a spec can name."""

    kind: str  # a heading of the catalogue
    name: str
    key: str  # the key of a spec that names it
    summary: str
    settings: dict[str, Any]  # those of its own, with their defaults; None: there is none
    reference: str  # the paper; empty: there is none


_HEADINGS = {
    "objective": "objectives", "personal": "personal models", "local": "local parts",
    "correction": "corrections of drift",
    "weighting": "weights of clients", "before": "steps before a rule", "aggregator": "server rules",
    "optimizer": "server optimisers", "training": "client updates",
}  # fmt: skip


def catalog() -> list[Entry]:
    """All entries, by kind.

    >>> next(entry.reference for entry in catalog() if entry.name == "scaffold").split(", ")[-1]
    'arXiv 1910.06378'
    """
    tables: list[tuple[str, str, Mapping[str, Callable[..., Any]]]] = [
        ("methods", "methods.preset", PRESETS),
        *((heading, f"methods.METHOD.{kind}", COMPONENTS[kind]) for kind, heading in _HEADINGS.items()),
        ("losses", "train.loss", LOSSES),
    ]
    described = [_described(kind, name, key, made) for kind, key, known in tables for name, made in known.items()]
    attacks = [
        Entry("attacks", name, "attack.kind", _without_papers(text), {}, _paper(text)) for name, text in KINDS.items()
    ]
    return described + attacks


def own_components(module: str) -> list[Entry]:
    """The components that a module of the user has, as a spec names them."""
    found = import_user_module(module, f"fedtilt methods {module}")
    classes = [c for c in vars(found).values() if isinstance(c, type) and issubclass(c, Component)]
    own = [cls for cls in classes if cls.__module__ == module]
    if not own:
        raise InputError(
            f"module {module!r} ({found.__file__}) has no component; expected subclasses of Objective, Aggregator, …"
        )
    return [_described(_HEADINGS[c.kind], f"{module}:{c.__name__}", f"methods.METHOD.{c.kind}", c) for c in own]


def _described(kind: str, name: str, key: str, made: Callable[..., Any]) -> Entry:
    """The entry of a preset, or of a class of settings."""
    text = inspect.getdoc(made) or ""
    settings = {
        setting: None if p.default is p.empty else p.default
        for setting, p in inspect.signature(made).parameters.items()
        if setting not in ("name", "origin") and p.kind is not p.VAR_KEYWORD
    }
    return Entry(kind, name, key, _without_papers(text.split("\n")[0]).removesuffix("."), settings, _paper(text))


def _paper(text: str) -> str:
    found = _PAPER.search(" ".join(text.split()))
    return found[0] if found else ""


def _without_papers(text: str) -> str:
    return re.sub(r",? \([^()]*arXiv[^()]*\)|, as in \w+ \([^()]*\)", "", text)
