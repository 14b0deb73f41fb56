"""Run experiments cell by cell into a results folder: what is finished is not run again."""

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from fedtilt.data import catalog
from fedtilt.errors import InputError
from fedtilt.locks import locked
from fedtilt.reproduction import outliers, propositions
from fedtilt.reproduction.chapter import Chapter
from fedtilt.reproduction.comparison import experiment as comparison
from fedtilt.reproduction.convergence import experiment as convergence
from fedtilt.reproduction.experiment import NAMES, Cell, Experiment, OnProgress, Options, Results, load
from fedtilt.reproduction.results_folder import Book, DamagedError, Entry, stale
from fedtilt.reproduction.signs import experiment as signs
from fedtilt.reproduction.sweep import experiment as sweep
from fedtilt.reproduction.toy import experiment as toy
from fedtilt.storage.provenance import environment


class Kind(Protocol):
    """What a module must have to be the kind of an experiment."""

    def cells(self, experiment: Experiment, options: Options) -> list[Cell]:
        """The units of work."""

    def measure(self, cell: Cell, options: Options, on_progress: OnProgress) -> dict[str, Any]:
        """The JSON result of one."""

    def chapter(self, experiment: Experiment, results: Results, *beside: tuple[Experiment, Results]) -> Chapter:
        """What the results, perhaps not all of them, have to say; with another experiment `beside` it, if any."""


KINDS: dict[str, ModuleType] = {
    "comparison": comparison,
    "convergence": convergence,
    "outliers": outliers,
    "propositions": propositions,
    "signs": signs,
    "sweep": sweep,
    "toy": toy,
}


def kind_of(experiment: Experiment) -> Kind:
    """The module that measures and tells an experiment."""
    return cast(Kind, KINDS[experiment.kind])


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell, and what lies in the folder under its name."""

    experiment: Experiment
    cell: Cell
    entry: Entry | None
    changed: str | None = None  # why the entry cannot be taken, in words
    missing: bool = False  # its data set is not here

    @property
    def done(self) -> bool:
        """Whether the stored result is the one wanted."""
        return self.entry is not None and self.changed is None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a reproduction came to."""

    chapters: dict[str, Chapter]
    measured: list[str]  # cells that were run now, as NAME/CELL
    kept: list[str]  # cells that lay there
    missing: dict[str, list[str]] = field(default_factory=dict)  # data set → cells that wait for it


def chosen(what: str) -> list[str]:
    """The experiments that a word stands for.

    >>> chosen("clean")
    ['clean']
    """
    return list(NAMES) if what == "all" else [load(what).name]


def plan(names: Sequence[str], book: Book, options: Options, only: Sequence[str] = ()) -> list[Job]:
    """Every cell of the experiments, in order; with `only`, those whose NAME/CELL has one of the words."""
    jobs = []
    labels: dict[str, Cell] = {}
    for name in names:
        experiment = load(name).quickened() if options.quick else load(name)
        for cell in kind_of(experiment).cells(experiment, options):
            labels[f"{name}/{cell.name}"] = cell
            if only and not any(_named(word, name, cell) for word in only):
                continue
            entry, damage = None, None
            try:
                entry = book.find(name, cell)
            except DamagedError as error:
                damage = str(error)
            if entry is not None and options.quick and not entry.quick:
                raise InputError(
                    f"{book.path(name, cell.name)} is a full result, which --quick would replace; choose another --out"
                )
            jobs.append(
                Job(
                    experiment=experiment,
                    cell=cell,
                    entry=entry,
                    changed=damage if entry is None else stale(entry, cell),
                    missing=not _available(cell.needs, options.data_dir),
                )
            )
    if not jobs:
        raise InputError(f"no cell is named like {' or '.join(only)}; {_possible(only, labels)}")
    return jobs


def _named(word: str, experiment: str, cell: Cell) -> bool:
    """Whether NAME/CELL has a word, from the border of one of its parts to another; a data set's name is one part."""
    label, looked_for = f"{experiment}/{cell.name}", word
    for data in sorted(catalog.names(), key=len, reverse=True):
        label, looked_for = (text.replace(data, data.replace("-", "_")) for text in (label, looked_for))
    return re.search(rf"(?<![\w.]){re.escape(looked_for)}(?![\w.])", label) is not None


def _possible(words: Sequence[str], labels: Mapping[str, Cell]) -> str:
    """What could have been meant: names that are close, or else what there is to choose from."""
    known = list(dict.fromkeys([*(str(cell.needs) for cell in labels.values() if cell.needs), *labels]))
    known += [label.partition("/")[2] for label in labels]
    close = list(dict.fromkeys(found for word in words for found in get_close_matches(word, known, n=3)))
    if close:
        return f"near to it: {', '.join(close)}"
    return f"--list shows all {len(labels)}, from {next(iter(labels))} to {list(labels)[-1]}"


def _available(data: str | None, folder: str | None) -> bool:
    return data is None or not catalog.entry(data).files or catalog.where(data, folder) is not None


