"""`fedtilt deploy run`: train a project on its local cluster, and print the result."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedtilt.cli.console import Console, echo
from fedtilt.cli.deploy_progress import RunProgress, read_if_written
from fedtilt.cli.deploy_project import Project, cluster_home
from fedtilt.cli.group_tables import group_tables
from fedtilt.cli.options import Log, Settings
from fedtilt.cli.run_folders import write_report
from fedtilt.cli.tables import worst_client_and_class
from fedtilt.data.groups import CLASS
from fedtilt.errors import InputError
from fedtilt.evaluation.scores import SCORES
from fedtilt.files import read_json
from fedtilt.locks import locked
from fedtilt.runs.folder_log import FolderLog
from fedtilt.runs.trackers import trackers_of

if TYPE_CHECKING:
    from fedtilt.evaluation.method_result import MethodResult
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.task import ResolvedTask


def run(
    project: Project = Path("."),
    method: Annotated[str, typer.Option(metavar="NAME", help="The method of spec.toml, if it has several.")] = "",
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The server's run folder.")] = None,
    quorum: Annotated[
        float | None,
        typer.Option(help="Share of a round's sites whose models must arrive; without it, all sites must also join."),
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds a site has for a round.")] = None,
    back_to: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="ROUND",
            help="Undo the rounds after this one, on the server and on all sites; status shows which rounds are kept.",
        ),
    ] = None,
    log: Log = None,
) -> None:  # fmt: skip
    """Train the project on its local cluster; a stopped run resumes where it stopped."""
    from fedtilt.flower import RoundPolicy, Task
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.deploy.project import check_project, default_run_config

    check_project(project)
    trackers = trackers_of(log or [])
    cluster = LocalCluster.load(cluster_home(project))
    if problem := cluster.problem():
        raise InputError(problem)
    config: dict[str, object] = {"method": method, "set": "\n".join(settings or [])}
    options = {"quorum": quorum, "deadline": deadline, "back-to": back_to}
    config |= {key: value for key, value in options.items() if value is not None}
    defaults = default_run_config(project)
    if back_to is not None and "back-to" not in defaults:
        raise InputError(f"{project / 'pyproject.toml'} has no back-to; add back-to = -1 to [tool.flwr.app.config]")
    if quorum is None and defaults.get("join-quorum") == 0:
        config["join-quorum"] = 1.0  # all sites are on this machine: one that cannot join is an error to fix
    RoundPolicy.from_config(config)
    task = Task(spec=project / "spec.toml").resolve(config)
    folder = (out or cluster.runs_folder / f"{task.spec.name}-{task.method.name}").resolve()
    with cluster.training():
        with locked(folder, busy=f"a run still trains in {folder}; wait for it, or choose another folder with --out"):
            folder_log = FolderLog(folder, task.spec.seed, task.spec.train.rounds, trackers, back_to)
            progress = RunProgress(cluster, folder, task.spec.seed, task.spec.train.rounds, folder_log, back_to)
        number = cluster.submit(project, config | {"out": str(folder)})
        try:
            with folder_log:
                status = cluster.wait_for_run(number, is_done=progress.update)
                progress.update()
                if status != "finished:completed":
                    raise InputError(progress.failure_message(number, status))
        except KeyboardInterrupt:
            unlogged = ", and is no longer logged" if trackers else ""
            echo(f"run {number} continues{unlogged}; see fedtilt deploy status {project}", err=True)
            raise typer.Exit(130) from None
    if progress.was_finished:
        echo(f"finished     {folder} was already finished; for a new run choose another folder with --out")
    _print_result(folder, task, cluster)


def _print_result(folder: Path, task: "ResolvedTask", cluster: "LocalCluster") -> None:
    from fedtilt.storage.provenance import seed_folder

    method, seed = task.method.name, seed_folder(folder, task.spec.seed)
    metrics = read_json(folder / "results.json")["methods"][method]
    round, result = _last_evaluation(seed, task)
    is_evaluated = (result.total.sum(1) > 0).tolist()
    titles = {score.name: score.title for score in SCORES.values() if score.name in metrics} | {
        "client_fairness": "client fairness",
        "client_data_fairness_mean": "client data fairness",
        "worst": "worst 10 %",
    }
    if sum(is_evaluated) == 1:
        del titles["client_fairness"]  # the spread over one site is always 0
    text = "  ".join(f"{title} {metrics[key]['mean']:.2f}" for key, title in titles.items())
    missing = [name for name, evaluated in zip(result.client_names, is_evaluated, strict=True) if not evaluated]
    without = f"without site{'' if len(missing) == 1 else 's'} {', '.join(missing)}"
    echo(text + (f"  ({sum(is_evaluated)} of {len(is_evaluated)} sites evaluated, {without})" if missing else ""))
    _print_failures(result, read_json(seed / "federation.json"), sum(is_evaluated))
    results = read_json(folder / "results.json")
    console = Console()
    for rows in group_tables(results, console.width):
        console.print(rows)
    if (seed / "declared.json").exists():
        echo(f"declared by sites beside their counts: {seed / 'declared.json'}")
    history = read_json(seed / "history.json")["history"]
    for path in sorted(cluster.home.glob(f"site-*/state/*/{method}/seed-*/site-*/report.json")):
        report = read_if_written(path)
        if (report.get("history"), report.get("round")) == (history, round):  # of this run, not of an earlier one
            echo(f"site report  {path.with_suffix('.txt')}")
    echo(f"run folder   {folder}")
    echo(f"report       {write_report(folder)}")


def _last_evaluation(folder: Path, task: "ResolvedTask") -> tuple[int, "MethodResult"]:
    """The last evaluated round, and its result."""
    from torch import nn

    from fedtilt.evaluation.method_result import MethodResult
    from fedtilt.evaluation.summary import evaluated_counts
    from fedtilt.parts import Parts
    from fedtilt.storage.run_folder import RunFolder

    run_folder = RunFolder(folder)
    state = run_folder.latest()
    assert state is not None
    counts, total = run_folder.counts(state.round)
    result = MethodResult(
        method=task.method,
        history=[],
        sums=evaluated_counts(counts[task.method.name]),
        total=total,
        client_names=tuple(read_json(folder / "federation.json")["clients"]),
        _net=nn.Identity(),  # only the counts are used
        _parts=Parts.plain(state.shared[task.method.name]),
        _server=state.server[task.method.name],
    )
    return state.round, result


def _print_failures(result: "MethodResult", federation: Mapping[str, Any], evaluated: int) -> None:
    """The site and the class with the worst score, unless all predictions are right.

    No site of only one, and no class if a site withholds them.
    """
    class_names, group = federation["classes"], federation.get("group", CLASS)
    site, class_ = worst_client_and_class({0: result}, result.client_names, class_names)
    worst = [f"site {site}"] * bool(site and evaluated > 1)
    worst += [f"{group} {class_}"] * bool(class_ and len(class_names) > 1)
    if worst:
        Console(highlight=False, soft_wrap=True).print(f"fails most   {', '.join(worst)}")
