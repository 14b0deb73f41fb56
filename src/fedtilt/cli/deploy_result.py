"""What `fedtilt deploy run` prints at the end of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedtilt.cli.console import Console, echo, escape
from fedtilt.cli.deploy_progress import read_if_written
from fedtilt.cli.group_tables import group_tables
from fedtilt.cli.run_folders import write_report
from fedtilt.cli.tables import worst_client_and_class
from fedtilt.data.groups import CLASS
from fedtilt.evaluation.metrics import SCORES
from fedtilt.evaluation.results import MethodResult
from fedtilt.files import read_json
from fedtilt.parts import Parts
from fedtilt.report import read_run
from fedtilt.report.summary import certificates
from fedtilt.storage.provenance import seed_folder
from fedtilt.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from fedtilt.flower.deploy.local_cluster import LocalCluster
    from fedtilt.flower.task import ResolvedTask


def print_result(folder: Path, task: "ResolvedTask", cluster: "LocalCluster") -> None:
    """Print the metrics of the last evaluation, where it fails most, and the files to read; write the report."""
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
    if certificate := certificates(read_run(folder)):
        Console(highlight=False, soft_wrap=True).print(f"certificate  {escape(certificate)}")
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


def _last_evaluation(folder: Path, task: "ResolvedTask") -> tuple[int, MethodResult]:
    """The last evaluated round, and its result."""
    run_folder = RunFolder(folder)
    state = run_folder.latest()
    assert state is not None
    counts, total = run_folder.evaluations.counts(state.round)
    result = MethodResult(
        method=task.method,
        history=[],
        sums=counts[task.method.name].evaluated,
        total=total,
        client_names=tuple(read_json(folder / "federation.json")["clients"]),
        _net=nn.Identity(),  # only the counts are used
        _parts=Parts.plain(state.shared[task.method.name]),
        _server=state.server[task.method.name],
    )
    return state.round, result


def _print_failures(result: MethodResult, federation: Mapping[str, Any], evaluated: int) -> None:
    """The site and the class with the worst score, unless all predictions are right.

    No site of only one, and no class if a site withholds them.
    """
    class_names, group = federation["classes"], federation.get("group", CLASS)
    site, class_ = worst_client_and_class({0: result}, result.client_names, class_names)
    worst = [f"site {site}"] * bool(site and evaluated > 1)
    worst += [f"{group} {class_}"] * bool(class_ and len(class_names) > 1)
    if worst:
        Console(highlight=False, soft_wrap=True).print(f"fails most   {', '.join(worst)}")
