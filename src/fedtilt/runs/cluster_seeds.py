"""Train the seeds of a spec in parallel, as tasks of a Ray cluster; each has its own folder and checkpoints."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedtilt.cluster.connection import connected
from fedtilt.cluster.tasks import Report, check_shared, run_tasks
from fedtilt.data.published import catalog
from fedtilt.data.published.entry import data_folder
from fedtilt.evaluation.metrics import SCORES
from fedtilt.evaluation.round_metrics import RoundMetrics
from fedtilt.executors.devices import pick_device
from fedtilt.runs.callback import Callback
from fedtilt.runs.seed_run import spec_of, train_seed
from fedtilt.simulation import Round

if TYPE_CHECKING:
    from fedtilt.spec import Spec


def train_seeds_on_cluster(spec: "Spec", folder: Path, callback: Callback) -> None:
    """Train all seeds to the end; one that is finished is not trained again.

    Args:
        spec: the spec
        folder: the run folder, which all nodes must share
        callback: its `on_tasks` shows the progress
    """
    folder = folder.absolute()
    with connected(spec.train.cluster or "local") as ray:
        check_shared(ray, folder, data_paths(spec))
        tasks = {
            f"seed {seed}": partial(_train_seed, folder, _overrides(spec), seed)
            for seed in range(spec.seed, spec.seed + spec.seeds)
        }
        gpu = pick_device(spec.device).type == "cuda"
        run_tasks(ray, tasks, gpu=gpu, notice=callback.on_notice, on_progress=callback.on_tasks)


def data_paths(spec: "Spec") -> list[Path]:
    """The files and folders that the data of a spec is read from."""
    d = spec.data
    if d.path is not None:
        paths = [d.path, d.schema, d.exclude, d.relabel]
        return [Path(path) for path in paths if path]
    found = catalog.find_folder(d.name, d.folder or None) if catalog.entry(d.name).files else None
    return [] if found is None else [found]


def _overrides(spec: "Spec") -> list[str]:
    """What differs in a task: it trains in its own process, with the data of this machine's folder."""
    changes = ["train.cluster=", "train.cluster_timeout=", "train.workers="]
    if spec.data.path is None and catalog.entry(spec.data.name).files:
        changes.append(f"data.folder={data_folder(spec.data.folder or None).absolute()}")
    return [*changes, f"device={pick_device(spec.device).type}"]


def _train_seed(folder: Path, overrides: list[str], seed: int, report: Report, notice: Callable[[str], None]) -> None:
    """One task."""
    spec = spec_of(folder, *overrides)
    train_seed(spec, folder, seed, _Reporting(spec.train.rounds, report, notice))


class _Reporting(Callback):
    """Sends the progress of a task."""

    def __init__(self, rounds: int, report: Report, notice: Callable[[str], None]) -> None:
        self._rounds, self._report, self._notice = rounds, report, notice

    def on_notice(self, text: str) -> None:
        """Send it."""
        self._notice(text)

    def on_round(self, round: Round, metrics: Mapping[str, RoundMetrics] | None) -> None:
        """Send the round, and the best method."""
        latest = ""
        if metrics:
            score = SCORES[next(iter(metrics.values())).evaluated.score]
            choose = max if score.higher_is_better else min
            best = choose(metrics, key=lambda name: metrics[name].evaluated.mean)
            latest = f"{best} {score.text(metrics[best].evaluated.mean, 1)}"
        self._report(round.number, self._rounds, latest)
