"""A federation without a network: messages go straight to the apps of the sites, in one process."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from fedtilt.flower.client import client_app
from fedtilt.flower.deploy.allowed_apps import ACCEPT_ALL
from fedtilt.flower.flwr_internals import task_identity
from fedtilt.flower.server import serve
from fedtilt.flower.task import Task

Tamper = Callable[[Message, int, int], list[Message]]  # reply, site, round → what arrives instead
Config = dict[str, bool | float | int | str]


class LoopbackGrid(Grid):
    """A grid that calls the app of the sites; node 100 + n is site n modulo the number of sites."""

    def __init__(
        self, task: Task, sites: int, state_dir: Path, run_config: Config, tamper: Tamper | None = None
    ) -> None:
        self._sites, self._state_dir, self._run_config, self._tamper = sites, state_dir, run_config, tamper
        self._apps = [client_app(task) for _ in range(sites)]
        self.node_config: dict[int, Config] = {}
        self.sent: list[tuple[Message, Message]] = []  # (message, reply)
        self.timeouts: set[float | None] = set()

    def set_task(self, site: int, task: Task) -> None:
        """Give a site another task than the server has."""
        self._apps[site] = client_app(task)

    def _unused(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("a loopback has no Flower run, and sends and receives in one call")

    run = property(_unused)
    set_run = create_message = push_messages = pull_messages = _unused

    def get_node_ids(self) -> Iterable[int]:
        """One node per site."""
        return [100 + n for n in range(self._sites)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies of the sites, in another order: that of arrival must not matter."""
        replies = []
        self.timeouts.add(timeout)
        for message in messages:
            site = (message.metadata.dst_node_id - 100) % self._sites
            node_config: Config = {
                "partition-id": site,
                "state-dir": str(self._state_dir / str(site)),
                ACCEPT_ALL: True,  # server and sites have one owner
                **self.node_config.get(site, {}),
            }
            context = Context(1, message.metadata.dst_node_id, node_config, RecordDict(), dict(self._run_config))
            reply = self._apps[site](message, context)
            self.sent.append((message, reply))
            round = int(message.metadata.group_id or 0)
            replies += [reply] if self._tamper is None else self._tamper(reply, site, round)
        return replies[::-1]


def run_loopback(task: Task, sites: int, home: Path, **config: bool | float | int | str) -> None:
    """Train to the end: the run folder is home/run, the states of the sites are in home/state."""
    run_config: Config = {"out": str(home / "run"), "wait": 1.0, **config}
    with task_identity():
        serve(task, LoopbackGrid(task, sites, home / "state", run_config), run_config)
