"""Run experiments case by case into a results folder: what is finished is not run again."""

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
from fedtilt.reproduction.experiment import NAMES, Case, Experiment, OnProgress, Options, Results, load
from fedtilt.reproduction.results_folder import CaseResult, DamagedError, ResultsFolder, stale
from fedtilt.reproduction.signs import experiment as signs
from fedtilt.reproduction.sweep import experiment as sweep
from fedtilt.reproduction.toy import experiment as toy
from fedtilt.storage.provenance import environment


class Kind(Protocol):
    """What a module must have to be the kind of an experiment."""

    def cases(self, experiment: Experiment, options: Options) -> list[Case]:
        """The units of work."""

    def measure(self, case: Case, options: Options, on_progress: OnProgress) -> dict[str, Any]:
        """The JSON result of one."""

    def chapter(self, experiment: Experiment, results: Results, *reference: tuple[Experiment, Results]) -> Chapter:
        """What the results, perhaps not all of them, have to say; with another experiment `reference` it, if any."""


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
class CaseStatus:
    """A case, and what lies in the folder under its name."""

    experiment: Experiment
    case: Case
    entry: CaseResult | None
    changed: str | None = None  # why the entry cannot be taken, in words
    missing: bool = False  # its data set is not here

    @property
    def done(self) -> bool:
        """Whether the stored result is the one wanted."""
        return self.entry is not None and self.changed is None


@dataclass(frozen=True, kw_only=True)
class ReproductionResult:
    """What a reproduction came to."""

    chapters: dict[str, Chapter]
    measured: list[str]  # cases that were run now, as NAME/CASE
    kept: list[str]  # cases that lay there
    missing: dict[str, list[str]] = field(default_factory=dict)  # data set → cases that wait for it


def chosen(what: str) -> list[str]:
    """The experiments that a word stands for.

    >>> chosen("clean")
    ['clean']
    """
    return list(NAMES) if what == "all" else [load(what).name]


def case_statuses(
    names: Sequence[str], book: ResultsFolder, options: Options, only: Sequence[str] = ()
) -> list[CaseStatus]:
    """Every case of the experiments, in order; with `only`, those whose NAME/CASE has one of the words."""
    jobs = []
    labels: dict[str, Case] = {}
    for name in names:
        experiment = load(name).quickened() if options.quick else load(name)
        for case in kind_of(experiment).cases(experiment, options):
            labels[f"{name}/{case.name}"] = case
            if only and not any(_named(word, name, case) for word in only):
                continue
            entry, damage = None, None
            try:
                entry = book.find(name, case)
            except DamagedError as error:
                damage = str(error)
            if entry is not None and options.quick and not entry.quick:
                raise InputError(
                    f"{book.path(name, case.name)} is a full result, which --quick would replace; choose another --out"
                )
            jobs.append(
                CaseStatus(
                    experiment=experiment,
                    case=case,
                    entry=entry,
                    changed=damage if entry is None else stale(entry, case),
                    missing=not _available(case.needs, options.data_dir),
                )
            )
    if not jobs:
        raise InputError(f"no case is named like {' or '.join(only)}; {_possible(only, labels)}")
    return jobs


def _named(word: str, experiment: str, case: Case) -> bool:
    """Whether NAME/CASE has a word, from the border of one of its parts to another; a data set's name is one part."""
    label, looked_for = f"{experiment}/{case.name}", word
    for data in sorted(catalog.names(), key=len, reverse=True):
        label, looked_for = (text.replace(data, data.replace("-", "_")) for text in (label, looked_for))
    return re.search(rf"(?<![\w.]){re.escape(looked_for)}(?![\w.])", label) is not None


