"""Independent work as tasks of a Ray cluster: seeds, cases of an experiment, trials of a search.

A task resumes from its own checkpoint when its node dies. Its files are on a file system that all nodes share.
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedtilt.cluster.connection import check_nodes, nodes, on_nodes
from fedtilt.errors import InputError

_POLL_SECONDS = 1.0
_RETRIES = 3  # of a task whose process or node dies


class TaskProgress(NamedTuple):
    """How far a task is, and where it runs."""

    node: str  # address
    done: int  # rounds or steps
    total: int
    latest: str = ""  # the latest result in a few words


def describe_tasks(running: Mapping[str, TaskProgress], done: int, total: int) -> str:
    """What runs where, in one line.

    >>> describe_tasks({"seed 3": TaskProgress("10.0.0.2", 5, 50, "fedtilt 91.2 %")}, 2, 4)
    '2/4 done; seed 3: 5/50 on 10.0.0.2, fedtilt 91.2 %'
    """
    parts = [
        f"{name}: {f'{p.done}/{p.total}' if p.total else 'starts'} on {p.node}{f', {p.latest}' if p.latest else ''}"
        for name, p in running.items()
    ]
    return "; ".join([f"{done}/{total} done", *parts])


Report = Callable[[int, int, str], None]  # steps done, steps in total, the latest result in a few words
Task = Callable[[Report, Callable[[str], None]], Any]  # takes what to call with its progress, and with messages
OnProgress = Callable[[Mapping[str, TaskProgress], int, int], None]  # running tasks, tasks done, tasks in total


def run_tasks(
    ray: Any, tasks: Mapping[str, Task], *, gpu: bool, notice: Callable[[str], None],
    on_progress: OnProgress = lambda *_: None,
) -> dict[str, Any]:  # fmt: skip
    """Run tasks in parallel on the cluster, and return their results by name.

    Each has one GPU or CPU. An `InputError` of a task is raised when it comes. `notice` is called with messages of the
    tasks, which begin with the name of the task, and `on_progress` about every second.
    """
    from ray.util.queue import Queue

    check_nodes(ray, set())
    news = Queue(actor_options={"num_cpus": 0})  # progress and messages of tasks, with their names
    options = {"num_cpus": 0, "num_gpus": 1} if gpu else {"num_cpus": 1}
    remote = ray.remote(max_retries=_RETRIES, scheduling_strategy="SPREAD", **options)(_run)
    running = {remote.remote(name, task, news): name for name, task in tasks.items()}
    results: dict[str, Any] = {}
    progress: dict[str, TaskProgress] = {}
    try:
        while running:
            done, _ = ray.wait([*running], num_returns=len(running), timeout=_POLL_SECONDS)
            for name, found in news.get_nowait_batch(news.qsize()):
                if isinstance(found, TaskProgress):
                    progress[name] = found
                else:
                    notice(f"{name}: {found}")
            for reference in done:
                name = running.pop(reference)
                try:
                    results[name] = ray.get(reference)
                except InputError as error:  # in an error of Ray's
                    raise InputError(f"{name}: {error.cause}") from None  # type: ignore[attr-defined]
            on_progress(
                {name: progress[name] for name in running.values() if name in progress}, len(results), len(tasks)
            )
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        news.shutdown(force=True)
    return results


def _run(name: str, task: Task, news: Any) -> Any:
    """Run one task in a process of the cluster."""
    import ray

    node = ray.util.get_node_ip_address()

    def report(done: int, total: int, latest: str = "") -> None:
        news.put((name, TaskProgress(node, done, total, latest)))

    report(0, 0)
    try:
        return task(report, lambda text: news.put((name, text)))
    except InputError as error:
        raise InputError(str(error)) from None  # a plain one: others cannot be sent


def check_shared(ray: Any, folder: Path, paths: Sequence[str | os.PathLike[str]] = ()) -> None:
    """Raise InputError for a node that does not share a folder with this machine, or does not see other paths."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".cluster-") as mark:  # a name that no other machine has
        wanted = {mark.name: os.fspath(folder), **{os.path.abspath(path): os.fspath(path) for path in paths}}

        def missing() -> list[str]:
            import os

            return [shown for path, shown in wanted.items() if not os.path.exists(path)]

        addresses = nodes(ray)
        for node, not_seen in on_nodes(ray, missing, list(addresses)).items():
            if not_seen:
                raise InputError(
                    f"node {addresses[node]} cannot see {not_seen[0]}; put it on a file system that all nodes share"
                )
