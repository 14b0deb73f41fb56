"""Run the cases of experiments in parallel, as tasks of a Ray cluster."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fedtilt.cluster.connection import connected
from fedtilt.cluster.tasks import OnProgress as OnTasks
from fedtilt.cluster.tasks import check_shared, run_tasks
from fedtilt.data.published import catalog
from fedtilt.data.published.entry import data_folder
from fedtilt.executors.devices import pick_device
from fedtilt.locks import locked
from fedtilt.reproduction.case_run import CaseStatus, run_case
from fedtilt.reproduction.experiment import OnProgress, Options, no_notice
from fedtilt.reproduction.results_folder import ResultsFolder


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
    in_task = replace(options, device=device, data_dir=data_dir, notice=no_notice)
    data = {catalog.find_folder(status.case.needs, data_dir) for status in statuses if status.case.needs}
    with contextlib.ExitStack() as stack:
        ray = stack.enter_context(connected(cluster))
        for name in dict.fromkeys(status.experiment.name for status in statuses):
            stack.enter_context(locked(folder.folder / name))
        check_shared(ray, folder.folder, sorted(path for path in data if path is not None))
        tasks = {status.label: partial(_run_task, status, folder, in_task) for status in statuses}
        run_tasks(ray, tasks, gpu=device == "cuda", notice=options.notice, on_progress=on_tasks)


def _run_task(
    status: CaseStatus, folder: ResultsFolder, options: Options, report: OnProgress, notice: Callable[[str], None]
) -> None:
    run_case(status, folder, replace(options, notice=notice), report)
