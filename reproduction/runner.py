"""Run experiments case by case into a results folder; finished cases are not run again."""

import contextlib
import math
import multiprocessing
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from fedtilt.cluster.connection import connected
from fedtilt.cluster.tasks import OnProgress as OnTasks
from fedtilt.cluster.tasks import Task, check_shared, run_tasks
from fedtilt.data.published import catalog
from fedtilt.data.published.entry import data_folder
from fedtilt.devices import pick_device
from fedtilt.errors import InputError
from fedtilt.locks import locked
from fedtilt.storage.provenance import environment
from reproduction.chapter import Chapter
from reproduction.experiment import NAMES, Case, Experiment, OnProgress, Options, Results, load, no_notice
from reproduction.experiments import kind_of
from reproduction.results import CaseResult, ResultsFolder, stale_reason


@dataclass(frozen=True, kw_only=True)
class CaseStatus:
    """A case and its stored result."""

    experiment: Experiment
    case: Case
    stored: CaseResult | None
    stale: str | None = None  # why the stored result cannot be used
    missing_data: bool = False  # its data set is not on this machine

    @property
    def label(self) -> str:
        """NAME/CASE."""
        return f"{self.experiment.name}/{self.case.name}"

    @property
    def done(self) -> bool:
        """Whether the stored result can be used."""
        return self.stored is not None and self.stale is None


@dataclass(frozen=True, kw_only=True)
class ReproductionResult:
    """What `reproduce` ran, skipped and reports."""

    chapters: dict[str, Chapter]
    measured: list[str]  # cases run by this call, as NAME/CASE
    reused: list[str]  # cases whose stored result is used
    missing: dict[str, list[str]] = field(default_factory=dict)  # data set → cases that need it


def experiment_names(what: str) -> list[str]:
    """The experiments that the command's argument selects: one of them, or all.

    >>> experiment_names("clean")
    ['clean']
    """
    return list(NAMES) if what == "all" else [load(what).name]


def case_statuses(
    names: Sequence[str], folder: ResultsFolder, options: Options, only: Sequence[str] = ()
) -> list[CaseStatus]:
    """Every case of the experiments, in order; with `only`, those whose NAME/CASE contains one of the words."""
    statuses = []
    every_case: dict[str, Case] = {}
    for name in names:
        experiment, records = load(name, quick=options.quick), folder.records(name)
        for case in kind_of(experiment).cases(experiment, options):
            every_case[f"{name}/{case.name}"] = case
            if only and not any(_matches(word, f"{name}/{case.name}") for word in only):
                continue
            stored = records.get(case.name)
            if stored is not None and options.quick and not stored.quick:
                raise InputError(
                    f"{folder.path(name)} has a full result of {case.name}, which --quick would replace; choose "
                    "another --out"
                )
            statuses.append(
                CaseStatus(
                    experiment=experiment,
                    case=case,
                    stored=stored,
                    stale=None if stored is None else stale_reason(stored, case),
                    missing_data=not _available(case.needs, options.data_dir),
                )
            )
    if not statuses:
        raise InputError(f"no case matches {' or '.join(only)}; {_suggestion(only, every_case)}")
    return statuses


def _matches(word: str, label: str) -> bool:
    """Whether NAME/CASE contains a word, between boundaries; the name of a data set counts as one word."""
    for data in sorted(catalog.names(), key=len, reverse=True):
        label, word = (text.replace(data, data.replace("-", "_")) for text in (label, word))
    return re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", label) is not None


def _suggestion(words: Sequence[str], every_case: Mapping[str, Case]) -> str:
    """Similar names, or else how to list all."""
    known = list(dict.fromkeys([*(str(case.needs) for case in every_case.values() if case.needs), *every_case]))
    known += [label.partition("/")[2] for label in every_case]
    close = list(dict.fromkeys(match for word in words for match in get_close_matches(word, known, n=3)))
    if close:
        return f"similar: {', '.join(close)}"
    return f"--list shows all {len(every_case)}, from {next(iter(every_case))} to {list(every_case)[-1]}"


def _available(data: str | None, data_dir: str | None) -> bool:
    return data is None or not catalog.entry(data).files or catalog.find_folder(data, data_dir) is not None


