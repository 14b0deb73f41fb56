"""A Ray cluster of several nodes on loopback, whose processes end with the context."""

import contextlib
import os
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fedtilt.cluster.connection import import_ray

_OBJECT_STORE = 100 * 2**20


class LoopbackCluster:
    """The cluster; a head node without CPUs has no workers, and can outlive all others."""

    def __init__(self, folder: Path, head_cpus: int) -> None:
        import ray.cluster_utils

        self._folder = folder
        with self._node_arguments() as arguments:
            self._cluster = ray.cluster_utils.Cluster(
                initialize_head=True, shutdown_at_exit=False,
                head_node_args={"num_cpus": head_cpus, "no_monitor": True, **arguments},
            )  # fmt: skip

    @property
    def address(self) -> str:
        return self._cluster.address

    def add_node(self, num_cpus: int = 1, **environment: str) -> Any:
        """Another node, with variables of its environment."""
        with self._node_arguments(**environment) as arguments:
            return self._cluster.add_node(num_cpus=num_cpus, **arguments)

    def other_node(self) -> Any:
        """A node that this process is not connected to, and that is not the head."""
        import ray

        mine = ray.get_runtime_context().get_node_id()
        return next(node for node in self._cluster.worker_nodes if node.node_id != mine)

    def kill_node(self, node: Any) -> None:
        """End all processes of a node at once, with SIGKILL."""
        for worker in self.workers(node):
            os.kill(worker, signal.SIGKILL)
        self._cluster.remove_node(node, allow_graceful=False)

    def workers(self, node: Any = None, name: str = "ray::Worker") -> list[int]:
        """The processes of actors with this name, on one node or on all."""
        nodes = [node] if node else self._cluster.list_all_nodes()
        raylets = {info.process.pid for n in nodes for info in n.all_processes["raylet"]}
        return [pid for pid in _processes(name) if _parent(pid) in raylets]

    def close(self) -> None:
        self._cluster.shutdown()

    @contextlib.contextmanager
    def _node_arguments(self, **environment: str) -> Iterator[dict[str, Any]]:
        """What a node starts with, while its agents are announced.

        A node waits 15 seconds for the ports of its agents, and on a busy machine these take longer to start. So their
        ports are chosen here and announced at once. The agent of the dashboard is not installed (-1).
        """
        node = secrets.token_hex(28)
        runtime_env_port = _free_port()
        ports = {
            "dashboard_agent_listen_port": -1, "metrics_agent_port": -1, "metrics_export_port": -1,
            "runtime_env_agent_port": runtime_env_port,
        }  # fmt: skip
        announced = threading.Event()

        def announce() -> None:
            while not announced.wait(0.02):
                for session in self._folder.glob("ray/session_2*"):
                    for name, port in ports.items():
                        path = session / f"{name}_{node}"
                        if not path.exists():
                            path.write_text(str(port))

        thread = threading.Thread(target=announce, daemon=True)
        thread.start()
        try:
            yield {
                "object_store_memory": _OBJECT_STORE,
                "include_dashboard": False,
                "include_log_monitor": False,
                "runtime_env_agent_port": runtime_env_port,
                "env_vars": {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": node, **environment},
            }
        finally:
            announced.set()
            thread.join()


def _processes(name: str) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if path.read_text().startswith(name):
                yield int(path.parent.name)


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextlib.contextmanager
def loopback_cluster(*cpus: int, head_cpus: int = 0) -> Iterator[LoopbackCluster]:
    """A head node, and one more node for each number of CPUs."""
    import_ray()
    # Ray notes the cluster of this machine in RAY_TMPDIR/ray, by default in the system's folder, which may not exist
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,  # a short path
        mock.patch.dict(os.environ, RAY_TMPDIR=folder),
    ):
        cluster = LoopbackCluster(Path(folder), head_cpus)
        try:
            for count in cpus:
                cluster.add_node(count)
            yield cluster
        finally:
            cluster.close()
