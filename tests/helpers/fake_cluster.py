"""A local cluster without processes: `fedtilt deploy run` submits to it, and server and sites run in this process."""

from collections.abc import Callable, Mapping
from pathlib import Path

import fedtilt as ft
from fedtilt.flower import Task
from fedtilt.flower.deploy.local_cluster import LocalCluster
from fedtilt.flower.server import serve
from tests.helpers.loopback import Config, LoopbackGrid, Tamper

DIGITS = ft.data.load("digits")
SITE_SPEC = """
name = "hospital"
[clients]
count = 2
[train]
rounds = 2
participation = 1.0
epochs = 1
lr = 0.1
[[methods]]
preset = "ditto"
"""


class FakeCluster(LocalCluster):
    """Sites with their own data, laid out under HOME as in a local cluster; `failing` sites cannot read their data."""

    failing: tuple[int, ...] = ()
    tamper: Tamper | None = None
    node_config: Mapping[int, Config] = {}
    run_config: Mapping[str, object] = {}  # of the last run
    run_status = ""
    log = ""  # of the server

    def problem(self) -> str | None:
        return None

    def submit(self, app: Path, config: Mapping[str, object]) -> int:
        self.run_config = config
        task = Task(
            spec=app / "spec.toml", data=self._data, model=ft.models.logistic,
            input_shape=DIGITS.input_shape, class_names=DIGITS.class_names, image=True,
        )  # fmt: skip
        run_config: Config = {"wait": 0.1, **config}  # type: ignore[dict-item]
        grid = LoopbackGrid(task, self.sites, self.home, run_config, self.tamper)
        grid.node_config = {
            n: {"state-dir": str(self.home / f"site-{n}/state"), **self.node_config.get(n, {})}
            for n in range(self.sites)
        }
        try:
            serve(task, grid, run_config)
            self.run_status = "finished:completed"
        except Exception:
            self.run_status = "finished:failed"
        return 7

    def run_log(self, run: int) -> str:
        return self.log

    def running(self) -> list[int]:
        return []

    def _data(self, node_config: Mapping[str, object]) -> ft.data.Dataset:
        site = int(str(node_config["partition-id"]))
        if site in self.failing:
            raise KeyError("age")
        x, y = (part[200 * site : 200 * site + 150] for part in (DIGITS.x_train, DIGITS.y_train))
        return ft.data.Dataset(name="site", x_train=x, y_train=y, x_test=x[:80], y_test=y[:80], classes=10, image=True)

    def wait_for_run(self, run: int, timeout: float = 86400, is_done: Callable[[], bool] = lambda: False) -> str:
        is_done()
        return self.run_status
