"""Connect to a Ray cluster, and check that its nodes can train what this process describes."""

import contextlib
import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fedtilt.errors import InputError
from fedtilt.imports import import_extra

_CONNECT_SECONDS = 5.0
_HTTP2_START = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and no settings
_CHECK_SECONDS = 120.0  # a node starts a process and imports torch in it
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray would report statistics to its makers
    "RAY_worker_niceness": "0",  # by default, workers on this machine give way to everything else
    "RAY_worker_register_timeout_seconds": "300",  # on a busy machine, imports take longer than the default of a minute
    "RAY_agent_register_timeout_ms": "300000",  # and longer than the half minute that a new node waits for its agents
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # a Ray that starts here listens on loopback alone, as it does on macOS
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the default from Ray 3 on; without it Ray warns of the change
}


def import_ray() -> Any:
    """The module ray, or an error that says how to install it."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    return import_extra("ray", "a cluster", "cluster")


def is_ray_worker() -> bool:
    """Whether this process is one that Ray has started."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module ray, connected to a cluster until the context ends; an existing connection is used and stays.

    Args:
        address: host:port of the head node; auto: the cluster that this machine belongs to or, without one, a new one
            on this machine; local: a new one on this machine
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    check_cluster(address)
    where: dict[str, Any] = {"address": None if address == "auto" else address}
    if address in ("auto", "local"):
        where["include_dashboard"] = False
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises plain ones, such as for a node that takes too long to start
        reason = " ".join(str(error).split())
        remedy = "check the cluster with ray status; if it asks for a token, set RAY_AUTH_MODE=token"
        if address in ("auto", "local"):
            remedy = "is this machine too busy? Ray's own processes have 15 s to start; try again later"
        raise InputError(f"Ray cannot start or connect to cluster {address!r} ({reason}); {remedy}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_cluster(address: str) -> None:
    """Raise InputError if Ray is not installed, or if an address is not one or does not answer."""
    import_ray()
    if address in ("auto", "local"):
        return
    if address.startswith("ray://"):
        raise InputError(
            f"cluster {address!r} is for Ray's client, and a run must start on a node of the cluster; use ray job "
            "submit, or host:port of the head node"
        )
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"cluster {address!r} is not an address; use host:port of the head node, or auto")
    try:
        is_ray = _speaks_http2(host.strip("[]"), int(port))
    except (OSError, OverflowError) as error:
        raise InputError(
            f"cluster {address!r} does not answer ({error}); start it with ray start --head, or correct the address"
        ) from None
    if not is_ray:
        raise InputError(
            f"cluster {address!r} is not Ray: another service answers; correct the address (Ray's port is often 6379)"
        )


def _speaks_http2(host: str, port: int) -> bool:
    """Whether a server answers as the head node does; Ray would try for minutes. Behind TLS, any answer counts."""
    with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS") == "1":
            return True
        connection.sendall(_HTTP2_START)
        try:
            frame = connection.recv(9)
        except ConnectionResetError:
            return False
        return len(frame) == 9 and frame[3] == 4  # the settings of the server


def nodes(ray: Any) -> dict[str, str]:
    """The id of every live node → its address."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def on_nodes(ray: Any, function: Any, node_ids: list[str]) -> dict[str, Any]:
    """What a function returns on each node; a node that dies meanwhile is skipped."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(num_cpus=0, max_retries=0)(function)
    replies = {
        node: remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in node_ids
    }
    results = {}
    for node, reply in replies.items():
        try:
            results[node] = ray.get(reply, timeout=_CHECK_SECONDS)
        except ray.exceptions.GetTimeoutError:
            address = nodes(ray).get(node, node)
            raise InputError(
                f"node {address} does not answer within {_CHECK_SECONDS:.0f} s; remove it from the cluster"
            ) from None
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError):
                raise
    return results


def check_nodes(ray: Any, known: set[str]) -> None:
    """Raise InputError for nodes with another fedtilt or torch than this process; checked ones are added to `known`."""
    addresses = nodes(ray)
    if not (new := [node for node in addresses if node not in known]):
        return

    def versions() -> dict[str, str | None]:  # a nested function travels by value: the node may not have fedtilt
        from importlib import metadata

        found: dict[str, str | None] = {}
        for package in ("fedtilt", "torch"):
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                found[package] = None
        return found

    here = versions()
    for node, there in on_nodes(ray, versions, new).items():
        for package, version in here.items():
            if there[package] != version:
                has = f"has {package} {there[package]}" if there[package] else f"has no {package}"
                raise InputError(
                    f"node {addresses[node]} {has}, and this process has {version}; install the same version on every "
                    "node"
                )
        known.add(node)


def send_tensors_as_arrays() -> None:
    """Let tensors that this process sends travel as arrays: all processes of a node then read one copy of them.

    By default Ray copies a tensor into every process. Nobody may write into an array that was received.
    """
    from ray.util import register_serializer

    register_serializer(Tensor, serializer=lambda tensor: tensor.detach().cpu().numpy(), deserializer=_from_array)


def _from_array(array: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the array cannot be written
        return torch.from_numpy(array)


@contextlib.contextmanager
def tensors_as_arrays() -> Iterator[None]:
    """`send_tensors_as_arrays` until the context ends."""
    from ray.util import deregister_serializer

    send_tensors_as_arrays()
    try:
        yield
    finally:
        deregister_serializer(Tensor)