def reproduce(
    what: str | Sequence[str],
    out: str | PathLike[str],
    *,
    options: Options | None = None,
    only: Sequence[str] = (),
    on_start: Callable[[Sequence[CaseStatus]], None] = lambda _: None,
    on_case: Callable[[CaseStatus], None] = lambda _: None,
    on_progress: OnProgress = lambda *_: None,
    cluster: str | None = None,
    on_tasks: OnTasks = lambda *_: None,
    workers: int = 1,
    minutes: float | None = None,
) -> ReproductionResult:
    """Run experiments and report their results; cases with a result in `out` are not run again.

    A case whose settings have changed is run again, with a notice. A case whose data set is missing is skipped and
    listed. After an interruption, the same call continues.

    Args:
        what: an experiment, several, or "all".
        out: the results folder.
        options: seeds, device, data folder and the like.
        only: run only cases whose NAME/CASE contains one of these words.
        on_start: called once, with all selected cases.
        on_case: called before a case is run.
        on_progress: called while a case runs: steps done, steps in total, the latest result in a few words.
        cluster: run the cases in parallel on a Ray cluster: auto, or host:port of its head node.
        on_tasks: called about every second while cases run on a cluster: what runs where, cases done, cases in total.
        workers: run the cases in this many processes with one thread each.
        minutes: with several workers, stop after this time; unfinished cases have no result.
    """
    options = options or Options()
    names = experiment_names(what) if isinstance(what, str) else [load(name).name for name in what]
    folder = ResultsFolder(Path(out))
    statuses = case_statuses(names, folder, options, only)
    on_start(statuses)
    missing: dict[str, list[str]] = {}
    to_run = []
    for status in statuses:
        if status.missing_data and not status.done:
            missing.setdefault(str(status.case.needs), []).append(status.label)
        elif not status.done:
            to_run.append(status)
    for problem in damaged_results(folder, names):
        options.notice(problem)
    for status in to_run:
        if status.stale:
            options.notice(f"{status.label} is run again: {status.stale}")
    measured = [status.label for status in to_run]
    if workers > 1 and to_run:
        measured = _run_in_processes(to_run, folder, options, workers, minutes, on_progress)
    elif cluster is not None and to_run:
        _run_on_cluster(to_run, folder, options, cluster, on_tasks)
    else:
        for status in to_run:
            on_case(status)
            with locked(folder.work(status.experiment.name)):
                _run_case(status.experiment, status.case, folder, options, on_progress)
    return ReproductionResult(
        chapters={name: read_chapter(folder, name, quick=quick_only(folder)) for name in names},
        measured=measured,
        reused=[status.label for status in statuses if status.done],
        missing=missing,
    )


def _run_case(
    experiment: Experiment, case: Case, folder: ResultsFolder, options: Options, on_progress: OnProgress
) -> None:
    """Run one case and append its record; its checkpoints are deleted then."""
    work = folder.work(experiment.name, case.name)
    start = time.monotonic()
    result = kind_of(experiment).measure(case, replace(options, work=work), on_progress)
    folder.append(
        experiment.name,
        CaseResult(
            case=case.name,
            what=case.what,
            quick=options.quick,
            seeds=options.seeds,
            settings=case.settings,
            environment=environment(options.device),
            seconds=round(time.monotonic() - start, 2),
            result=result,
        ),
    )
    shutil.rmtree(work, ignore_errors=True)


# -- in processes ------------------------------------------------------------------------------------------------------


