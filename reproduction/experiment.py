"""A table or figure of the paper as data: settings, published numbers, claims."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedtilt.errors import InputError
from fedtilt.report.published import published_tables

_DATA = Path(__file__).parent / "data"

NAMES = (
    "tuned", "tuning", "clean", "corruptions", "gaussian", "flips", "static", "static-tuning", "tilts", "outliers",
    "toy", "signs", "convergence", "propositions", "others", "rivals", "federations", "splits",
)  # fmt: skip

Results = dict[str, dict[str, Any]]  # by case name
OnProgress = Callable[[int, int, str], None]  # steps done, steps in total, the latest result in a few words


def no_notice(_: str) -> None:
    """No-op."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of the paper, or of ours, in our words, and how the results decide on it."""

    text: str
    key: str = ""  # selects the check, for kinds with one check per claim
    rule: str = ""  # selects the check, for kinds whose checks serve several claims
    check: Mapping[str, Any] = field(default_factory=dict)  # parameters of the check
    guess: str = ""  # why the claim may fail; contains no numbers, those come from the results
    unmeasured: str = ""  # why the claim cannot be checked
    ours: bool = False  # our claim, not the paper's


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of the paper, read from `data/NAME.toml`."""

    name: str
    title: str
    source: str  # the table or figure of the paper; empty if it is not in the paper
    kind: str  # the module of `reproduction.experiments` that runs and reports it
    reference: str = ""  # another experiment of the same kind, to compare with
    about: str = ""  # a paragraph for the page, Markdown
    settings: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    quick: Mapping[str, Any] = field(default_factory=dict)  # overrides `settings` in a quick run

    def quick_version(self) -> "Experiment":
        """The experiment with the settings of a quick run: minutes on two cores, results not to be cited."""
        claims = tuple(replace(claim, guess="") for claim in self.claims)
        return replace(self, settings=_merge(self.settings, self.quick), claims=claims)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run an experiment; only `seeds` and `quick` change what its cases are."""

    seeds: int | None = None  # None: the experiment's own number
    quick: bool = False  # kinds then receive `experiment.quick_version()`
    device: str = "auto"
    data_dir: str | None = None
    work: Path | None = None  # folder for the checkpoints of a long case
    checkpoint_seconds: float = 600.0  # a case that runs longer writes checkpoints, this far apart
    notice: Callable[[str], None] = no_notice  # receives warnings, one sentence each

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"seeds = {self.seeds} runs nothing; choose 1 or more")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A unit of work with a result file of its own."""

    name: str  # of its file: letters, digits, dashes and dots
    what: str  # a description for people
    settings: dict[str, Any]  # everything its result depends on, as JSON; a change makes a stored result stale
    needs: str | None = None  # the data set it reads from disk
    parts: tuple[str, ...] = ()  # required keys of its result; a result without one of them is damaged
    grid: str = ""  # the searched settings in one line, if there are many


def by_seed(results: Mapping[str, Mapping[str, Any]], name: str) -> dict[int, Mapping[str, Any]]:
    """Seed → the result of the case NAME-seed-SEED.

    >>> by_seed({"mnist-seed-10": {"a": 1}, "mnist-seed-9": {}, "mnist-far-seed-0": {}}, "mnist")
    {9: {}, 10: {'a': 1}}
    """
    pairs = ((case.rpartition("-seed-"), result) for case, result in results.items())
    return dict(sorted((int(seed), result) for (found, _, seed), result in pairs if found == name))


def load(name: str, *, quick: bool = False) -> Experiment:
    """The experiment of that name, or its quick version.

    >>> load("clean").kind
    'comparison'
    """
    if name not in NAMES:
        raise InputError(f"unknown experiment {name!r}; choose one of {', '.join(NAMES)}, or all")
    experiment = parse(name, (_DATA / f"{name}.toml").read_text("utf-8"))
    if experiment.kind == "comparison":
        tables = published_tables().get(experiment.settings["outliers"], {})
        experiment = replace(experiment, published={data: table["metrics"] for data, table in tables.items()})
    return experiment.quick_version() if quick else experiment


def parse(name: str, text: str) -> Experiment:
    """An experiment from TOML; unknown keys are errors."""
    values = tomllib.loads(text)
    _check_keys(name, values, Experiment, without=("name",))
    claims = []
    for claim in values.pop("claims", []):
        _check_keys(f"{name}.claims", claim, Claim)
        claims.append(Claim(**claim))
    experiment = Experiment(name=name, claims=tuple(claims), **values)
    unknown = sorted(set(experiment.quick) - set(experiment.settings))
    if unknown:
        raise InputError(f"{name}.quick.{unknown[0]} overrides nothing; settings has no such key")
    return experiment


def _check_keys(where: str, values: Mapping[str, Any], schema: type, without: tuple[str, ...] = ()) -> None:
    known = [f.name for f in fields(schema) if f.name not in without]
    for key in values:
        if key not in known:
            raise InputError(f"{where} has the unknown key {key!r}; known keys are {', '.join(known)}")


def _merge(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key, everything else is replaced."""
    merged = dict(base)
    for key, value in overrides.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
