"""Everything that a spec can name: methods, rules, steps, weightings, losses and attacks, with settings and papers.

It is read from the functions themselves: the first sentence of a docstring, and the paper that it cites.
"""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, NamedTuple

from fedtilt.attacks.attack import KINDS
from fedtilt.losses import LOSSES
from fedtilt.methods import COMPONENTS, PRESETS
from fedtilt.spec.method import preset_settings

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


def catalog() -> list[Entry]:
    """All entries, by kind.

    >>> next(entry.reference for entry in catalog() if entry.name == "scaffold").split(", ")[-1]
    'arXiv 1910.06378'
    """
    return [*_methods(), *_components(), *_losses(), *_attacks()]


def _methods() -> Iterable[Entry]:
    for name, preset in PRESETS.items():
        own = inspect.signature(preset).parameters
        settings = {
            key: None if p.default is p.empty else p.default for key, p in preset_settings(name).items() if key in own
        }
        yield Entry("methods", name, "methods.preset", *_described(preset, settings))


_HEADINGS = {
    "objective": "objectives", "personal": "personal models", "local": "local parts",
    "correction": "corrections of drift",
    "weighting": "weights of clients", "before": "steps before a rule", "aggregator": "server rules",
    "optimizer": "server optimisers", "training": "client updates",
}  # fmt: skip


def _components() -> Iterable[Entry]:
    for kind, heading in _HEADINGS.items():
        for name, cls in COMPONENTS[kind].items():
            settings = {field.name: field.default for field in fields(cls)}
            yield Entry(heading, name, f"methods.METHOD.{kind}", *_described(cls, settings))


def _losses() -> Iterable[Entry]:
    for name, loss in LOSSES.items():
        settings = {field.name: field.default for field in fields(loss)}
        yield Entry("losses", name, "train.loss", *_described(loss, settings))


def _attacks() -> Iterable[Entry]:
    for name, text in KINDS.items():
        paper = _paper(text)
        yield Entry("attacks", name, "attack.kind", _without_papers(text), {}, paper)


def _described(function: Callable[..., Any], settings: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    text = inspect.getdoc(function) or ""
    return _without_papers(text.split("\n")[0]).removesuffix("."), settings, _paper(text)


def _paper(text: str) -> str:
    found = _PAPER.search(" ".join(text.split()))
    return found[0] if found else ""


def _without_papers(text: str) -> str:
    return re.sub(r",? \([^()]*arXiv[^()]*\)|, as in \w+ \([^()]*\)", "", text)
