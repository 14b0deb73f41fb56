"""Run the cases of experiments in parallel, as tasks of a Ray cluster."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtilt.cluster.connection import connected
from fedtilt.cluster.tasks import OnProgress as OnTasks
from fedtilt.cluster.tasks import Task, check_shared, run_tasks
from fedtilt.data.published import catalog
from fedtilt.data.published.entry import data_folder
from fedtilt.executors.devices import pick_device
from fedtilt.locks import locked
from reproduction.case_run import CaseStatus, run_case
from reproduction.experiment import OnProgress, Options, load
from reproduction.kinds import kind_of
from reproduction.results_folder import ResultsFolder


def run_cases_on_cluster(
    statuses: Sequence[CaseStatus], folder: ResultsFolder, options: Options, cluster: str, on_tasks: OnTasks
) -> None:
    """Run cases on a cluster whose nodes share the results folder and the data folder.

    Args:
        statuses: the cases to run
        folder: where each writes its result and, while it runs, its checkpoints
        options: as on one machine
        cluster: auto, or host:port of the head node
        on_tasks: called about every second
    """
    folder = ResultsFolder(folder.folder.absolute())
    device = pick_device(options.device).type
    data_dir = str(data_folder(options.data_dir).absolute())
    in_task = replace(options, device=device, data_dir=data_dir)
    data = {catalog.find_folder(status.case.needs, data_dir) for status in statuses if status.case.needs}
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(connected(cluster))
        for name in dict.fromkeys(status.experiment.name for status in statuses):
            stack.enter_context(locked(folder.folder / name))
        check_shared(ray, folder.folder, sorted(path for path in data if path is not None))
        tasks = {status.label: _task(status, folder, in_task) for status in statuses}
        run_tasks(ray, tasks, gpu=device == "cuda", notice=options.notice, on_progress=on_tasks)


def _task(status: CaseStatus, folder: ResultsFolder, options: Options) -> Task:
    """What a node runs: a nested function travels by value, because this package is not installed there."""
    root, out, name, case = str(Path(__file__).parents[1]), str(folder.folder), status.experiment.name, status.case.name
    settings = {key: getattr(options, key) for key in ("seeds", "quick", "device", "data_dir", "checkpoint_seconds")}

    def run(report: OnProgress, notice: Callable[[str], None]) -> None:
        import sys

        if root not in sys.path:
            sys.path.append(root)
        from reproduction.cluster_cases import run_named_case

        run_named_case(name, case, out, settings, report, notice)

    return run


def run_named_case(
    name: str, case: str, out: str, settings: dict[str, Any], on_progress: OnProgress, notice: Callable[[str], None]
) -> None:
    """Run the case of this name of an experiment."""
    options = Options(**settings, notice=notice)
    experiment = load(name).quick_version() if options.quick else load(name)
    (found,) = [each for each in kind_of(experiment).cases(experiment, options) if each.name == case]
    run_case(CaseStatus(experiment=experiment, case=found, stored=None), ResultsFolder(Path(out)), options, on_progress)
