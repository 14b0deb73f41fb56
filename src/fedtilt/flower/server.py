"""A Flower ServerApp around the strategy: trains a run from start to end, or from its last checkpoint."""

import os
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtilt.evaluation.results import Result
from fedtilt.flower.policy import RoundPolicy
from fedtilt.flower.reply_size import limit_reply_size, max_reply_size
from fedtilt.flower.run_folder import ServerRunFolder
from fedtilt.flower.site_keys import site_keys
from fedtilt.flower.strategy import FedTiltStrategy
from fedtilt.flower.task import ResolvedTask, Task


def server_app(task: Task) -> ServerApp:
    """The app that the SuperLink runs.

    Its run configuration may contain `method`, `set` (overrides of the spec, one per line), `out` (the run folder) and
    the settings of `RoundPolicy`, such as `quorum` and `deadline`. If the environment variable FEDTILT_SITE_KEYS is a
    folder with the public keys of the sites, no node can take another site's place.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(task, grid, context.run_config)

    return app


def serve(task: Task, grid: Grid, config: Mapping[str, object]) -> Result:
    """Train to the last round; a run that cannot continue raises, so that Flower does not report it as completed."""
    resolved, policy = task.resolve(config), RoundPolicy.from_config(config)
    info = task.federation_info(resolved)
    model, parts = task.initial_model(resolved, info)
    run_folder = ServerRunFolder(run_path(resolved, config), resolved, info, model, parts)
    strategy = FedTiltStrategy(
        resolved.method, parts, info, settings=resolved.settings, policy=policy, run_folder=run_folder,
        site_keys=site_keys(),
    )  # fmt: skip
    limit_reply_size(grid, max_reply_size(model), strategy.membership.drop_reply)
    with run_folder.open():
        strategy.start(grid)
        return run_folder.write_results()


def run_path(task: ResolvedTask, config: Mapping[str, object]) -> Path:
    """The run folder: `out`, or NAME-METHOD under FEDTILT_RUNS or runs/ in the SuperLink's working directory."""
    out = str(config.get("out") or "")
    runs = Path(os.environ.get("FEDTILT_RUNS", "runs"))
    return Path(out) if out else runs / f"{task.spec.name}-{task.method.name}"