def _possible(words: Sequence[str], labels: Mapping[str, Case]) -> str:
    """What could have been meant: names that are close, or else what there is to choose from."""
    known = list(dict.fromkeys([*(str(case.needs) for case in labels.values() if case.needs), *labels]))
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
    on_plan: Callable[[Sequence[CaseStatus]], None] = lambda _: None,
    on_case: Callable[[CaseStatus], None] = lambda _: None,
    on_progress: OnProgress = lambda *_: None,
) -> ReproductionResult:
    """Run an experiment (or `all`, or several) and tell what was found; cases that lie in `out` are not run again.

    A case whose settings have changed since is run again, with a notice. A case whose data set is not here is left
    out and listed. Interrupted at any moment, the same call goes on.
    """
    options = options or Options()
    names = chosen(what) if isinstance(what, str) else [load(name).name for name in what]
    book = ResultsFolder(Path(out))
    jobs = case_statuses(names, book, options, only)
    on_plan(jobs)
    measured, kept = [], []
    missing: dict[str, list[str]] = {}
    for job in jobs:
        label = f"{job.experiment.name}/{job.case.name}"
        if job.done:
            kept.append(label)
        elif job.missing:
            missing.setdefault(str(job.case.needs), []).append(label)
        else:
            on_case(job)
            if job.changed:
                options.notice(f"{label} is run again: {job.changed}")
            with locked(book.folder / job.experiment.name):
                _run(job, book, options, on_progress)
            measured.append(label)
    by_name = {experiment.name: chapter for experiment, chapter in chapters(book, names)}
    return ReproductionResult(chapters=by_name, measured=measured, kept=kept, missing=missing)


def _run(job: CaseStatus, book: ResultsFolder, options: Options, on_progress: OnProgress) -> None:
    name, work = job.experiment.name, book.work(job.experiment.name, job.case.name)
    begun = time.monotonic()
    result = kind_of(job.experiment).measure(job.case, replace(options, work=work), on_progress)
    entry = CaseResult(
        case=job.case.name,
        what=job.case.what,
        quick=options.quick,
        seeds=options.seeds,
        settings=job.case.settings,
        environment=environment(options.device),
        seconds=round(time.monotonic() - begun, 2),
        result=result,
    )
    book.write(name, entry)
    if work.exists():
        shutil.rmtree(work)
        with contextlib.suppress(OSError):  # another case may be unfinished
            work.parent.rmdir()


def chapters(book: ResultsFolder, names: Sequence[str]) -> Iterator[tuple[Experiment, Chapter]]:
    """The chapter of every experiment, from what lies in the folder and was made with today's settings."""
    quick = quick_only(book)
    for name in names:
        experiment, results = readable(book, name, quick=quick)
        yield experiment, chapter_of(book, experiment, results, quick=quick)


def chapter_of(book: ResultsFolder, experiment: Experiment, results: Results, *, quick: bool) -> Chapter:
    """The chapter of an experiment, with what it is held against."""
    reference = [readable(book, experiment.reference, quick=quick)] if experiment.reference else []
    return kind_of(experiment).chapter(experiment, results, *reference)


def quick_only(book: ResultsFolder) -> bool:
    """Whether all that lies in a folder is quick looks; beside a full result, those do not count."""
    entries = [entry for name in NAMES for entry in book.entries(name)]
    return bool(entries) and all(entry.quick for entry in entries)


def readable(book: ResultsFolder, name: str, *, quick: bool) -> tuple[Experiment, Results]:
    """An experiment, full or as a quick look, and the stored results that were made with its settings."""
    experiment = load(name).quickened() if quick else load(name)
    return experiment, {
        entry.case: entry.result for entry, case in _known(book, experiment, quick) if stale(entry, case) is None
    }


def damaged(book: ResultsFolder) -> list[str]:
    """A sentence, with its remedy, on every result of the folder that is cut short or lacks a part."""
    quick, found = quick_only(book), {}
    for name in NAMES:
        experiment = load(name).quickened() if quick else load(name)
        found.update({path: (name, why) for path, why in book.damaged(name).items()})
        for entry, case in _known(book, experiment, quick):
            if any(part not in entry.result for part in case.parts):
                found[book.path(name, entry.case)] = name, str(stale(entry, case))
    return [
        f"{path} cannot be told of, {why}; fedtilt reproduce {name}{' --quick' * quick} --out {book.folder} runs it "
        "again"
        for path, (name, why) in found.items()
    ]


def _known(book: ResultsFolder, experiment: Experiment, quick: bool) -> Iterator[tuple[CaseResult, Case]]:
    """What lies in the folder of cases that the experiment has today."""
    wanted: dict[int | None, dict[str, Case]] = {}
    for entry in book.entries(experiment.name):
        if entry.quick != quick:
            continue
        if entry.seeds not in wanted:
            # device: what a GPU measured is told wherever the page is made
            options = Options(seeds=entry.seeds, quick=quick, device="cuda")
            every = kind_of(experiment).cases(experiment, options)
            wanted[entry.seeds] = {case.name: case for case in every}
        case = wanted[entry.seeds].get(entry.case)
        if case is not None:
            yield entry, case