def _run_in_processes(
    statuses: Sequence[CaseStatus], folder: ResultsFolder, options: Options, workers: int, minutes: float | None,
    on_progress: OnProgress,
) -> list[str]:  # fmt: skip
    """Run cases in parallel, in their order; the cases that are done. The first error is raised at the end."""
    settings = _for_workers(options)
    jobs = [(status.experiment.name, status.case.name, str(folder.folder), settings) for status in statuses]
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    done: list[str] = []
    errors: list[Exception] = []
    with contextlib.ExitStack() as stack:
        for name in dict.fromkeys(name for name, *_ in jobs):
            stack.enter_context(locked(folder.work(name)))
        # spawned: a forked process would inherit the threads' locks of torch
        pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(workers, torch.set_num_threads, (1,)))
        results = pool.imap_unordered(_run_job, jobs)
        while len(done) + len(errors) < len(jobs):
            try:
                label = results.next(None if minutes is None else max(0.0, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                options.notice(f"{minutes:g} minutes are over: {len(done)} of {len(jobs)} cases are done")
                break
            except Exception as error:  # of one case; the others continue
                errors.append(error)
                options.notice(f"a case failed: {error}")
                continue
            done.append(label)
            on_progress(len(done), len(jobs), label)
    if errors:
        raise errors[0]
    return done  # leaving the pool ends the processes of unfinished cases


def _run_job(job: tuple[str, str, str, dict[str, Any]]) -> str:
    name, case, out, settings = job
    run_named_case(name, case, out, settings, lambda *_: None, no_notice)
    return f"{name}/{case}"


def _for_workers(options: Options) -> dict[str, Any]:
    """The options of a case that runs in another process."""
    return {key: getattr(options, key) for key in ("seeds", "quick", "device", "data_dir", "checkpoint_seconds")}


# -- on a cluster ------------------------------------------------------------------------------------------------------


def _run_on_cluster(
    statuses: Sequence[CaseStatus], folder: ResultsFolder, options: Options, cluster: str, on_tasks: OnTasks
) -> None:
    """Run cases in parallel on a Ray cluster whose nodes share the results folder, the data folder and this code."""
    folder = ResultsFolder(folder.folder.absolute())
    device = pick_device(options.device).type
    data_dir = str(data_folder(options.data_dir).absolute())
    in_task = replace(options, device=device, data_dir=data_dir)
    data = {catalog.find_folder(status.case.needs, data_dir) for status in statuses if status.case.needs}
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(connected(cluster))
        for name in dict.fromkeys(status.experiment.name for status in statuses):
            stack.enter_context(locked(folder.work(name)))
        check_shared(ray, folder.folder, [*sorted(path for path in data if path is not None), Path(__file__).parent])
        tasks = {status.label: _task(status, folder, in_task) for status in statuses}
        run_tasks(ray, tasks, gpu=device == "cuda", notice=options.notice, on_progress=on_tasks)


def _task(status: CaseStatus, folder: ResultsFolder, options: Options) -> Task:
    """The work of a node: a nested function travels by value, because this package is not installed there."""
    root, out, name, case = str(Path(__file__).parents[1]), str(folder.folder), status.experiment.name, status.case.name
    settings = _for_workers(options)

    def run(report: OnProgress, notice: Callable[[str], None]) -> None:
        import sys

        if root not in sys.path:
            sys.path.append(root)
        from reproduction.runner import run_named_case

        run_named_case(name, case, out, settings, report, notice)

    return run


def run_named_case(
    name: str, case: str, out: str, settings: dict[str, Any], on_progress: OnProgress, notice: Callable[[str], None]
) -> None:
    """Run the case of this name of an experiment."""
    options = Options(**settings, notice=notice)
    experiment = load(name, quick=options.quick)
    (found,) = [each for each in kind_of(experiment).cases(experiment, options) if each.name == case]
    _run_case(experiment, found, ResultsFolder(Path(out)), options, on_progress)


# -- stored results ----------------------------------------------------------------------------------------------------


def read_chapter(folder: ResultsFolder, name: str, *, quick: bool) -> Chapter:
    """The chapter of an experiment, from the stored results that match today's settings."""
    experiment, results = load_results(folder, name, quick=quick)
    reference = [load_results(folder, experiment.reference, quick=quick)] if experiment.reference else []
    return kind_of(experiment).chapter(experiment, results, *reference)


def quick_only(folder: ResultsFolder) -> bool:
    """Whether all results in a folder are quick ones; next to a full result, quick ones are ignored."""
    stored = [record for name in NAMES for record in folder.records(name).values()]
    return bool(stored) and all(record.quick for record in stored)


def load_results(folder: ResultsFolder, name: str, *, quick: bool) -> tuple[Experiment, Results]:
    """An experiment, full or quick, and its stored results that match its settings."""
    experiment = load(name, quick=quick)
    pairs = _stored_cases(folder, experiment, quick)
    return experiment, {stored.case: stored.result for stored, case in pairs if stale_reason(stored, case) is None}


def damaged_results(folder: ResultsFolder, names: Sequence[str] = NAMES) -> list[str]:
    """One sentence, with the remedy, per record that is damaged or lacks a part."""
    quick, problems = quick_only(folder), []
    for name in names:
        reasons = folder.damage(name)
        for stored, case in _stored_cases(folder, load(name, quick=quick), quick):
            if any(part not in stored.result for part in case.parts):
                reasons.append(f"has {stored.case}, but {stale_reason(stored, case)}")
        command = f"python -m reproduction {name}{' --quick' * quick} --out {folder.folder}"
        problems += [f"{folder.path(name)} {reason}; {command} runs the case again" for reason in reasons]
    return problems


def _stored_cases(folder: ResultsFolder, experiment: Experiment, quick: bool) -> Iterator[tuple[CaseResult, Case]]:
    """The stored results of cases that the experiment still has."""
    cases_by_seeds: dict[int | None, dict[str, Case]] = {}
    for stored in folder.records(experiment.name).values():
        if stored.quick != quick:
            continue
        if stored.seeds not in cases_by_seeds:
            # device: results measured on a GPU are reported wherever the page is built
            options = Options(seeds=stored.seeds, quick=quick, device="cuda")
            cases_by_seeds[stored.seeds] = {c.name: c for c in kind_of(experiment).cases(experiment, options)}
        case = cases_by_seeds[stored.seeds].get(stored.case)
        if case is not None:
            yield stored, case
