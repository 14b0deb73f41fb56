"""Run experiments case by case into a results folder; finished cases are not run again."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from os import PathLike
from pathlib import Path

from fedtilt.cluster.tasks import OnProgress as OnTasks
from fedtilt.data.published import catalog
from fedtilt.errors import InputError
from fedtilt.locks import locked
from reproduction.case_run import CaseStatus, run_case
from reproduction.chapter import Chapter
from reproduction.cluster_cases import run_cases_on_cluster
from reproduction.experiment import NAMES, Case, Experiment, OnProgress, Options, Results, load
from reproduction.kinds import kind_of
from reproduction.results_folder import CaseResult, DamagedResultError, ResultsFolder, stale_reason


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
        experiment = _load(name, quick=options.quick)
        for case in kind_of(experiment).cases(experiment, options):
            every_case[f"{name}/{case.name}"] = case
            if only and not any(_matches(word, f"{name}/{case.name}") for word in only):
                continue
            stored, damage = None, None
            try:
                stored = folder.read(name, case)
            except DamagedResultError as error:
                damage = str(error)
            if stored is not None and options.quick and not stored.quick:
                path = folder.path(name, case.name)
                raise InputError(f"{path} is a full result, which --quick would replace; choose another --out")
            statuses.append(
                CaseStatus(
                    experiment=experiment,
                    case=case,
                    stored=stored,
                    stale=damage if stored is None else stale_reason(stored, case),
                    missing_data=not _available(case.needs, options.data_dir),
                )
            )
    if not statuses:
        raise InputError(f"no case matches {' or '.join(only)}; {_suggestion(only, every_case)}")
    return statuses


def _load(name: str, *, quick: bool) -> Experiment:
    return load(name).quick_version() if quick else load(name)


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
    if cluster is not None and to_run:
        for status in to_run:
            _notice_stale(status, options)
        run_cases_on_cluster(to_run, folder, options, cluster, on_tasks)
    else:
        for status in to_run:
            on_case(status)
            _notice_stale(status, options)
            with locked(folder.folder / status.experiment.name):
                run_case(status, folder, options, on_progress)
    by_name = {experiment.name: chapter for experiment, chapter in chapters(folder, names)}
    return ReproductionResult(
        chapters=by_name,
        measured=[status.label for status in to_run],
        reused=[status.label for status in statuses if status.done],
        missing=missing,
    )


def _notice_stale(status: CaseStatus, options: Options) -> None:
    if status.stale:
        options.notice(f"{status.label} is run again: {status.stale}")


def chapters(folder: ResultsFolder, names: Sequence[str]) -> Iterator[tuple[Experiment, Chapter]]:
    """The chapter of every experiment, from the stored results that match today's settings."""
    quick = quick_only(folder)
    for name in names:
        experiment, results = load_results(folder, name, quick=quick)
        yield experiment, chapter_of(folder, experiment, results, quick=quick)


def chapter_of(folder: ResultsFolder, experiment: Experiment, results: Results, *, quick: bool) -> Chapter:
    """The chapter of an experiment, with its reference experiment if it has one."""
    reference = [load_results(folder, experiment.reference, quick=quick)] if experiment.reference else []
    return kind_of(experiment).chapter(experiment, results, *reference)


def quick_only(folder: ResultsFolder) -> bool:
    """Whether all results in a folder are quick ones; next to a full result, quick ones are ignored."""
    stored = [result for name in NAMES for result in folder.results(name)]
    return bool(stored) and all(result.quick for result in stored)


def load_results(folder: ResultsFolder, name: str, *, quick: bool) -> tuple[Experiment, Results]:
    """An experiment, full or quick, and its stored results that match its settings."""
    experiment = _load(name, quick=quick)
    pairs = _stored_cases(folder, experiment, quick)
    return experiment, {stored.case: stored.result for stored, case in pairs if stale_reason(stored, case) is None}


def damaged_results(folder: ResultsFolder) -> list[str]:
    """One sentence, with the remedy, per result file that is truncated or lacks a part."""
    quick = quick_only(folder)
    damage: dict[Path, tuple[str, str]] = {}
    for name in NAMES:
        damage.update({path: (name, reason) for path, reason in folder.damaged_files(name).items()})
        for stored, case in _stored_cases(folder, _load(name, quick=quick), quick):
            if any(part not in stored.result for part in case.parts):
                damage[folder.path(name, stored.case)] = name, str(stale_reason(stored, case))
    return [
        f"{path} cannot be read, {reason}; python -m reproduction {name}{' --quick' * quick} --out {folder.folder} "
        "runs it again"
        for path, (name, reason) in damage.items()
    ]


def _stored_cases(folder: ResultsFolder, experiment: Experiment, quick: bool) -> Iterator[tuple[CaseResult, Case]]:
    """The stored results of cases that the experiment still has."""
    cases_by_seeds: dict[int | None, dict[str, Case]] = {}
    for stored in folder.results(experiment.name):
        if stored.quick != quick:
            continue
        if stored.seeds not in cases_by_seeds:
            # device: results measured on a GPU are reported wherever the page is built
            options = Options(seeds=stored.seeds, quick=quick, device="cuda")
            cases_by_seeds[stored.seeds] = {c.name: c for c in kind_of(experiment).cases(experiment, options)}
        case = cases_by_seeds[stored.seeds].get(stored.case)
        if case is not None:
            yield stored, case
