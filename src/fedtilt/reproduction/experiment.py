"""A table or figure of the paper as data: what to run, what was published, what was claimed."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError

NAMES = (
    "clean", "corruptions", "gaussian", "flips", "tilts", "outliers", "toy", "signs", "convergence", "propositions",
)  # fmt: skip

Results = dict[str, dict[str, Any]]  # by case name
OnProgress = Callable[[int, int, str], None]  # done, of how many, what is seen so far


def _silent(*_: object) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What the paper says, or we do, in our words, and how numbers decide on it."""

    text: str
    key: str = ""  # by which a kind finds it
    rule: str = ""  # the name of the rule that decides; none: the kind knows, or nothing can be measured
    check: Mapping[str, Any] = field(default_factory=dict)  # what the rule is to look at
    guess: str = ""  # why it may not hold: no numbers, no outcomes, those come from the results at hand
    unmeasured: str = ""  # why no rule decides
    ours: bool = False  # the paper does not say it


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of the paper, as `data/NAME.toml` tells it."""

    name: str
    title: str
    source: str  # which table or figure of the paper; empty where it has none
    kind: str  # the module of this package that measures and tells it
    reference: str = ""  # another experiment of its kind, whose results its rules look at as well
    about: str = ""  # a paragraph for the page, Markdown
    settings: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    quick: Mapping[str, Any] = field(default_factory=dict)  # settings of a quick look, over the others

    def quickened(self) -> "Experiment":
        """The same with the settings of a quick look: minutes on two cores, and no result to cite or to guess about."""
        claims = tuple(replace(claim, guess="") for claim in self.claims)
        return replace(self, settings=_merged(self.settings, self.quick), claims=claims)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the one who asks wants it run; none of it but `seeds` and `quick` changes what a case is."""

    seeds: int | None = None  # None: as many as the experiment says
    quick: bool = False  # the experiment handed to a kind is then already quickened
    device: str = "auto"
    data_dir: str | None = None
    work: Path | None = None  # where a long case may keep checkpoints while it is measured
    checkpoint_seconds: float = 600.0
    notice: Callable[[str], None] = _silent

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"seeds = {self.seeds} leaves nothing to run; choose 1 or more")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One unit of work: measured in one go, kept in one file."""

    name: str  # of its file: letters, digits, dashes and dots
    what: str  # for people
    settings: dict[str, Any]  # all that decides its result, as JSON; a change makes a stored result stale
    needs: str | None = None  # the data set that has to be there
    parts: tuple[str, ...] = ()  # what its result has at least; one that lacks any is damaged
    grid: str = ""  # the settings it goes through, where there are many, in one line


def load(name: str) -> Experiment:
    """The experiment of that name.

    >>> load("clean").kind
    'comparison'
    """
    if name not in NAMES:
        raise InputError(f"unknown experiment {name!r}; choose one of {', '.join(NAMES)}, or all")
    text = (resources.files("fedtilt.reproduction") / "data" / f"{name}.toml").read_text("utf-8")
    return parse(name, text)


def parse(name: str, text: str) -> Experiment:
    """An experiment from TOML; a key that is not known is refused."""
    values = tomllib.loads(text)
    _check(name, values, Experiment, without=("name",))
    claims = []
    for claim in values.pop("claims", []):
        _check(f"{name}.claims", claim, Claim)
        claims.append(Claim(**claim))
    experiment = Experiment(name=name, claims=tuple(claims), **values)
    unknown = sorted(set(experiment.quick) - set(experiment.settings))
    if unknown:
        raise InputError(f"{name}.quick.{unknown[0]} overrides nothing: settings has no such key")
    return experiment


def _check(where: str, values: Mapping[str, Any], kind: type, without: tuple[str, ...] = ()) -> None:
    known = [f.name for f in fields(kind) if f.name not in without]
    for key in values:
        if key not in known:
            raise InputError(f"{where} has the unknown key {key!r}; known are {', '.join(known)}")


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key, everything else is replaced."""
    out = dict(below)
    for key, value in above.items():
        old = out.get(key)
        out[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return out
