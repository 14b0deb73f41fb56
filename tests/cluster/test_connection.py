"""Addresses, a missing Ray, and nodes with other versions: one line each."""

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedtilt as ft
from fedtilt.cluster.connection import check_cluster, import_ray
from fedtilt.engine.settings import TrainSettings
from fedtilt.runs.spec_run import cluster_overrides
from fedtilt.spec import load
from tests.helpers import plain_loop

FED = plain_loop.federation()


def closed_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_without_ray_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ft.InputError, match=r'^a cluster needs Ray, .* pip install "ray>=2.50"$'):
        import_ray()


def test_an_address_that_does_not_answer_is_refused_before_training() -> None:
    address = f"127.0.0.1:{closed_port()}"
    with pytest.raises(ft.InputError, match=f"^cluster '{address}' does not answer .*start it with ray start --head"):
        list(ft.simulate([ft.fedavg()], FED, ft.models.mlp, rounds=1, cluster=address))


@pytest.mark.parametrize(
    ("answer", "accepted"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (b"", False),
        (bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]), True),  # the head node begins with its settings of HTTP/2
    ],
)
def test_another_service_at_the_address_is_refused(answer: bytes, accepted: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if accepted:
            check_cluster(address)
        else:
            with pytest.raises(ft.InputError, match=f"^cluster '{address}' is not Ray: another service answers; corr"):
                check_cluster(address)
        thread.join()


@pytest.mark.parametrize("command", [["run", "digits"], ["tune", "digits"]])
def test_a_wrong_address_leaves_no_folder(command: list[str], fedtilt: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    done = fedtilt(*command, "--cluster", f"127.0.0.1:{closed_port()}", "--out", "run")
    assert done.code == 2
    assert "does not answer" in done.err
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_without_its_cluster() -> None:
    of_cluster = ["train.cluster=auto", "train.cluster_timeout=60"]
    train = load("digits", overrides=[*of_cluster, *cluster_overrides("none")]).train
    assert (train.cluster, train.cluster_timeout) == (None, 600.0)
    assert load("digits", overrides=[*of_cluster, *cluster_overrides("head:1")]).train.cluster == "head:1"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://head:10001", "is for Ray's client.* use ray job submit"),
        ("head", "is not an address; use host:port of the head node, or auto"),
        ("head:port", "is not an address"),
    ],
)
def test_what_is_not_an_address_is_refused(address: str, message: str) -> None:
    with pytest.raises(ft.InputError, match=message):
        check_cluster(address)


def test_settings_that_have_no_effect_are_refused() -> None:
    with pytest.raises(ft.InputError, match="cluster_timeout = 5.0 has no effect here; set cluster"):
        TrainSettings(cluster_timeout=5)
    with pytest.raises(ft.InputError, match="workers = 0 leaves nothing to train on a cluster"):
        TrainSettings(cluster="auto", workers=0)
    with pytest.raises(ft.InputError, match="stack_size = 4 has no effect: backend .* trains one client at a time"):
        ft.simulate([ft.fedavg()], FED, ft.models.mlp, rounds=1, stack_size=4)
