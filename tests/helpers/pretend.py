"""A trial without processes: `fedtilt deploy run` submits to it, and the server and the sites run in this process."""

from collections.abc import Callable, Mapping
from pathlib import Path

import fedtilt as ft
from fedtilt.flower import Task
from fedtilt.flower.deploy.local_cluster import Trial
from fedtilt.flower.server import serve
from tests.helpers.loopback import Loopback, Run, Spoil

WHOLE = ft.data.load("digits")
SITE_SPEC = """
name = "own"
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


class Pretend(Trial):
    """Sites with data of their own, laid out under HOME as in a real trial; a `broken` one cannot read its own."""

    broken: tuple[int, ...] = ()
    spoil: Spoil | None = None
    node_config: Mapping[int, Run] = {}
    config: Mapping[str, object] = {}  # of the last run
    _status = ""

    def alive(self) -> list[int]:
        return [1]

    def submit(self, app: Path, config: Mapping[str, object]) -> int:
        self.config = config
        task = Task(
            spec=app / "spec.toml", data=self._data, model=ft.models.logistic,
            input_shape=WHOLE.input_shape, class_names=WHOLE.class_names,
        )  # fmt: skip
        settings: Run = {"wait": 0.1, **config}  # type: ignore[dict-item]
        grid = Loopback(task, self.sites, self.home, settings, self.spoil)
        grid.node_config = {
            n: {"state-dir": str(self.home / f"site-{n}/state"), **self.node_config.get(n, {})}
            for n in range(self.sites)
        }
        try:
            serve(task, grid, settings)
            self._status = "finished:completed"
        except Exception:
            self._status = "finished:failed"
        return 7

    def _data(self, node: Mapping[str, object]) -> ft.data.Dataset:
        site = int(str(node["partition-id"]))
        if site in self.broken:
            raise KeyError("age")
        x, y = (part[200 * site : 200 * site + 150] for part in (WHOLE.x_train, WHOLE.y_train))
        return ft.data.Dataset(name="own", x_train=x, y_train=y, x_test=x[:80], y_test=y[:80], classes=10, image=True)

    def wait_run(self, run: int, patience: float = 86400, sign: Callable[[], bool] = lambda: False) -> str:
        sign()
        return self._status
