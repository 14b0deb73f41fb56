"""A federation without a network: messages go straight to the sites' apps, and a test may tamper with the replies."""

import dataclasses
from pathlib import Path

from fedtilt.flower import Task
from fedtilt.flower.loopback import Config, LoopbackGrid, Tamper
from fedtilt.flower.server import serve

__all__ = ["Config", "Deployment", "LoopbackGrid", "Tamper"]


@dataclasses.dataclass
class Deployment:
    """The server and the sites of one federation on disk; `run` is a new `flwr run`."""

    task: Task
    home: Path
    sites: int = 2

    def run(
        self,
        tamper: Tamper | None = None,
        node_config: dict[int, Config] | None = None,
        tasks: dict[int, Task] | None = None,
        **config: object,
    ) -> LoopbackGrid:
        """Run to the end; `tasks` are those of sites that have another one than the server."""
        run_config: Config = {"out": str(self.home / "run"), "wait": 1.0, **config}  # type: ignore[dict-item]
        grid = LoopbackGrid(self.task, self.sites, self.home / "state", run_config, tamper)
        grid.node_config = node_config or {}
        for site, task in (tasks or {}).items():
            grid.set_task(site, task)
        serve(self.task, grid, run_config)
        return grid