def reproduce(
    what: str | Sequence[str],
    out: str | PathLike[str],
    *,
    options: Options | None = None,
    only: Sequence[str] = (),
    on_plan: Callable[[Sequence[Job]], None] = lambda _: None,
    on_cell: Callable[[Job], None] = lambda _: None,
    on_progress: OnProgress = lambda *_: None,
) -> Outcome:
    """Run an experiment (or `all`, or several) and tell what was found; cells that lie in `out` are not run again.

    A cell whose settings have changed since is run again, with a notice. A cell whose data set is not here is left
    out and listed. Interrupted at any moment, the same call goes on.
    """
    options = options or Options()
    names = chosen(what) if isinstance(what, str) else [load(name).name for name in what]
    book = Book(Path(out))
    jobs = plan(names, book, options, only)
    on_plan(jobs)
    measured, kept = [], []
    missing: dict[str, list[str]] = {}
    for job in jobs:
        label = f"{job.experiment.name}/{job.cell.name}"
        if job.done:
            kept.append(label)
        elif job.missing:
            missing.setdefault(str(job.cell.needs), []).append(label)
        else:
            on_cell(job)
            if job.changed:
                options.notice(f"{label} is run again: {job.changed}")
            with locked(book.folder / job.experiment.name):
                _run(job, book, options, on_progress)
            measured.append(label)
    chapters = {experiment.name: told for experiment, told in tell(book, names)}
    return Outcome(chapters=chapters, measured=measured, kept=kept, missing=missing)


def _run(job: Job, book: Book, options: Options, on_progress: OnProgress) -> None:
    name, work = job.experiment.name, book.work(job.experiment.name, job.cell.name)
    begun = time.monotonic()
    result = kind_of(job.experiment).measure(job.cell, replace(options, work=work), on_progress)
    entry = Entry(
        cell=job.cell.name,
        what=job.cell.what,
        quick=options.quick,
        seeds=options.seeds,
        settings=job.cell.settings,
        environment=environment(options.device),
        seconds=round(time.monotonic() - begun, 2),
        result=result,
    )
    book.write(name, entry)
    if work.exists():
        shutil.rmtree(work)
        with contextlib.suppress(OSError):  # another cell may be unfinished
            work.parent.rmdir()


def tell(book: Book, names: Sequence[str]) -> Iterator[tuple[Experiment, Chapter]]:
    """The chapter of every experiment, from what lies in the folder and was made with today's settings."""
    quick = quick_only(book)
    for name in names:
        experiment, results = readable(book, name, quick=quick)
        yield experiment, written(book, experiment, results, quick=quick)


def written(book: Book, experiment: Experiment, results: Results, *, quick: bool) -> Chapter:
    """The chapter of an experiment, with what it is held against."""
    beside = [readable(book, experiment.beside, quick=quick)] if experiment.beside else []
    return kind_of(experiment).chapter(experiment, results, *beside)


def quick_only(book: Book) -> bool:
    """Whether all that lies in a folder is quick looks; beside a full result, those do not count."""
    entries = [entry for name in NAMES for entry in book.entries(name)]
    return bool(entries) and all(entry.quick for entry in entries)


def readable(book: Book, name: str, *, quick: bool) -> tuple[Experiment, Results]:
    """An experiment, full or as a quick look, and the stored results that were made with its settings."""
    experiment = load(name).quickened() if quick else load(name)
    return experiment, {
        entry.cell: entry.result for entry, cell in _known(book, experiment, quick) if stale(entry, cell) is None
    }


def damaged(book: Book) -> list[str]:
    """A sentence, with its remedy, on every result of the folder that is cut short or lacks a part."""
    quick, found = quick_only(book), {}
    for name in NAMES:
        experiment = load(name).quickened() if quick else load(name)
        found.update({path: (name, why) for path, why in book.damaged(name).items()})
        for entry, cell in _known(book, experiment, quick):
            if any(part not in entry.result for part in cell.parts):
                found[book.path(name, entry.cell)] = name, str(stale(entry, cell))
    return [
        f"{path} cannot be told of, {why}; fedtilt reproduce {name}{' --quick' * quick} --out {book.folder} runs it "
        "again"
        for path, (name, why) in found.items()
    ]


def _known(book: Book, experiment: Experiment, quick: bool) -> Iterator[tuple[Entry, Cell]]:
    """What lies in the folder of cells that the experiment has today."""
    wanted: dict[int | None, dict[str, Cell]] = {}
    for entry in book.entries(experiment.name):
        if entry.quick != quick:
            continue
        if entry.seeds not in wanted:
            # device: what a GPU measured is told wherever the page is made
            options = Options(seeds=entry.seeds, quick=quick, device="cuda")
            every = kind_of(experiment).cells(experiment, options)
            wanted[entry.seeds] = {cell.name: cell for cell in every}
        cell = wanted[entry.seeds].get(entry.cell)
        if cell is not None:
            yield entry, cell
