"""A Flower ServerApp around the strategy: a run from start to end, or on from its last checkpoint."""

import os
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtilt.evaluation.results import Result
from fedtilt.flower.policy import Rules
from fedtilt.flower.run_folder import Ledger
from fedtilt.flower.strategy import FedTiltStrategy
from fedtilt.flower.task import Job, Task


def server_app(task: Task) -> ServerApp:
    """The app that the SuperLink runs.

    Its run configuration may say `method`, `set` (overrides of the spec, one a line), `out` (the run folder), `quorum`,
    `join-quorum`, `deadline`, `wait` and `max-samples`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(task, grid, context.run_config)

    return app


def serve(task: Task, grid: Grid, config: Mapping[str, object]) -> Result:
    """Train to the end; a run that cannot go on raises, so that Flower never calls it completed."""
    job, rules = task.job(config), Rules.read(config)
    frame = task.frame(job)
    model = task.initial(job, frame)
    ledger = Ledger(run_folder(job, config), job, frame, model)
    strategy = FedTiltStrategy(job.method, model, frame, training=job.training, rules=rules, ledger=ledger)
    with ledger.open():
        strategy.start(grid)
        return ledger.finish()


def run_folder(job: Job, config: Mapping[str, object]) -> Path:
    """Where the run lies: `out`, else NAME-METHOD under FEDTILT_RUNS or runs/ where the SuperLink was started."""
    out = str(config.get("out") or "")
    home = Path(os.environ.get("FEDTILT_RUNS", "runs"))
    return Path(out) if out else home / f"{job.spec.name}-{job.method.name}"
