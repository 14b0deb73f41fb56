"""A federation without a network: messages go straight to the sites' apps, and a test may spoil what comes back."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid

from fedtilt.flower import Task, client_app
from fedtilt.flower.server import serve

Spoil = Callable[[Message, int, int], list[Message]]  # reply, site, round → what arrives instead
Run = dict[str, bool | float | int | str]


class Loopback(Grid):
    """A grid that answers by calling the sites; node 100 + n is site n modulo their number."""

    def __init__(self, task: Task, sites: int, state: Path, run: Run, spoil: Spoil | None = None) -> None:
        self._task, self._sites, self._state, self._run, self.spoil = task, sites, state, run, spoil
        self._app = client_app(task)
        self.node_config: dict[int, Run] = {}
        self.sent: list[tuple[Message, Message]] = []
        self.patience: set[float | None] = set()

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
        self.patience.add(timeout)
        for message in messages:
            site = (message.metadata.dst_node_id - 100) % self._sites
            node: Run = {
                "partition-id": site,
                "state-dir": str(self._state / str(site)),
                **self.node_config.get(site, {}),
            }
            context = Context(1, message.metadata.dst_node_id, node, RecordDict(), dict(self._run))
            reply = self._app(message, context)
            self.sent.append((message, reply))
            asked = message.metadata.group_id
            replies += [reply] if self.spoil is None else self.spoil(reply, site, int(asked or 0))
        return replies[::-1]  # the order of arrival must not matter


@dataclasses.dataclass
class Deployment:
    """One federation's server and sites on disk; `run` is a new `flwr run`."""

    task: Task
    home: Path
    sites: int = 2

    def run(self, spoil: Spoil | None = None, node_config: dict[int, Run] | None = None, **config: object) -> Loopback:
        settings: Run = {"out": str(self.home / "run"), "wait": 1.0, **config}  # type: ignore[dict-item]
        grid = Loopback(self.task, self.sites, self.home / "state", settings, spoil)
        grid.node_config = node_config or {}
        serve(self.task, grid, settings)
        return grid
