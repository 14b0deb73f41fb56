"""A federation without a network: messages go straight to the sites' apps, and a test may tamper with the replies."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from fedtilt.flower import Task, client_app
from fedtilt.flower.server import serve

Tamper = Callable[[Message, int, int], list[Message]]  # reply, site, round → what arrives instead
Config = dict[str, bool | float | int | str]


class LoopbackGrid(Grid):
    """A grid that calls the sites' app; node 100 + n is site n modulo the number of sites."""

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

    def set_run(self, run: object) -> None:
        pass

    @property
    def run(self) -> object:
        raise NotImplementedError

    def create_message(self, *args: object, **kwargs: object) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [100 + n for n in range(self._sites)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = []
        self.timeouts.add(timeout)
        for message in messages:
            site = (message.metadata.dst_node_id - 100) % self._sites
            node_config: Config = {
                "partition-id": site,
                "state-dir": str(self._state_dir / str(site)),
                **self.node_config.get(site, {}),
            }
            context = Context(1, message.metadata.dst_node_id, node_config, RecordDict(), dict(self._run_config))
            reply = self._apps[site](message, context)
            self.sent.append((message, reply))
            round = int(message.metadata.group_id or 0)
            replies += [reply] if self._tamper is None else self._tamper(reply, site, round)
        return replies[::-1]  # the order of arrival must not matter


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
